"""A receiver of OTLP traces, by gRPC and by HTTP, that keeps what it gets."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import grpc
from e2e.ground.patience import scaled
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2_grpc
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span


@dataclass
class Received:
    """One span, with the resource that it came from."""

    span: Span
    resource: dict[str, Any]

    @property
    def attributes(self) -> dict[str, Any]:
        return values(self.span.attributes)


def values(pairs: Any) -> dict[str, Any]:
    return {pair.key: value(pair.value) for pair in pairs if isinstance(pair, KeyValue)}


def value(one: AnyValue) -> Any:
    kind = one.WhichOneof("value")
    if kind == "array_value":
        return [value(item) for item in one.array_value.values]
    return getattr(one, str(kind))


@dataclass
class Receiver:
    """While `gate` is closed it takes calls and does not answer them."""

    url: str = ""
    spans: list[Received] = field(default_factory=list)
    gate: threading.Event = field(default_factory=threading.Event)
    num_calls: int = 0
    _changed: threading.Condition = field(default_factory=threading.Condition)

    def __post_init__(self) -> None:
        self.gate.set()

    def take(self, request: ExportTraceServiceRequest) -> ExportTraceServiceResponse:
        with self._changed:
            self.num_calls += 1
            self._changed.notify_all()
        self.gate.wait()
        with self._changed:
            for part in request.resource_spans:
                resource = values(part.resource.attributes)
                self.spans += [Received(span, resource) for scope in part.scope_spans for span in scope.spans]
            self._changed.notify_all()
        return ExportTraceServiceResponse()

    def wait(self, condition: Callable[[], bool], patience: float = 20) -> None:
        with self._changed:
            assert self._changed.wait_for(condition, scaled(patience)), f"{len(self.spans)} spans came"

    def one(self) -> Received:
        """The next span, alone."""
        self.wait(lambda: bool(self.spans))
        (found,) = self.spans
        self.spans.clear()
        return found


@contextmanager
def by_grpc() -> Iterator[Receiver]:
    receiver = Receiver()

    class Service(trace_service_pb2_grpc.TraceServiceServicer):
        def Export(self, request: Any, context: Any) -> ExportTraceServiceResponse:
            return receiver.take(request)

    server = grpc.server(ThreadPoolExecutor(2))
    trace_service_pb2_grpc.add_TraceServiceServicer_to_server(Service(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    receiver.url = f"grpc://127.0.0.1:{port}"
    try:
        yield receiver
    finally:
        receiver.gate.set()
        server.stop(None).wait()


@contextmanager
def by_http() -> Iterator[Receiver]:
    receiver = Receiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            known = self.path == "/v1/traces" and self.headers["Content-Type"] == "application/x-protobuf"
            answer = b""
            if known:
                answer = receiver.take(ExportTraceServiceRequest.FromString(body)).SerializeToString()
            self.send_response(200 if known else 404)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, format: str, *args: object) -> None:
            return None

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    receiver.url = f"http://127.0.0.1:{server.server_address[1]}/v1/traces"
    try:
        yield receiver
    finally:
        receiver.gate.set()
        server.shutdown()
        thread.join()
        server.server_close()
