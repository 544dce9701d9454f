"""What a server is asked before it is measured, over a connection that it may close meanwhile."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from slipway.bench.http import Address
from slipway.bench.server import Server, ServerError


class Closing(ThreadingHTTPServer):
    """Answers one request of each connection, and closes that then without a word."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Reply)
        self.answers = True
        self.asked: list[str] = []
        self.kinds: list[str] = []
        self.address = Address("127.0.0.1", self.server_port)


class Reply(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Closing

    def log_message(self, *words: object) -> None:
        """The tests' output stays clean."""

    def handle(self) -> None:
        self.handle_one_request()

    def do_GET(self) -> None:
        self.answer({"data": [{"id": "first"}]})

    def do_POST(self) -> None:
        self.server.kinds = self.headers.get_all("Content-Type", [])
        self.rfile.read(int(self.headers["Content-Length"]))
        self.answer({"count": 7})

    def answer(self, body: object) -> None:
        self.server.asked.append(self.path)
        if self.server.answers:
            text = json.dumps(body).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)


@pytest.fixture
def closing() -> Iterator[Closing]:
    with Closing() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def test_a_connection_that_the_server_closed_meanwhile_ends_no_measurement(closing: Closing) -> None:
    server = Server(closing.address, {})
    assert server.models() == ["first"]
    assert [server.count("text", "first") for _ in range(2)] == [7, 7]
    assert closing.asked == ["/v1/models", "/tokenize", "/tokenize"]


def test_a_server_that_hangs_up_on_a_new_connection_is_not_asked_again(closing: Closing) -> None:
    server = Server(closing.address, {})
    server.models()
    closing.answers = False
    with pytest.raises(ServerError, match="cannot be reached"):
        server.count("text", "first")
    assert closing.asked == ["/v1/models", "/tokenize"]


def test_a_header_of_the_user_replaces_the_own_one_of_its_name(closing: Closing) -> None:
    Server(closing.address, {"content-type": "text/json"}).count("text", "first")
    assert closing.kinds == ["text/json"]
