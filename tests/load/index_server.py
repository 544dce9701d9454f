"""A package index on this machine: pages of projects and their files."""

from __future__ import annotations

import hashlib
import html
import io
import json
import ssl
import tarfile
import threading
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

from e2e.ground.patience import scaled

HANG_UP = 0
KEEP_SILENT = 1


@dataclass(frozen=True, slots=True)
class Request:
    path: str
    accept: str
    authorization: str


class IndexServer(ThreadingHTTPServer):
    """Serves `/simple/PROJECT/` and `/files/NAME`; what a test changes here it answers from then on."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.files: dict[str, bytes] = {}
        self.json = True
        self.link: Callable[[str], str] = "../../files/{}".format
        """The link to a file on its project's page."""
        self.head = ""
        """HTML before the links."""
        self.page: bytes | None = None
        """Answered in place of a page that lists the files."""
        self.chunked = False
        """Answers do not tell their length."""
        self.authorization = ""
        """The header that every request needs."""
        self.moved: dict[str, str] = {}
        """Where paths redirect to."""
        self.statuses: list[int] = []
        """Answered to the next requests: HTTP's, HANG_UP, KEEP_SILENT, or 200 for what is asked."""
        self.cuts: list[int] = []
        """Bytes after which the connection is closed, for each of the next files."""
        self.hold: Callable[[], object] = lambda: None
        """Called in the middle of each file."""
        self.requests: list[Request] = []
        self.ended = threading.Event()

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/simple"

    @property
    def downloads(self) -> int:
        return sum(request.path.startswith("/files/") for request in self.requests)

    def handle_error(self, *words: object) -> None:
        """A client that went away is part of the tests."""


class _Handler(BaseHTTPRequestHandler):
    server: IndexServer
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        index, path = self.server, urlsplit(self.path).path
        authorization = self.headers.get("Authorization", "")
        index.requests.append(Request(path, self.headers["Accept"], authorization))
        status = index.statuses.pop(0) if index.statuses else 200
        parts = unquote(path).strip("/").split("/")
        if status == KEEP_SILENT:
            index.ended.wait(scaled(30))
        elif status == HANG_UP:
            return
        elif status != 200:
            self.send_error(status)
        elif index.authorization not in ("", authorization):
            self.send_error(401)
        elif path in index.moved:
            self.send_response(302)
            self.send_header("Location", index.moved[path])
            self.end_headers()
        elif parts[0] == "simple" and path.endswith("/"):
            self.answer(*self.listed(parts[-1]))
        elif parts[0] == "files" and parts[1] in index.files:
            cut = index.cuts.pop(0) if index.cuts else None
            self.answer(index.files[parts[1]], "application/octet-stream", cut, index.hold)
        else:
            self.send_error(404)

    def listed(self, project: str) -> tuple[bytes, str]:
        index = self.server
        stem = project.replace("-", "_")
        links = {name: index.link(name) for name in index.files if name.lower().startswith(stem)}
        if index.page is not None:
            page = index.page.decode()
        elif index.json:
            files = [{"filename": name, "url": link, "hashes": {}} for name, link in links.items()]
            page = json.dumps({"meta": {"api-version": "1.1"}, "name": project, "files": files})
        else:
            lines = [f'<a href="{html.escape(link)}">{name}</a><br>' for name, link in links.items()]
            page = f"<!DOCTYPE html><html><head>{index.head}</head><body>{''.join(lines)}</body></html>"
        return page.encode(), "application/vnd.pypi.simple.v1+json" if index.json else "text/html"

    def answer(
        self,
        content: bytes,
        kind: str,
        cut: int | None = None,
        hold: Callable[[], object] = lambda: None,
    ) -> None:
        self.send_response(200)
        self.send_header("Content-Type", kind)
        if self.server.chunked:
            self.send_header("Transfer-Encoding", "chunked")
        else:
            self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        half = len(content) // 2
        self.write(content[:half][:cut])
        hold()
        if cut is None:
            self.write(content[half:])
            if self.server.chunked:
                self.wfile.write(b"0\r\n\r\n")

    def write(self, octets: bytes) -> None:
        self.wfile.write(b"%x\r\n%b\r\n" % (len(octets), octets) if self.server.chunked else octets)

    def log_message(self, *words: object) -> None:
        """The requests are kept in `IndexServer.requests`."""


@contextmanager
def serve(certificate: tuple[Path, Path] | None = None) -> Iterator[IndexServer]:
    """An index, until the block ends; by TLS with the files of a certificate and its key."""
    with IndexServer() as server:
        if certificate:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(*certificate)
            server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server
        finally:
            server.ended.set()
            server.shutdown()
            thread.join()


def wheel(files: Mapping[str, bytes]) -> bytes:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, octets in files.items():
            archive.writestr(name, octets)
    return content.getvalue()


def sources(files: Mapping[str, bytes], links: Mapping[str, str] | None = None) -> bytes:
    """A source archive of files and symbolic links."""
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w:gz") as archive:
        for name, target in (links or {}).items():
            entry = tarfile.TarInfo(name)
            entry.type, entry.linkname = tarfile.SYMTYPE, target
            archive.addfile(entry)
        for name, octets in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(octets)
            archive.addfile(entry, io.BytesIO(octets))
    return content.getvalue()


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
