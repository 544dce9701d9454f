"""Drafts in the slots change how many steps an output takes, and nothing else."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch

from device_runs import SMALL, assert_same
from factory import make_model
from local_engine import LocalEngine, Output
from repeated_graphs import Repeated
from slipway.engine.params import SamplingParams
from slipway.engine.plan import Masks, SlotStart, StepOutput, StepPlan
from slipway.worker.device.proposer import DeviceProposer
from slipway.worker.device.worker import DeviceWorker

MOST = 3
DRAFTING = SMALL | {"device": "cuda", "num_drafts": MOST, "max_num_batched_tokens": 16}
PROMPTS = [[5, 9, 14], [21, 8, 3, 77, 60, 31, 18, 44, 12], [200]]
PARAMS = {
    "greedy": SamplingParams(7, temperature=0.0, num_logprobs=2),
    "seeded": SamplingParams(7, temperature=1.5, top_k=60, seed=11, num_logprobs=0),
    "edited": SamplingParams(
        7,
        temperature=1.3,
        seed=5,
        repetition_penalty=1.4,
        presence_penalty=0.7,
        min_tokens=3,
        stop_token_ids=tuple(range(0, 500, 2)),
        bad_words=((33,), (7, 8)),
    ),
}
WORK = list(zip(PROMPTS, PARAMS.values(), strict=True))


@dataclass
class Proposing:
    """A worker whose slots get drafts after each draw, as a proposer writes them on the device.

    Of what a request will give the next tokens are drafted, in some positions wrong. All is decided by what
    lies in the slot, so that steps may run ahead.
    """

    worker: DeviceWorker
    outputs: list[list[int]]
    """What each request gives without drafts, prompt included."""
    num_drafts: int = 0
    num_tokens: int = 0
    num_draws: int = 0

    def launch(self, plan: StepPlan) -> None:
        self._plan = plan
        self.worker.launch(plan)

    def draw(self, masks: Masks | None = None) -> None:
        self.worker.draw(masks)
        state = self.worker._state
        for slot, draws in zip(self._plan.slots, self._plan.draws, strict=True):
            known = state.tokens[slot, : int(state.num_tokens[slot])].tolist()
            whole = next((one for one in self.outputs if one[: len(known)] == known), known)
            drafts = whole[len(known) : len(known) + len(known) % (MOST + 1)]
            if len(known) % 2 and drafts:
                drafts[-1] = (drafts[-1] + 1) % 500
            if draws:
                state.tokens[slot, len(known) : len(known) + len(drafts)] = torch.tensor(
                    drafts, dtype=torch.int32
                )
                state.num_drafts[slot] = len(drafts)
                self.num_drafts += len(drafts)

    def collect(self) -> StepOutput:
        output = self.worker.collect()
        self.num_tokens += sum(map(len, output.tokens))
        self.num_draws += sum(map(bool, output.tokens))
        return output

    def close(self) -> None:
        self.worker.close()


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model("llama", tmp_path_factory.mktemp("llama"), num_hidden_layers=2)


@pytest.fixture(scope="module")
def expected(model: Path) -> list[Output]:
    with LocalEngine(model, **(SMALL | {"device": "cuda"})) as engine:
        return engine.run(WORK)


@pytest.fixture
def engine(model: Path) -> Iterator[Callable[..., LocalEngine]]:
    """Engines that plan drafts, as many as they may, and propose none of their own."""
    opened: list[LocalEngine] = []

    def make(**settings: object) -> LocalEngine:
        one = LocalEngine(model, **(DRAFTING | settings))
        one.core.scheduler.guessing = None
        one.worker._proposer = DeviceProposer()  # type: ignore[attr-defined]
        opened.append(one)
        return one

    yield make
    for one in opened:
        one.core.executor.close()


def proposing(engine: LocalEngine, expected: list[Output]) -> Proposing:
    whole = [prompt + one.tokens for (prompt, _), one in zip(WORK, expected, strict=True)]
    proposer = Proposing(engine.worker, whole)
    engine.core.executor._worker = proposer
    return proposer


@pytest.mark.parametrize("overlap", [True, False])
def test_output_with_drafts_is_output_without(
    engine: Callable[..., LocalEngine], expected: list[Output], overlap: bool
) -> None:
    drafting = engine(overlap=overlap)
    proposer = proposing(drafting, expected)
    assert_same(drafting.run(WORK), expected)
    accepted = proposer.num_tokens - proposer.num_draws
    assert accepted >= 4
    assert proposer.num_drafts - accepted >= 4


def test_graphs_verify_drafts_as_well(engine: Callable[..., LocalEngine], expected: list[Output]) -> None:
    drafting = engine()
    proposing(drafting, expected)
    repeated = Repeated.into(drafting.worker, [1, 2, 4], 64, eager=False)
    repeated.replayed = 0
    assert_same(drafting.run(WORK), expected)
    assert {key.each for key in repeated.decodes} == {1, 1 + MOST}
    assert repeated.replayed


class Stepped:
    """Steps of one request, given by hand."""

    def __init__(self, engine: LocalEngine) -> None:
        self.worker = engine.worker
        self.state = self.worker._state
        self.vocab = engine.start.plan.route.vocab

    def start(self, tokens: list[int], params: SamplingParams, *, masked: bool = False) -> None:
        self.begin = [SlotStart(0, tokens, len(tokens), 0, params, 1, masked)]
        self.known, self.pages = len(tokens), 0

    def propose(self, drafts: list[int]) -> None:
        known = int(self.state.num_tokens[0])
        self.state.tokens[0, known : known + len(drafts)] = torch.tensor(drafts, dtype=torch.int32)
        self.state.num_drafts[0] = len(drafts)

    def step(self, num_new: int, num_drafts: int = 0, masks: Masks | None = None) -> StepOutput:
        from slipway.engine.plan import PageGrant

        length = int(self.state.num_computed[0]) * (not self.begin) + num_new
        pages = list(range(self.pages, -(-length // 8)))
        grants = [PageGrant(0, 0, self.pages, pages)] if pages else []
        self.pages += len(pages)
        self.worker.launch(StepPlan(self.begin, grants, [0], [num_new], [num_drafts], [True], [length]))
        self.begin = []
        self.worker.draw(masks)
        return self.worker.collect()


@pytest.fixture
def stepped(engine: Callable[..., LocalEngine]) -> Stepped:
    return Stepped(engine())


def mask(vocab: int, *rows: range | list[int]) -> np.ndarray:
    bits = np.zeros((len(rows), -(-vocab // 32) * 32), np.uint8)
    for row, tokens in zip(bits, rows, strict=True):
        row[list(tokens)] = 1
    return np.packbits(bits, axis=1, bitorder="little").view(np.uint32)


def test_each_row_has_a_mask_of_its_own_and_drafts_are_told(stepped: Stepped) -> None:
    stepped.start([5, 9, 14], SamplingParams(20, temperature=0.0), masked=True)
    only = [[301], [302], [303], [304]]
    first = stepped.step(3, masks={0: mask(stepped.vocab, [300])})
    assert (first.tokens, first.drafts) == ([[300]], {0: []})
    stepped.propose([301, 302, 7])
    second = stepped.step(1 + MOST, MOST, {0: mask(stepped.vocab, *only)})
    assert second.tokens == [[301, 302, 303]]
    free = stepped.step(1)
    stepped.start([5, 9, 14, 300, 301, 302, 303], SamplingParams(20, temperature=0.0))
    assert stepped.step(7).tokens == free.tokens


def test_a_plan_may_allow_more_drafts_than_there_are_and_fewer(stepped: Stepped) -> None:
    greedy = SamplingParams(20, temperature=0.0)
    stepped.start([5, 9, 14], greedy)
    tokens = [stepped.step(3).tokens[0][0], *(stepped.step(1).tokens[0][0] for _ in range(5))]
    stepped.start([5, 9, 14], greedy)
    assert stepped.step(3).tokens == [tokens[:1]]
    stepped.propose(tokens[1:2])
    assert stepped.step(1 + MOST, MOST).tokens == [tokens[1:3]]
    stepped.propose(tokens[3:6])
    assert stepped.step(2, 1).tokens == [tokens[3:5]]
    assert stepped.step(1 + MOST, MOST).tokens == [tokens[5:6]]  # what was left is not verified later
