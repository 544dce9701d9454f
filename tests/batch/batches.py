"""Batches as real commands, and a web server that has files and takes them."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from e2e.ground.patience import scaled

from fork_server import ForkedProcess
from process_tree import children

Line = dict[str, Any]


def line(custom_id: str, url: str = "/v1/completions", **body: Any) -> Line:
    fields = {"prompt": custom_id, "max_tokens": 4, "temperature": 0, **body}
    if url == "/v1/chat/completions":
        fields["messages"] = [{"role": "user", "content": fields.pop("prompt")}]
    return {"custom_id": custom_id, "method": "POST", "url": url, "body": fields}


def write_lines(path: Path, lines: list[Line]) -> Path:
    path.write_text("".join(json.dumps(one) + "\n" for one in lines))
    return path


def read_answers(path: Path) -> list[Any]:
    return [json.loads(text) for text in path.read_text().splitlines()]


@dataclass
class Command:
    """A `slipway run-batch` that runs."""

    process: ForkedProcess
    said: list[str] = field(default_factory=list)

    def wait_until(self, condition: Callable[[], bool], patience: float = 60) -> None:
        """While it runs. Raises AssertionError where it ends before, or it never comes true."""
        end = time.monotonic() + scaled(patience)
        while not condition():
            assert self.process.poll() is None, f"it has ended:\n{''.join(self.said)}"
            assert time.monotonic() < end, f"it never came true:\n{''.join(self.said)}"
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(0.01)

    def wait_for_lines(self, path: Path, count: int) -> None:
        self.wait_until(lambda: path.is_file() and path.read_bytes().count(b"\n") >= count)

    def engine_pid(self) -> int:
        return children(self.process.pid)[0]

    def end(self) -> tuple[int, str]:
        """Its exit status, and what it said on standard error."""
        status = self.process.wait(scaled(90))
        return status, "".join(self.said)


def begin(
    model: Path,
    source: Path | str,
    target: Path | str,
    *arguments: str,
    forked: bool = True,
    **options: Any,
) -> Command:
    """Start `slipway run-batch` on a model. `options` are those of `ForkedProcess`."""
    files = ["-i", str(source), "-o", str(target), "--model", str(model), "--served-model-name", "m"]
    process = ForkedProcess(
        ("slipway", "run-batch", *files, "--disable-log-requests", *arguments),
        **{"stderr": subprocess.PIPE, **options},
        env=os.environ | {"NO_PROXY": "127.0.0.1"},
        spares=[[]] if forked else None,
    )
    command = Command(process)
    threading.Thread(target=lambda: command.said.extend(process.stderr or ()), daemon=True).start()
    return command


@dataclass
class Web:
    """Has `files` by path, and takes them by PUT. `statuses` are answered first, by method, in turn."""

    files: dict[str, bytes] = field(default_factory=dict)
    statuses: dict[str, list[int]] = field(default_factory=lambda: {"GET": [], "PUT": []})
    encoding: str = ""
    """What the answers claim to be packed with."""
    asked: list[str] = field(default_factory=list)
    url: str = ""

    @contextlib.contextmanager
    def running(self) -> Iterator[Web]:
        server = ThreadingHTTPServer(("127.0.0.1", 0), self._reply())
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        self.url = f"http://127.0.0.1:{server.server_port}"
        try:
            yield self
        finally:
            server.shutdown()
            thread.join()
            server.server_close()

    def _reply(self) -> type[BaseHTTPRequestHandler]:
        web = self

        class Reply(BaseHTTPRequestHandler):
            def log_message(self, *words: object) -> None:
                """The tests' output stays clean."""

            def do_GET(self) -> None:
                self._answer(web.files.get(self.path.partition("?")[0]))

            def do_PUT(self) -> None:
                self._answer(b"", sent=self.rfile.read(int(self.headers["Content-Length"])))

            def _answer(self, content: bytes | None, sent: bytes | None = None) -> None:
                web.asked.append(f"{self.command} {self.path}")
                waiting = web.statuses[self.command]
                status = waiting.pop(0) if waiting else 200 if content is not None else 404
                if sent is not None and status == 200:  # before who sent it hears so
                    web.files[self.path.partition("?")[0]] = sent
                self.send_response(status)
                body = content or b"" if status == 200 else b""
                self.send_header("Content-Length", str(len(body)))
                if web.encoding:
                    self.send_header("Content-Encoding", web.encoding)
                self.end_headers()
                self.wfile.write(body)

        return Reply
