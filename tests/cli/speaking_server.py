"""A small HTTP server that speaks OpenAI's streaming protocol, for tests of its clients."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class HttpServer(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that hangs up is no failure of the server."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


@dataclass
class SpeakingServer:
    """Answers with `pieces`, one event each. What it was asked is in `bodies` and `keys`."""

    pieces: list[str] = field(default_factory=lambda: ["Par", "is."])
    models: list[str] = field(default_factory=lambda: ["first", "second"])
    key: str | None = None
    """Refuses requests with another bearer token."""
    error: str = ""
    """Ends the stream with this error event."""
    hang_up: bool = False
    """Closes the connection in the middle of the answer."""
    error_event: object = None
    """Stands as `error` in the last event of a stream that is whole."""
    raw: bytes = b""
    """Answered to whatever is asked, as it is."""
    elsewhere: str = ""
    """Sends its clients to this URL."""
    released: threading.Event | None = None
    """Keeps the stream open after the pieces until it is set."""
    url: str = ""
    bodies: list[dict] = field(default_factory=list)
    keys: list[str | None] = field(default_factory=list)

    @contextmanager
    def running(self) -> Iterator[SpeakingServer]:
        http = HttpServer(("127.0.0.1", 0), self._reply())
        thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        self.url = f"http://127.0.0.1:{http.server_port}/v1"
        try:
            yield self
        finally:
            http.shutdown()
            thread.join()
            http.server_close()

    def _reply(self) -> type[BaseHTTPRequestHandler]:
        server = self

        class Reply(BaseHTTPRequestHandler):
            def log_message(self, *words: object) -> None:
                """The tests' output stays clean."""

            def do_GET(self) -> None:
                if self._welcome():
                    self._json(200, {"data": [{"id": model} for model in server.models]})

            def do_POST(self) -> None:
                length = int(self.headers["Content-Length"])
                server.bodies.append(json.loads(self.rfile.read(length)))
                if self._welcome():
                    self._stream()

            def _welcome(self) -> bool:
                if server.raw:
                    self.wfile.write(server.raw)
                    return False
                given = self.headers.get("Authorization", "").removeprefix("Bearer ") or None
                server.keys.append(given)
                if server.elsewhere:
                    self.send_response(302)
                    self.send_header("Location", server.elsewhere)
                    self.send_header("Content-Length", "0")
                    self.end_headers()
                    return False
                if server.key and given != server.key:
                    self._json(401, {"error": {"message": "Wrong key.", "code": "bad_key"}})
                    return False
                return True

            def _json(self, status: int, body: dict) -> None:
                text = json.dumps(body).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

            def _stream(self) -> None:
                self.send_response(200)
                self.send_header("Content-Type", "text/event-stream")
                self.end_headers()
                self.wfile.write(b": a comment, which clients skip\n\n")
                chat = self.path.endswith("/chat/completions")
                for piece in server.pieces:
                    said = {"delta": {"content": piece}} if chat else {"text": piece}
                    self._event({"choices": [said]})
                if server.released:
                    server.released.wait()
                    return
                if server.error:
                    self._event({"error": {"message": server.error}})
                elif not server.hang_up:
                    self._event({"choices": [], "error": server.error_event})
                    self.wfile.write(b"data: [DONE]\n\n")

            def _event(self, body: dict) -> None:
                self.wfile.write(b"data: " + json.dumps(body).encode() + b"\n\n")

        return Reply
