"""N-grams on the device: the CPU's drafts, and the output of a worker that guesses nothing."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from counted import Counted
from device_runs import SMALL, assert_same
from factory import make_model
from judged import Judged
from local_engine import LocalEngine, Output
from repeated_graphs import Repeated
from slipway.engine.grammar import Grammars
from slipway.engine.params import SamplingParams

VOCAB = 512
NGRAMS = {"num_drafts": 3, "prompt_lookup_min": 1, "prompt_lookup_max": 3, "max_num_batched_tokens": 16}
FEW = (5, 9, 14)
"""Tokens that requests may draw: so few that n-grams come again."""
WORK = [
    ([5, 9, 14, 5, 9, 14, 5], SamplingParams(8, temperature=0.0, allowed_token_ids=FEW, num_logprobs=2)),
    ([9, 14] * 4, SamplingParams(9, temperature=1.0, allowed_token_ids=FEW, seed=11, num_logprobs=0)),
]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model("llama", tmp_path_factory.mktemp("llama"), num_hidden_layers=1)


@pytest.fixture(scope="module")
def expected(model: Path) -> list[Output]:
    with LocalEngine(model, **(SMALL | {"device": "cuda"})) as engine:
        return engine.run(WORK)


def going_on(model: Path, **settings: object) -> LocalEngine:
    """An engine on the device that goes on guessing, whatever becomes of the drafts."""
    engine = LocalEngine(model, **(SMALL | NGRAMS | {"device": "cuda"} | settings))
    engine.core.scheduler.guessing = None
    return engine


def test_drafts_are_the_cpus_and_change_nothing(model: Path, expected: list[Output]) -> None:
    with going_on(model, overlap=False) as engine:
        judged = Judged(engine)
        assert_same(engine.run(WORK), expected)
    with going_on(model, device="cpu") as engine:
        counted = Counted(engine)
        engine.run(WORK)
    assert (judged.accepted, judged.rejected) == (counted.accepted, counted.rejected)
    assert judged.accepted >= 3
    assert judged.rejected >= 3


@pytest.mark.slow
def test_graphs_look_up_and_verify_drafts(model: Path, expected: list[Output]) -> None:
    with going_on(model) as engine:
        judged = Judged(engine)
        repeated = Repeated.into(engine.worker, [4], 64)
        assert_same(engine.run(WORK), expected)
    assert repeated.replayed
    assert judged.accepted >= 3
    assert judged.rejected >= 3


@pytest.mark.slow
def test_preempted_requests_go_on_guessing(model: Path, expected: list[Output]) -> None:
    with going_on(model, num_blocks=3, max_model_len=24) as engine:
        judged = Judged(engine)
        found = engine.run(WORK)
    assert sum(one.num_preemptions for one in found) > 0
    assert_same(found, expected)
    assert judged.accepted >= 3


class Halves:
    """A matcher that allows every second token, by the last one and their number."""

    def __init__(self) -> None:
        self.tokens: list[int] = []

    def advance(self, tokens: Sequence[int]) -> int | None:
        for token in tokens:
            assert self.allowed(self.tokens)[token], "a token that was forbidden"
            self.tokens.append(token)
        return None

    def forced(self) -> list[int]:
        return []

    def masks(self, drafts: Sequence[int]) -> NDArray[np.uint32]:
        rows = [self.allowed([*self.tokens, *drafts[:n]]) for n in range(len(drafts) + 1)]
        return np.packbits(np.stack(rows), axis=1, bitorder="little").view(np.uint32)

    @staticmethod
    def allowed(tokens: list[int]) -> NDArray[np.bool_]:
        last = tokens[-1] if tokens else 0
        return (np.arange(VOCAB) + last + len(tokens)) % 2 == 0


@pytest.mark.slow
def test_drafts_within_masks_change_nothing(model: Path) -> None:
    outputs, judged = [], []
    for settings in ({"num_drafts": 0}, {}, {"overlap": False}):
        with going_on(model, **settings) as engine:
            engine.core.grammars = Grammars(lambda message: Halves())
            judged.append(Judged(engine))
            names = [engine.add(*one, grammar=name) for one, name in zip(WORK, ("halves", ""), strict=True)]
            engine.finish()
            outputs.append([engine.output(name) for name in names])
    assert_same(outputs[1], outputs[0])
    assert_same(outputs[2], outputs[0])
    assert judged[0].accepted == judged[0].rejected == 0
    assert min(judged[1].accepted, judged[2].accepted) >= 2
    assert min(judged[1].rejected, judged[2].rejected) >= 4


def test_a_step_is_timed_from_the_end_of_the_one_before(model: Path, expected: list[Output]) -> None:
    """What drafts cost is learned from steps' times: of two under way each counts its own."""
    with LocalEngine(model, **(SMALL | NGRAMS | {"device": "cuda"})) as engine:
        guessing = engine.core.scheduler.guessing
        assert guessing is not None
        seconds: list[float] = []
        took = guessing.took

        def noted(rows: int, time: float, verified: int, proposing: float) -> None:
            seconds.append(time)
            took(rows, time, verified, proposing)

        guessing.took = noted  # type: ignore[method-assign]
        begun = time.monotonic()
        assert_same(engine.run(WORK), expected)
        assert len(seconds) > 3
        assert sum(seconds) < time.monotonic() - begun
