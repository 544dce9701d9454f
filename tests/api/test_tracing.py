"""Traces as a receiver of OTLP gets them."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import httpx
import openai
import pytest
from e2e.ground.patience import scaled
from e2e.ground.ports import free_port
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status
from serving import MODEL, Served

from live_server import live_server
from otlp import Receiver, by_grpc, by_http
from slipway import exits
from slipway.api.generate import Order, Run
from slipway.api.transcript import TranscriptRules
from slipway.engine.client import EngineClient
from slipway.metrics.registry import ServerMetrics

PROMPT = {"model": MODEL, "prompt": "Paris", "max_tokens": 5}
TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
AT_ONCE = {"OTEL_BSP_SCHEDULE_DELAY": "20", "OTEL_EXPORTER_OTLP_TRACES_INSECURE": "true"}
WAYS = {"grpc": by_grpc, "http/protobuf": by_http}

Start = Callable[..., Served]


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("OTEL_")]:
        monkeypatch.delenv(name)
    for name, value in AT_ONCE.items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with by_grpc() as receiver:
        yield receiver


def traced(start: Start, receiver: Receiver, *arguments: str) -> Served:
    return start("--otlp-traces-endpoint", receiver.url, *arguments)


@pytest.mark.parametrize("protocol", WAYS)
def test_a_request_is_a_span(start: Start, monkeypatch: pytest.MonkeyPatch, protocol: str) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", protocol)
    way: Callable[[], AbstractContextManager[Receiver]] = WAYS[protocol]
    with way() as receiver:
        served = traced(start, receiver)
        begun = time.time_ns()
        body = {**PROMPT, "temperature": 0.5, "top_p": 0.75, "request_id": "mine"}
        answer = served.post("/v1/completions", body).json()
        ended = time.time_ns()
        received = receiver.one()
    span, said = received.span, received.attributes
    assert (span.name, span.kind) == ("llm_request", Span.SPAN_KIND_SERVER)
    assert span.parent_span_id == b""
    assert span.status.code == Status.STATUS_CODE_UNSET
    assert begun <= span.start_time_unix_nano <= span.end_time_unix_nano <= ended
    latencies = {name: said.pop(name) for name in list(said) if name.startswith("gen_ai.latency.")}
    assert said == {
        "gen_ai.request.id": answer["id"],
        "gen_ai.request.model": MODEL,
        "gen_ai.response.model": MODEL,
        "gen_ai.request.max_tokens": 5,
        "gen_ai.request.temperature": 0.5,
        "gen_ai.request.top_p": 0.75,
        "gen_ai.request.n": 1,
        "gen_ai.usage.num_sequences": 1,
        "gen_ai.usage.prompt_tokens": answer["usage"]["prompt_tokens"],
        "gen_ai.usage.completion_tokens": 5,
        "gen_ai.response.finish_reasons": ["length"],
    }
    names = {name.removeprefix("gen_ai.latency.") for name in latencies}
    in_model = {f"time_in_model_{part}" for part in ("prefill", "decode", "inference")}
    assert names == {"e2e", "time_to_first_token", "time_in_queue", *in_model}
    length = (span.end_time_unix_nano - span.start_time_unix_nano) / 1e9
    assert latencies["gen_ai.latency.e2e"] == pytest.approx(length, abs=1e-6)
    assert 0 < latencies["gen_ai.latency.time_to_first_token"] <= latencies["gen_ai.latency.e2e"]
    assert received.resource["service.name"] == "slipway"


def test_a_stream_is_one_span_as_long_as_it_takes(start: Start, receiver: Receiver) -> None:
    served = traced(start, receiver)
    served.engine.gate.clear()
    served.engine.held = 1
    chunks = served.openai().completions.create(stream=True, n=2, **PROMPT)  # type: ignore[call-overload]
    next(chunks)
    seen = time.time_ns()
    served.engine.gate.set()
    list(chunks)
    received = receiver.one()
    assert received.span.end_time_unix_nano > seen
    assert received.attributes["gen_ai.usage.completion_tokens"] == 10
    assert received.attributes["gen_ai.usage.num_sequences"] == 2
    assert received.attributes["gen_ai.response.finish_reasons"] == ["length"] * 2


def test_a_span_continues_the_trace_of_its_caller(start: Start, receiver: Receiver) -> None:
    served = traced(start, receiver)
    headers = {"traceparent": f"00-{TRACE}-{PARENT}-01", "tracestate": "vendor=state"}
    served.post("/v1/completions", PROMPT, headers=headers)
    span = receiver.one().span
    assert (span.trace_id.hex(), span.parent_span_id.hex()) == (TRACE, PARENT)
    assert span.trace_state == "vendor=state"


def test_what_the_caller_does_not_sample_is_not_sent(start: Start, receiver: Receiver) -> None:
    served = traced(start, receiver)
    unsampled = {"traceparent": f"00-{TRACE}-{PARENT}-00"}
    assert served.post("/v1/completions", PROMPT, headers=unsampled).status_code == 200
    served.post("/v1/completions", PROMPT)
    assert receiver.one().span.trace_id.hex() != TRACE


@pytest.mark.parametrize("header", ["", "00-x-y-01", f"00-{'0' * 32}-{PARENT}-01", "9" * 500])
def test_a_header_that_is_no_parent_begins_a_new_trace(start: Start, receiver: Receiver, header: str) -> None:
    served = traced(start, receiver)
    assert served.post("/v1/completions", PROMPT, headers={"traceparent": header}).status_code == 200
    assert receiver.one().span.parent_span_id == b""


def test_a_request_whose_client_left_is_aborted_and_no_error(start: Start, receiver: Receiver) -> None:
    served = traced(start, receiver)
    served.engine.gate.clear()
    served.engine.held = 2
    with httpx.stream("POST", f"{served.url}/v1/completions", json={**PROMPT, "stream": True}) as answer:
        next(answer.iter_raw())
    received = receiver.one()
    assert received.attributes["gen_ai.response.finish_reasons"] == ["abort"]
    assert 1 <= received.attributes["gen_ai.usage.completion_tokens"] <= 2
    assert received.span.status.code == Status.STATUS_CODE_UNSET


def test_a_request_that_is_aborted_before_its_first_token_has_no_time_of_it(
    start: Start, receiver: Receiver
) -> None:
    served = traced(start, receiver)
    served.engine.gate.clear()
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(f"{served.url}/v1/completions", json=PROMPT, timeout=0.5)
    said = receiver.one().attributes
    assert said["gen_ai.response.finish_reasons"] == ["abort"]
    assert [name for name in said if name.startswith("gen_ai.latency.")] == ["gen_ai.latency.e2e"]


@pytest.mark.parametrize("unfit", [False, True])
def test_only_a_fault_of_the_server_is_an_error(start: Start, receiver: Receiver, unfit: bool) -> None:
    served = traced(start, receiver)
    served.engine.failing, served.engine.unfit = "it broke", unfit
    assert served.post("/v1/completions", PROMPT).status_code == (400 if unfit else 500)
    received = receiver.one()
    assert received.attributes["gen_ai.response.finish_reasons"] == ["error"]
    status = received.span.status
    assert (status.code == Status.STATUS_CODE_ERROR) is not unfit
    assert status.message == ("" if unfit else "it broke")


def test_requests_that_an_engine_took_with_it_are_errors(start: Start, receiver: Receiver) -> None:
    served = traced(start, receiver)
    served.engine.gate.clear()
    served.engine.held = 1
    chunks = iter(served.openai().completions.create(stream=True, **PROMPT))  # type: ignore[call-overload]
    next(chunks)
    served.engine.die()
    with pytest.raises(openai.APIError, match="engine has gone"):
        list(chunks)
    received = receiver.one()
    assert received.span.status.code == Status.STATUS_CODE_ERROR
    assert received.attributes["gen_ai.response.finish_reasons"] == ["error"]
    failures = f'slipway_request_failures_total{{engine="0",model_name="{MODEL}"}} 1.0'
    assert failures in served.get("/metrics").text


def test_the_service_has_the_name_that_the_environment_gives_it(
    start: Start, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_SERVICE_NAME", "assistant")
    traced(start, receiver).post("/v1/completions", PROMPT)
    assert receiver.one().resource["service.name"] == "assistant"


def test_a_receiver_that_hangs_holds_up_nobody_and_loses_spans(
    start: Start, receiver: Receiver, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "2")
    monkeypatch.setenv("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "1")
    served = traced(start, receiver)
    receiver.gate.clear()
    served.post("/v1/completions", PROMPT)
    receiver.wait(lambda: receiver.num_calls == 1)
    for _ in range(4):
        assert served.post("/v1/completions", PROMPT).status_code == 200
    assert "Queue full, dropping Span." in caplog.messages
    receiver.gate.set()
    receiver.wait(lambda: len(receiver.spans) == 3)


@pytest.mark.slow
def test_what_is_left_is_sent_before_the_server_ends(
    tiny_models: Callable[[str], Path], receiver: Receiver
) -> None:
    arguments = ("--otlp-traces-endpoint", receiver.url, "--collect-detailed-traces", "all")
    env = {"OTEL_BSP_SCHEDULE_DELAY": "600000"}
    with live_server(tiny_models("llama"), *arguments, "--served-model-name", MODEL, env=env) as server:
        answer = httpx.post(f"{server.url}/v1/completions", json={**PROMPT, "ignore_eos": True})
        assert answer.status_code == 200
        assert not receiver.spans
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(scaled(20)) == 0
    said = receiver.one().attributes
    forward, execution = (said[f"gen_ai.latency.time_in_model_{part}"] for part in ("forward", "execute"))
    assert 0 < forward < execution < said["gen_ai.latency.e2e"]
    assert 0 < said["gen_ai.latency.time_in_scheduler"] < said["gen_ai.latency.e2e"]
    assert said["gen_ai.latency.time_in_model_inference"] == pytest.approx(
        said["gen_ai.latency.time_in_model_prefill"] + said["gen_ai.latency.time_in_model_decode"]
    )


@pytest.mark.slow
@pytest.mark.parametrize(("part", "told"), [("model", "forward"), ("worker", "execute")])
def test_details_are_those_of_the_parts_that_are_asked_for(
    tiny_models: Callable[[str], Path], receiver: Receiver, part: str, told: str
) -> None:
    arguments = ("--otlp-traces-endpoint", receiver.url, "--collect-detailed-traces", part)
    with live_server(tiny_models("llama"), *arguments, "--served-model-name", MODEL) as server:
        httpx.post(f"{server.url}/v1/completions", json=PROMPT)
        said = receiver.one().attributes
    names = {name.removeprefix("gen_ai.latency.time_in_model_") for name in said}
    assert names & {"forward", "execute"} == {told}


@pytest.mark.slow
def test_a_receiver_that_is_away_holds_up_the_end_for_two_seconds(
    tiny_models: Callable[[str], Path],
) -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))  # taken, and never listened at
        url = f"grpc://127.0.0.1:{nobody.getsockname()[1]}"
        words = ("--otlp-traces-endpoint", url, "--served-model-name", MODEL, "--drain-grace", "0")
        with live_server(tiny_models("llama"), *words) as server:
            assert httpx.post(f"{server.url}/v1/completions", json=PROMPT).status_code == 200
            server.process.send_signal(signal.SIGTERM)
            assert server.process.wait(scaled(10)) == 0
            assert f"Traces are lost: {url}" in server.wait_until_said("Traces are lost")


def refused(*words: str, **environ: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "slipway", "serve", *words, "--port", str(free_port())]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=scaled(60), env=os.environ | environ
    )


@pytest.mark.slow
def test_where_the_packages_are_missing_the_extra_is_named(
    tiny_models: Callable[[str], Path], tmp_path: Path
) -> None:
    (tmp_path / "sitecustomize.py").write_text("import sys; sys.modules['opentelemetry.sdk'] = None")
    path = os.pathsep.join([str(tmp_path), *sys.path])
    words = (str(tiny_models("llama")), "--otlp-traces-endpoint", "http://127.0.0.1:9")
    ended = refused(*words, PYTHONPATH=path)
    assert ended.returncode == exits.MISSING_PACKAGE.code, ended.stderr
    assert "pip install '.[otel]'" in ended.stderr


@pytest.mark.parametrize(
    ("endpoint", "protocol", "words"),
    [
        ("http://h:4318", "http/json", "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL=http/json is no protocol"),
        ("grpc://h:4317", "http/protobuf", "--otlp-traces-endpoint grpc://h:4317 is no address"),
    ],
)
def test_what_cannot_be_sent_is_refused_at_the_start(
    monkeypatch: pytest.MonkeyPatch, endpoint: str, protocol: str, words: str
) -> None:
    from slipway.api.tracing import Tracer

    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", protocol)
    with pytest.raises(exits.Exit) as caught:
        Tracer(endpoint, ())
    assert caught.value.exit_code == exits.BAD_ARGUMENTS
    assert words in caught.value.message


def test_the_end_of_a_request_is_told_once() -> None:
    ended: list[Run] = []
    order = Order("x", [], 1, TranscriptRules(None))
    run = Run(order, EngineClient("nowhere"), ServerMetrics(MODEL, 16), 0.0, MODEL)
    run.ends.append(ended.append)
    run.abort()
    run.abort()
    assert ended == [run]


def test_an_empty_endpoint_asks_for_nothing(start: Start) -> None:
    served = start("--otlp-traces-endpoint", "")
    assert served.post("/v1/completions", PROMPT).status_code == 200
    assert served.front._tracer is None


def test_nothing_that_sends_traces_is_imported_where_nobody_asks() -> None:
    code = "import sys, slipway.api.lifecycle; print({'opentelemetry.sdk', 'grpc'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"
