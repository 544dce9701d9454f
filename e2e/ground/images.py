"""Small images without a builder: files in one layer, as an OCI archive that `ctr` imports."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


def archive(
    path: Path,
    name: str,
    files: Mapping[str, Path | bytes],
    *,
    entrypoint: Sequence[str],
    user: str = "65534",
    links: Mapping[str, str] | None = None,
) -> Path:
    """Write the image `name` (with its tag) to `path`.

    files  content by the absolute path inside; all are readable and executable by everyone
    links  target by the absolute path of a symbolic link
    """
    layer = _layer(files, links or {})
    config = {
        "architecture": "amd64",
        "os": "linux",
        "config": {"Entrypoint": list(entrypoint), "User": user, "Env": ["PATH=/bin"], "WorkingDir": "/"},
        "rootfs": {"type": "layers", "diff_ids": [_digest(layer)]},
    }
    blobs = {"layer": layer, "config": _json(config)}
    kind = "application/vnd.oci.image"
    manifest = _json(
        {
            "schemaVersion": 2,
            "mediaType": f"{kind}.manifest.v1+json",
            "config": _descriptor(f"{kind}.config.v1+json", blobs["config"]),
            "layers": [_descriptor(f"{kind}.layer.v1.tar", layer)],
        }
    )
    described = _descriptor(f"{kind}.manifest.v1+json", manifest)
    described["annotations"] = {"io.containerd.image.name": name}
    members = {
        "oci-layout": _json({"imageLayoutVersion": "1.0.0"}),
        "index.json": _json({"schemaVersion": 2, "manifests": [described]}),
        **{f"blobs/sha256/{_digest(blob)[7:]}": blob for blob in (*blobs.values(), manifest)},
    }
    with tarfile.open(path, "w") as tar:
        for member, content in members.items():
            _add(tar, member, content)
    return path


def busybox(path: Path, name: str) -> Path:
    """An image of Debian's static busybox under all the names that the tests call it by."""
    commands = (
        "sh",
        "cat",
        "echo",
        "env",
        "httpd",
        "id",
        "ls",
        "nslookup",
        "sleep",
        "tail",
        "timeout",
        "touch",
        "wget",
    )
    links = {f"/bin/{command}": "busybox" for command in commands}
    return archive(path, name, {"/bin/busybox": Path("/bin/busybox")}, entrypoint=["/bin/sh"], links=links)


def _layer(files: Mapping[str, Path | bytes], links: Mapping[str, str]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for folder in sorted({str(parent) for name in (*files, *links) for parent in Path(name).parents}):
            if folder != "/":
                entry = tarfile.TarInfo(folder.lstrip("/"))
                entry.type, entry.mode = tarfile.DIRTYPE, 0o755
                tar.addfile(entry)
        for name, content in files.items():
            _add(tar, name.lstrip("/"), content if isinstance(content, bytes) else content.read_bytes())
        for name, target in links.items():
            entry = tarfile.TarInfo(name.lstrip("/"))
            entry.type, entry.linkname = tarfile.SYMTYPE, target
            tar.addfile(entry)
    return buffer.getvalue()


def _add(tar: tarfile.TarFile, name: str, content: bytes) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = len(content), 0o755
    tar.addfile(entry, io.BytesIO(content))


def _json(document: object) -> bytes:
    return json.dumps(document).encode()


def _digest(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def _descriptor(kind: str, content: bytes) -> dict[str, Any]:
    return {"mediaType": kind, "digest": _digest(content), "size": len(content)}
