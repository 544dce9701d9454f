"""A small hub on this machine: the endpoints that huggingface_hub's client asks for."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

COMMIT = "a" * 40


class Hub:
    """Repositories by name, each a folder; `requests` are the paths that were asked for."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.gated: set[str] = set()
        self.claimed_sizes: dict[str, int] = {}
        """Sizes that are told instead of the file's, by file name."""
        self.broken_after: int | None = None
        """Bytes of each weight file after which the connection is cut."""
        self.token: str | None = None
        """The token that opens gated repositories."""
        self.requests: list[str] = []
        self.url = ""


@contextmanager
def serve(root: Path) -> Iterator[Hub]:
    """A hub for the folders `root/owner/name`, until the block ends."""
    hub = Hub(root)

    class Answers(_Answers):
        state = hub

    server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    hub.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Answers(BaseHTTPRequestHandler):
    state: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, *args: object) -> None:
        """The requests are kept in `Hub.requests`."""

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path = unquote(urlsplit(self.path).path)
        self.state.requests.append(f"{self.command} {path}")
        parts = path.strip("/").split("/")
        if parts[:2] == ["api", "models"]:
            self.api("/".join(parts[2:4]), parts[4:])
        elif len(parts) > 3 and parts[2] == "resolve":
            self.file("/".join(parts[:2]), parts[3], "/".join(parts[4:]))
        else:
            self.send(404)

    def permitted(self, repository: str, revision: str) -> bool:
        """Whether the repository and the revision may be seen; answers otherwise."""
        token = self.headers.get("Authorization", "").removeprefix("Bearer ")
        if not (self.state.root / repository).is_dir():
            self.send(401, error="RepoNotFound")
        elif revision not in ("main", COMMIT):
            self.send(404, error="RevisionNotFound")
        elif repository in self.state.gated and (not token or token != self.state.token):
            self.send(403, error="GatedRepo")
        else:
            return True
        return False

    def api(self, repository: str, rest: list[str]) -> None:
        revision = rest[1] if len(rest) > 1 else "main"
        if not self.permitted(repository, revision):
            return
        folder = self.state.root / repository
        files = sorted(path for path in folder.rglob("*") if path.is_file())
        names = [path.relative_to(folder).as_posix() for path in files]
        if rest[:1] == ["tree"]:
            self.send_json(
                [
                    {"type": "file", "oid": self.etag(path), "size": self.size(path), "path": name}
                    for path, name in zip(files, names, strict=True)
                ]
            )
        else:
            siblings = [{"rfilename": name} for name in names]
            self.send_json({"id": repository, "sha": COMMIT, "siblings": siblings})

    def file(self, repository: str, revision: str, name: str) -> None:
        if not self.permitted(repository, revision):
            return
        path = self.state.root / repository / name
        if not path.is_file():
            self.send(404, error="EntryNotFound")
            return
        content = path.read_bytes()
        size = self.size(path)
        self.send_response(200)
        self.send_header("ETag", f'"{self.etag(path)}"')
        self.send_header("X-Repo-Commit", COMMIT)
        self.send_header("Content-Length", str(size))
        self.end_headers()
        if self.command == "GET":
            cut = self.state.broken_after if path.suffix == ".safetensors" else None
            self.wfile.write(content[:cut])
            self.close_connection = cut is not None

    def size(self, path: Path) -> int:
        return self.state.claimed_sizes.get(path.name, path.stat().st_size)

    def etag(self, path: Path) -> str:
        return hashlib.sha1(path.read_bytes()).hexdigest()

    def send_json(self, value: object) -> None:
        self.send(200, json.dumps(value).encode())

    def send(self, status: int, body: bytes = b"{}", error: str | None = None) -> None:
        self.send_response(status)
        if error is not None:
            self.send_header("X-Error-Code", error)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)
