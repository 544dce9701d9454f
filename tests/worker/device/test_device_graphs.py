"""When graphs are captured, and which steps run as graphs. What they compute is in test_device_engine.py."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from device_runs import SMALL, assert_same
from factory import make_model
from local_engine import LocalEngine, Output
from repeated_graphs import Repeated
from slipway.engine.params import SamplingParams
from slipway.worker.device import worker

GREEDY, SEEDED = SamplingParams(6, temperature=0.0), SamplingParams(4, temperature=0.9, seed=2)
WORK = [([7, 8, 9], GREEDY), ([40, 41], SEEDED)]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model("llama", tmp_path_factory.mktemp("llama"), num_hidden_layers=1)


@pytest.fixture(scope="module")
def expected(model: Path) -> list[Output]:
    with LocalEngine(model, **(SMALL | {"device": "cuda"})) as engine:
        return engine.run(WORK)


@pytest.fixture
def engine(model: Path) -> Iterator[LocalEngine]:
    with LocalEngine(model, **(SMALL | {"device": "cuda"})) as engine:
        yield engine


def test_a_start_captures_where_the_largest_step_left_its_logits(
    engine: LocalEngine, expected: list[Output]
) -> None:
    repeated = Repeated.into(engine.worker, [1, 2], 64, ready=False)
    engine.worker.largest_step()
    engine.worker.warm_up()
    assert sorted(key.size for key in repeated.forwards) == [1, 2]
    assert_same(engine.run(WORK), expected)
    assert repeated.replayed


def test_what_steps_miss_is_captured_first_and_when_nothing_runs(
    engine: LocalEngine, expected: list[Output]
) -> None:
    repeated = Repeated.into(engine.worker, [1, 2, 4], 64, ready=False)
    assert_same(engine.run(WORK), expected)
    assert not repeated.steps
    assert engine.worker.idle()
    assert [key.size for key in repeated.steps] == [2]  # most steps were of both requests
    while engine.worker.idle():
        pass
    assert sorted(key.size for key in repeated.forwards) == [1, 2, 4]
    repeated.replayed = 0
    assert_same(engine.run(WORK), expected)
    assert repeated.replayed > 4


def test_a_server_that_never_rests_gets_its_graphs_too(
    engine: LocalEngine, expected: list[Output], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "PATIENCE", 2)
    repeated = Repeated.into(engine.worker, [2], 64, ready=False)
    assert_same(engine.run(WORK), expected)
    assert [key.max_length for key in repeated.forwards] == [64]
    assert repeated.replayed


def test_contexts_beyond_the_first_length_have_graphs_as_well(
    engine: LocalEngine, expected: list[Output]
) -> None:
    repeated = Repeated.into(engine.worker, [2], 6, 64)
    assert {key.max_length for key in repeated.forwards} == {6}
    for _ in range(2):
        assert_same(engine.run(WORK), expected)
        while engine.worker.idle():
            pass
    assert {key.max_length for key in repeated.forwards} == {6, 64}
