"""The estimate that an engine makes of itself when it starts, and what a server tells of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from planned_needs import configured, needs_of

from factory import make_model
from live_server import LiveServer, live_server
from local_engine import LocalHub
from slipway.engine.messages import FromEngine, Loading, Memory
from slipway.engine.start import Start
from slipway.fit import Device, Estimate, at_start, estimate
from slipway.machine import whole_memory
from slipway_kernels.cpu import reserved
from slipway_kernels.cpu.memory import Memory as Mapping

WORDS = ("--max-model-len", "512", "--num-gpu-blocks-override", "64", "--max-num-seqs", "4")


class Listening(LocalHub):
    """Keeps what a start says on its way."""

    def __init__(self) -> None:
        super().__init__()
        self.loading: list[Loading] = []

    def broadcast(self, message: FromEngine) -> None:
        assert isinstance(message, Loading)
        self.loading.append(message)


def estimated(model: Path, *arguments: str) -> Estimate:
    """What `slipway fit` says of it."""
    return estimate(needs_of(model, *arguments, device="cpu"), Device("here", whole_memory()))


def start(model: Path, *arguments: str) -> tuple[Memory | None, list[Loading]]:
    """What an engine says of memory once it serves, and on its way there."""
    hub = Listening()
    started = Start.of(configured(model, *WORDS, *arguments, device="cpu"), hub)  # type: ignore[arg-type]
    started.worker.close()
    return started.ready().memory, hub.loading


@pytest.mark.parametrize("ranks", [1, 2])
def test_an_engine_estimates_of_itself_what_fit_does(demo_model: Path, ranks: int):
    arguments = ("--tensor-parallel-size", str(ranks))
    found = estimated(demo_model, *WORDS, *arguments)
    told, _ = start(demo_model, *arguments)
    assert told == Memory(
        capacity=whole_memory(),
        estimated=found.total,
        at_rest=found.at_rest,
        kv_tokens=found.kv_tokens,
        max_model_len=found.max_model_len,
    )


def test_an_estimate_takes_nothing_of_what_is_reserved_for_the_weights(tmp_path: Path):
    model = make_model("llama", tmp_path, head="ForSequenceClassification", num_labels=3)
    with reserved(64 << 20):
        before = Mapping(4096, shared=True)
        assert estimated(model, *WORDS, "--task", "auto").total
        after = Mapping(4096, shared=True)
    assert after.address == before.address + 4096


def test_it_is_told_from_the_first_weights_on(demo_model: Path):
    told, loading = start(demo_model)
    assert loading[0] == Loading("load", 0, 0)  # before the files are opened
    assert {one.memory for one in loading if one.total} == {told}


def test_what_is_too_large_for_the_machine_is_told_and_tried(
    demo_model: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setattr(at_start, "whole_memory", lambda: 64 << 20)
    told, _ = start(demo_model)
    assert told is not None
    assert told.short == "weights"
    assert "By the estimate it does not fit: Weights of 0." in caplog.text


@pytest.mark.torch
def test_of_what_transformers_runs_nothing_is_told(tiny_models, caplog: pytest.LogCaptureFixture):
    told, _ = start(tiny_models("llama"), "--model-impl", "transformers", "--block-size", "16")
    assert told is None
    assert "estimate" not in caplog.text


def test_a_fault_of_the_estimate_prevents_no_start(
    demo_model: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setattr(at_start, "estimate", lambda needs, device: 1 / 0)
    told, _ = start(demo_model)
    assert told is None
    assert "could not be estimated" in caplog.text
    assert "ZeroDivisionError" in caplog.text


def measured(server: LiveServer) -> dict[str, int]:
    """`memory` of /ready, once the server has measured."""
    for _ in range(100):
        status, body = server.get("/ready")
        memory: dict[str, int] = json.loads(body)["memory"]
        if status == 200 and "measured" in memory:
            return memory
        server.wait(0.1)
    raise AssertionError(f"nothing was measured: {body}")


@pytest.mark.parametrize("processes", ["1", "4"])
def test_a_server_tells_what_it_estimated_and_what_it_takes(demo_model: Path, processes: str):
    with live_server(demo_model, *WORDS, "--api-server-count", processes, forked=False) as server:
        memory = measured(server)
        metrics = server.metrics()
    found = estimated(demo_model, *WORDS, "--api-server-count", processes)
    assert memory["estimated"] == found.total
    assert memory["at_rest"] == found.at_rest
    assert memory["measured"] == pytest.approx(found.at_rest, rel=0.05)
    # Each process that answers measures by itself.
    assert metrics["slipway_memory_measured_bytes"] == pytest.approx(memory["measured"], rel=0.01)
    assert metrics["slipway_memory_estimated_bytes"] == found.total + found.at_rest  # two series
