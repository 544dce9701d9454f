"""Traces of steps: begun and ended by calls, loadable by chrome://tracing and Perfetto."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from device_runs import SMALL
from local_engine import LocalEngine
from slipway.engine import profile
from slipway.engine.params import SamplingParams
from slipway.engine.profile import Profiler, StepRecorder, profiled

WORK = [([5] * 12, SamplingParams(3, temperature=0.0)), ([7, 8], SamplingParams(3, temperature=0.0))]
Models = Callable[[str], Path]


def traced(model: Path, folder: Path, **settings: object) -> list[dict[str, Any]]:
    """The events of a trace of some work."""
    with LocalEngine(model, profile_folder=str(folder), **settings) as engine:
        engine.run(WORK)
        assert engine.core._answer("start_profile", []) == "ok"
        engine.run(WORK)
        verdict, path = engine.core._answer("stop_profile", []).split(" ")
        assert verdict == "ok"
        assert Path(path).parent == folder
        engine.run(WORK)
        assert engine.core._answer("start_profile", []) == "ok"
        assert engine.core._answer("stop_profile", []) != f"ok {path}"
    events: list[dict[str, Any]] = json.loads(Path(path).read_text())["traceEvents"]
    return events


def test_steps_show_their_requests_and_tokens_and_where_their_time_goes(
    tiny_models: Models, tmp_path: Path
) -> None:
    events = traced(tiny_models("llama"), tmp_path / "traces", max_num_batched_tokens=8, max_num_seqs=4)
    begins = [event for event in events if event["ph"] == "b"]
    ends = {event["id"]: event["ts"] for event in events if event["ph"] == "e"}
    assert sum(event["args"]["tokens"] for event in begins) == 12 + 2 + 2 * 2
    assert {event["args"]["requests"] for event in begins} == {1, 2}
    assert all(ends[event["id"]] > event["ts"] for event in begins)
    spans = Counter(event["name"] for event in events if event["ph"] == "X")
    assert spans.keys() == {"schedule", "forward and draw"}
    assert spans["forward and draw"] == len(begins)
    assert all(event["dur"] >= 0 for event in events if event["ph"] == "X")
    assert {event["tid"] for event in events} == {event["tid"] for event in events if event["ph"] == "M"}


def test_steps_in_a_thread_of_their_own_are_shown_there(tiny_models: Models, tmp_path: Path) -> None:
    events = traced(tiny_models("llama"), tmp_path, overlap=True)
    threads = {
        name: {e["tid"] for e in events if e["name"] == name} for name in ("schedule", "forward and draw")
    }
    assert threads["schedule"].isdisjoint(threads["forward and draw"])


@pytest.mark.slow
def test_on_a_device_torch_records(tiny_models: Models, tmp_path: Path) -> None:
    events = traced(tiny_models("llama"), tmp_path, **(SMALL | {"device": "cuda"}))
    names = {event["name"] for event in events}
    assert {"schedule", "forward", "draw", "wait for results"} <= names
    assert any(name.startswith("step of ") for name in names)
    assert any(name.startswith("aten::") for name in names)


def test_a_call_out_of_turn_is_told_and_changes_nothing(tmp_path: Path) -> None:
    profiler = Profiler(tmp_path / "traces", StepRecorder())
    assert profiled(profiler, "stop_profile") == "No trace is being recorded: start one first."
    assert profiled(profiler, "start_profile") == "ok"
    assert profiled(profiler, "start_profile") == "A trace is being recorded already: stop it first."
    assert profiled(profiler, "stop_profile").startswith("ok ")


def test_a_folder_that_cannot_be_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    answer = profiled(Profiler(tmp_path / "file", StepRecorder()), "start_profile")
    assert answer.startswith("failed: no trace was made: ")


def test_a_trace_that_nobody_ends_keeps_a_bounded_number_of_events(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(profile, "MOST_EVENTS", 10)
    profiler = Profiler(tmp_path, StepRecorder())
    profiler.start()
    for _ in range(20):
        profiler.step(1.0, 2.0, 1, 1)
    trace = json.loads(profiler.stop().read_text())
    assert len([event for event in trace["traceEvents"] if event["ph"] != "M"]) == 10
    assert trace["otherData"] == {"events left out": 30}


def test_an_engine_without_a_folder_makes_no_traces(tiny_models: Models) -> None:
    with LocalEngine(tiny_models("llama")) as engine:
        assert engine.core._answer("start_profile", []) == "unknown method 'start_profile'"
