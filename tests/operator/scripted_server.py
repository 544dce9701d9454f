"""An HTTP server that answers lists and watches by a script: a real API server fails on no one's command."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from kubernetes import client

from slipway_operator.cluster import Cluster

Object = dict[str, Any]


@dataclass(slots=True)
class Answer:
    """One answer: a body, or the events of a watch, which then ends, breaks off or stays open."""

    body: Object | None = None
    events: list[Object] = field(default_factory=list)
    status: int = 200
    end: str = "close"
    """close, break or stay"""
    path: str | None = None
    """What it answers; any request where unset."""


@dataclass(slots=True)
class Script:
    """Answers in turn; once they are spent, watches stay open. Thread-safe enough for one client thread."""

    answers: list[Answer]
    asked: list[dict[str, str]] = field(default_factory=list)
    """The query of each request so far."""
    ended: threading.Event = field(default_factory=threading.Event)


@contextmanager
def serving(*answers: Answer) -> Iterator[tuple[Cluster, Script]]:
    script = Script([*answers])

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            url = urlsplit(self.path)
            script.asked.append(dict(parse_qsl(url.query)))
            fitting = (one for one in script.answers if one.path in (None, url.path))
            answer = next(fitting, Answer(end="stay"))
            if answer in script.answers:
                script.answers.remove(answer)
            self.send_response(answer.status)
            if answer.body is not None:
                text = json.dumps(answer.body).encode()
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)
                return
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            for event in answer.events:
                self._chunk(json.dumps(event).encode() + b"\n")
            if answer.end == "stay":
                script.ended.wait()
            if answer.end == "close":
                self._chunk(b"")
            self.close_connection = True

        def _chunk(self, text: bytes) -> None:
            self.wfile.write(b"%x\r\n%s\r\n" % (len(text), text))
            self.wfile.flush()

        def log_message(self, *_: object) -> None:
            """Nothing on the terminal."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        configuration = client.Configuration(host=f"http://127.0.0.1:{server.server_port}")
        yield Cluster(configuration), script
    finally:
        script.ended.set()
        server.shutdown()
        server.server_close()
        thread.join()


def page(*items: Object, version: int, more: str = "", path: str | None = None) -> Answer:
    """A list, or a page of one."""
    listed = {"metadata": {"resourceVersion": str(version), "continue": more}, "items": [*items]}
    return Answer(listed, path=path)


def refusal(status: int) -> Answer:
    return Answer(
        {"kind": "Status", "reason": "Scripted", "message": "as scripted", "code": status}, status=status
    )


def watch(*events: tuple[str, Object], end: str = "close") -> Answer:
    return Answer(events=[{"type": kind, "object": item} for kind, item in events], end=end)
