"""Traces: one span for each request, sent to a receiver of OTLP by OpenTelemetry's SDK.

Imported only where traces are asked for: it needs the extra `otel`.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterable
from functools import partial

from opentelemetry.context import Context
from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
from opentelemetry.trace import SpanKind, Status, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from opentelemetry.util.types import AttributeValue
from starlette.datastructures import Headers

from slipway import __version__
from slipway.api.generate import Output, Run
from slipway.exits import BAD_ARGUMENTS, Exit

FLUSH_SECONDS = 2.0
"""For what is left of traces to be sent when the server ends."""
PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
PARENT = ("traceparent", "tracestate")

logger = logging.getLogger("slipway.api")


class Tracer:
    """Turns requests that have ended into spans, which a thread sends in batches.

    Nothing here waits for the receiver. Where it is away, spans beyond the queue are dropped with a warning.
    """

    def __init__(self, endpoint: str, detailed: Iterable[str]) -> None:
        """`detailed` as --collect-detailed-traces has it. Raises Exit where nothing can be sent so."""
        self._endpoint = endpoint
        self._detailed = frozenset(detailed)
        self._propagator = TraceContextTextMapPropagator()
        self._exporter = _exporter(endpoint)
        self._provider = TracerProvider(resource=_resource(), shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(self._exporter))
        self._tracer = self._provider.get_tracer("slipway", __version__)

    def recorder(self, headers: Headers) -> Callable[[Run], None]:
        """Call it with the request of these headers once it has ended."""
        carrier = {name: headers.getlist(name) for name in PARENT}
        return partial(self._record, self._propagator.extract(carrier))

    def close(self) -> None:
        """Send what is left, within FLUSH_SECONDS. Blocks."""
        flushing = threading.Thread(target=self._provider.shutdown, daemon=True)
        flushing.start()
        flushing.join(FLUSH_SECONDS)
        if flushing.is_alive():
            logger.warning(
                "Traces are lost: %s did not take what was left of them within %g s.",
                self._endpoint,
                FLUSH_SECONDS,
            )
            self._exporter.shutdown()

    def _record(self, parent: Context, run: Run) -> None:
        arrived = time.time_ns() - _nanoseconds(time.monotonic() - run.arrival)
        span = self._tracer.start_span("llm_request", parent, SpanKind.SERVER, start_time=arrived)
        if span.is_recording():
            span.set_attributes(attributes(run))
            span.set_attributes(self._details(run.outputs))
            if run.error:
                span.set_status(Status(StatusCode.ERROR, run.error))
        span.end(arrived + _nanoseconds(run.last_end - run.arrival))

    def _details(self, outputs: list[Output]) -> dict[str, AttributeValue]:
        """Times in the engine, of the output that it worked longest on."""
        works = [output.work for output in outputs if output.work is not None]
        if not works or not self._detailed:
            return {}
        work = max(works, key=lambda one: one.execution)
        found: dict[str, AttributeValue] = {"gen_ai.latency.time_in_scheduler": work.scheduling}
        if self._detailed & {"model", "all"}:
            found["gen_ai.latency.time_in_model_forward"] = work.forward
        if self._detailed & {"worker", "all"}:
            found["gen_ai.latency.time_in_model_execute"] = work.execution
        return found


def attributes(run: Run) -> dict[str, AttributeValue]:
    """What a span says of a request that has ended: as vLLM names it, all times in seconds.

    What never came about, such as the first token of a request that was aborted before, is left out.
    """
    order, outputs = run.order, run.outputs
    params = order.prompts[0].params
    found: dict[str, AttributeValue] = {
        "gen_ai.request.id": order.request_id,
        "gen_ai.request.model": run.model,
        "gen_ai.response.model": run.model,
        "gen_ai.request.max_tokens": params.max_tokens,
        "gen_ai.request.temperature": params.temperature,
        "gen_ai.request.top_p": params.top_p,
        "gen_ai.request.n": order.n,
        "gen_ai.usage.num_sequences": len(outputs),
        "gen_ai.usage.prompt_tokens": order.prompt_tokens,
        "gen_ai.usage.completion_tokens": run.num_tokens,
        "gen_ai.response.finish_reasons": [output.finish_reason for output in outputs],
        "gen_ai.latency.e2e": run.last_end - run.arrival,
    }
    if run.first_news is not None:
        found["gen_ai.latency.time_to_first_token"] = run.first_news - run.arrival
    timings = [output.timing for output in outputs if output.timing is not None]
    if timings:
        begun = min(timing.scheduled for timing in timings)
        first = min(timing.first_token for timing in timings)
        last = max(timing.last_token for timing in timings)
        found["gen_ai.latency.time_in_queue"] = begun - run.arrival
        found["gen_ai.latency.time_in_model_prefill"] = first - begun
        found["gen_ai.latency.time_in_model_decode"] = last - first
        found["gen_ai.latency.time_in_model_inference"] = last - begun
    return found


def _nanoseconds(seconds: float) -> int:
    return int(seconds * 1e9)


def _resource() -> Resource:
    """As the OTEL_* variables say; the service is `slipway` where they name none."""
    found = Resource.create()
    if str(found.attributes[SERVICE_NAME]).startswith("unknown_service"):
        return found.merge(Resource({SERVICE_NAME: "slipway"}))
    return found


def _exporter(endpoint: str) -> SpanExporter:
    """What speaks the protocol that the environment names."""
    name = next((name for name in PROTOCOLS if os.environ.get(name)), PROTOCOLS[0])
    protocol = os.environ.get(name) or "grpc"
    if protocol == "grpc":
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as ByGrpc

        return ByGrpc(endpoint)
    if protocol != "http/protobuf":
        message = f"{name}={protocol} is no protocol that traces can be sent by."
        raise Exit(BAD_ARGUMENTS, message, "Set it to grpc or http/protobuf.", "otlp_traces_endpoint")
    if not endpoint.startswith(("http://", "https://")):
        message = f"--otlp-traces-endpoint {endpoint} is no address for {name}=http/protobuf."
        hint = "Write it in full, such as http://collector:4318/v1/traces."
        raise Exit(BAD_ARGUMENTS, message, hint, "otlp_traces_endpoint")
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as ByHttp

    return ByHttp(endpoint)
