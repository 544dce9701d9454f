"""The volumes of a pod, each with the place where its containers find it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from slipway.service.engine import CACHE, MODEL_FOLDER, TLS_FOLDER
from slipway.service.spec import ServiceSpec

Object = dict[str, Any]

PROGRAM = "/opt/slipway"
"""Where our images have their own code."""
WRITABLE = (str(CACHE), "/dev/shm", "/tmp")
READ_ONLY = (PROGRAM, str(MODEL_FOLDER), str(TLS_FOLDER))
"""What a container finds beside `spec.files`, which may lie in the former and in none of the latter."""
DOWNLOADS = "100Gi"
"""Of an emptyDir that holds a model: a bound for a model gone wrong, which nothing reserves."""
CACHED = "10Gi"
"""Of an emptyDir that holds compiled code alone."""


def volumes(spec: ServiceSpec, shared_memory: str) -> list[tuple[Object, Object]]:
    """Each volume with its mount; `shared_memory` is the size of /dev/shm. None is a hostPath."""
    return [
        _volume("shm", {"emptyDir": {"medium": "Memory", "sizeLimit": shared_memory}}, "/dev/shm"),
        _volume("tmp", {"emptyDir": {}}, "/tmp"),
        _volume("cache", _cache(spec), str(CACHE)),
        *_given(spec),
    ]


def _cache(spec: ServiceSpec) -> Object:
    cache = spec.model.cache
    if cache.pvc:
        return {"persistentVolumeClaim": {"claimName": cache.pvc}}
    downloaded = spec.model.hub or spec.model.s3
    return {"emptyDir": {"sizeLimit": cache.size or (DOWNLOADS if downloaded else CACHED)}}


def _given(spec: ServiceSpec) -> Iterator[tuple[Object, Object]]:
    """What the document mounts, all of it read-only."""
    model, tls = spec.model, spec.secrets.tls
    if model.pvc:
        claim = {"claimName": model.pvc.name, "readOnly": True}
        yield _volume("model", {"persistentVolumeClaim": claim}, str(MODEL_FOLDER), fixed=True)
    if model.image:
        source: Object = {"reference": model.image.reference}
        if model.image.pull_policy:
            source["pullPolicy"] = model.image.pull_policy
        yield _volume("model", {"image": source}, str(MODEL_FOLDER), fixed=True)
    if tls:
        yield _volume("tls", {"secret": {"secretName": tls.name}}, str(TLS_FOLDER), fixed=True)
    for index, files in enumerate(spec.files):
        source = {"configMap": {"name": files.config_map}}
        if files.secret:
            source = {"secret": {"secretName": files.secret}}
        yield _volume(f"files-{index}", source, files.mount_path, fixed=True)


def _volume(name: str, source: Object, path: str, fixed: bool = False) -> tuple[Object, Object]:
    mount: Object = {"name": name, "mountPath": path}
    if fixed:
        mount["readOnly"] = True
    return {"name": name, **source}, mount


def hidden_by(folder: str) -> str | None:
    """What of a container's own folders a mount at `folder` would hide, or lie in where nothing may."""
    for own in (*WRITABLE, *READ_ONLY):
        if own == folder or within(own, folder) or (own in READ_ONLY and within(folder, own)):
            return own
    return None


def within(folder: str, other: str) -> bool:
    """Whether a folder lies below another."""
    return folder.startswith(f"{other}/")
