"""Masks: what a matcher forbids is not drawn, its drafts are verified within it, and it fails alone."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from e2e.ground.patience import scaled
from engine_bench import bench, expected
from numpy.typing import NDArray

from counted import Counted, Knowing
from local_engine import LocalEngine, Output
from slipway.engine.grammar import Grammars
from slipway.engine.matcher import Matcher
from slipway.engine.messages import AddRequest
from slipway.engine.params import SamplingParams
from slipway.engine.replay import read_record, replay
from slipway.engine.request import FIRST_MASK_SECONDS
from slipway.engine.scheduler import DRAFT_MASK_SECONDS, MASK_SECONDS, MAX_FORCED
from slipway.engine.start import Start
from slipway_kernels.sampling import reference

VOCAB = 512
WORK = [
    ([5, 6, 7] * 6, SamplingParams(40, temperature=0.0, num_logprobs=VOCAB)),
    ([90, 91] * 9, SamplingParams(40, temperature=0.8, seed=4, num_logprobs=VOCAB)),
    ([17] * 12, SamplingParams(40, temperature=0.0, num_logprobs=VOCAB)),
]
BASE: dict[str, object] = {
    "dtype": "float32",
    "max_model_len": 128,
    "num_blocks": 100,
    "max_logprobs": VOCAB,
    "max_num_partial_prefills": 4,
}
DRAFTS: dict[str, object] = {"num_drafts": 4, "prompt_lookup_min": 1, "prompt_lookup_max": 3}


class Turning:
    """Allows a third of the vocabulary, which changes with the last token and their number."""

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
        return np.stack([bits(self.allowed([*self.tokens, *drafts[:n]])) for n in range(len(drafts) + 1)])

    @staticmethod
    def allowed(tokens: list[int]) -> NDArray[np.bool_]:
        last = tokens[-1] if tokens else 0
        return (np.arange(VOCAB) + last + 5 * len(tokens)) % 3 == 0


def bits(allowed: NDArray[np.bool_]) -> NDArray[np.uint32]:
    return np.packbits(allowed, bitorder="little").view(np.uint32)


class Failing(Turning):
    """Raises in one place, for its third time or so."""

    def __init__(self, place: str) -> None:
        super().__init__()
        self.place = place

    def advance(self, tokens: Sequence[int]) -> int | None:
        if self.place == "advance" and len(self.tokens) > 2:
            raise KeyError("advance")
        return super().advance(tokens)

    def masks(self, drafts: Sequence[int]) -> NDArray[np.uint32]:
        if self.place == "masks" and len(self.tokens) > 2:
            raise KeyError("masks")
        return super().masks(drafts)


def make(message: AddRequest) -> Matcher:
    if message.grammar == "unreadable":
        raise ValueError("no such grammar")
    return Turning() if message.grammar == "turning" else Failing(message.grammar)


def served(model: Path, **settings: object) -> LocalEngine:
    engine = LocalEngine(model, **(BASE | settings))
    engine.core.grammars = Grammars(make)
    return engine


def run(engine: LocalEngine, grammars: Sequence[str]) -> list[Output]:
    names = [engine.add(*one, grammar=grammar) for one, grammar in zip(WORK, grammars, strict=True)]
    engine.finish()
    return [engine.output(name) for name in names]


@pytest.fixture(scope="module")
def plain(tiny_models: Callable[[str], Path]) -> list[Output]:
    """The first two within masks, the third without, no drafts."""
    with served(tiny_models("llama")) as engine:
        return run(engine, ["turning", "turning", ""])


def test_each_token_is_the_references_choice_within_its_mask(plain: list[Output]) -> None:
    for (prompt, params), output in zip(WORK[:2], plain, strict=False):
        asked = reference.Sampling(temperature=params.temperature, seed=params.seed)
        for place, token in enumerate(output.tokens):
            logits = np.full(VOCAB, -np.inf, np.float32)
            for one, logprob in output.logprobs[place].top:
                logits[one] = logprob
            history = (*prompt, *output.tokens[:place])
            mask = bits(Turning.allowed(output.tokens[:place]))
            assert token == reference.sample_row(asked, logits, history, len(prompt), mask=mask).token
    free = plain[2]
    assert all(one.rank == 1 for one in free.logprobs)
    assert any(one.rank > 1 for one in plain[0].logprobs)


@pytest.mark.parametrize("knows", [False, True], ids=["n-grams", "a proposer that knows"])
@pytest.mark.parametrize(
    "axis",
    [
        {},
        {"overlap": True},
        {"max_num_batched_tokens": 16},
        {"num_blocks": 8, "overlap": True},
        {"num_blocks": 8, "enable_prefix_caching": False},
    ],
    ids=str,
)
def test_drafts_change_nothing_within_masks(
    tiny_models: Callable[[str], Path], plain: list[Output], axis: dict[str, object], knows: bool
) -> None:
    with served(tiny_models("llama"), **(DRAFTS | axis)) as engine:
        counted = Counted(engine)
        engine.core.scheduler.guessing = None  # they go on, however few are accepted
        if knows:
            texts = [prompt + one.tokens for (prompt, _), one in zip(WORK, plain, strict=True)]
            engine.worker.proposer = Knowing(texts, 4, rate=0.3)  # type: ignore[attr-defined]
        drafted = run(engine, ["turning", "turning", ""])
    assert [(one.tokens, one.logprobs) for one in drafted] == [(one.tokens, one.logprobs) for one in plain]
    assert counted.rejected > 20
    if knows:
        assert counted.accepted > 40


@pytest.mark.parametrize("overlap", [False, True])
def test_a_run_with_drafts_and_masks_replays(
    tiny_models: Callable[[str], Path], tmp_path: Path, plain: list[Output], overlap: bool
) -> None:
    record = tmp_path / "run.record"
    with served(tiny_models("llama"), **DRAFTS, overlap=overlap, record=str(record)) as engine:
        assert [one.tokens for one in run(engine, ["turning", "turning", ""])] == [
            one.tokens for one in plain
        ]
    config, steps = read_record(record)
    assert sum(bool(masks) for _, masks, _ in steps) > 10
    assert any(rows.shape[0] > 1 for _, masks, _ in steps for rows in masks.values())
    assert replay(Start.of(config).worker, steps) is None


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("place", ["advance", "masks", "unreadable"])
def test_a_matcher_that_fails_ends_its_request_and_no_other(
    tiny_models: Callable[[str], Path], plain: list[Output], place: str, overlap: bool
) -> None:
    with served(tiny_models("llama"), **DRAFTS, overlap=overlap) as engine:
        broken, masked, free = run(engine, [place, "turning", ""])
    assert broken.finish_reason == "error"
    assert broken.tokens == plain[0].tokens[: len(broken.tokens)]
    assert len(broken.tokens) < 10
    assert (masked.tokens, free.tokens) == (plain[1].tokens, plain[2].tokens)


class Following:
    """Notes how much it knows whenever it is asked."""

    def __init__(self) -> None:
        self.known: list[int] = []
        self.asked: list[int] = []

    def advance(self, tokens: Sequence[int]) -> int | None:
        self.known += tokens
        return None

    def forced(self) -> list[int]:
        return []

    def masks(self, drafts: Sequence[int]) -> NDArray[np.uint32]:
        self.asked.append(len(self.known))
        return np.full((1 + len(drafts), 4), len(self.known), np.uint32)


@pytest.mark.parametrize("overlap", [False, True])
def test_a_matcher_knows_all_tokens_before_each_draw_and_only_its_steps_have_masks(overlap: bool) -> None:
    with bench(overlap=overlap, num_pages=400, prefix_caching=False, num_drafts=3) as b:
        matcher = Following()
        b.core.grammars = Grammars(lambda message: matcher)
        b.add("free", 5, 4)
        b.run()
        assert b.masks == [None] * len(b.masks)
        b.add("masked", 40, 12, grammar="any")
        b.add("free again", [900] * 5, 30)
        b.run()
        told = len(matcher.known)  # nothing of the step that ends the request
        assert matcher.known == expected(40, 12)[:told]
        assert told >= 8
        drawn = [masks for masks in b.masks if masks]
        assert [masks[place][0, 0] for masks in drawn for place in masks] == matcher.asked
        assert sorted(set(matcher.asked)) == matcher.asked
        assert len(b.core.grammars._matchers) == len(b.core.grammars._drafts) == 0
        assert b.masks[-1] is None


def test_a_request_that_leaves_while_its_matcher_is_made_is_not_told_to_wait_any_more() -> None:
    made = threading.Event()

    def make_slowly(message: AddRequest) -> Matcher:
        made.wait(scaled(10))
        return Following()

    with bench() as b:
        b.core.grammars = Grammars(make_slowly)
        b.add("gone", 5, 4, grammar="any")
        b.turn()
        b.turn()
        assert b.hub.stats[-1].num_waiting == 1
        b.abort("gone")
        b.run()
        assert b.hub.stats[-1].num_waiting == 0
        made.set()


class Clock:
    """Seconds of a processor that masks have taken."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Slow:
    """Forces all that the bench's worker draws; each mask takes time."""

    def __init__(self, clock: Clock, seconds: float, prompt: int) -> None:
        self.clock, self.seconds, self.place = clock, seconds, prompt
        self.num_asked = 0

    def advance(self, tokens: Sequence[int]) -> int | None:
        self.place += len(tokens)
        return None

    def forced(self) -> list[int]:
        self.num_asked += 1
        return list(range(self.place, self.place + 500))

    def masks(self, drafts: Sequence[int]) -> NDArray[np.uint32]:
        self.clock.now += self.seconds * (1 + len(drafts))
        return np.full((1 + len(drafts), 4), 0xFFFFFFFF, np.uint32)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("slipway.engine.grammar.time.thread_time", clock)
    return clock


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("seconds", [0.07, 0.004])
def test_slow_masks_share_a_bounded_time_of_each_step(overlap: bool, seconds: float, clock: Clock) -> None:
    limits = {"token_budget": 600, "max_requests": 40, "num_pages": 4000, "forced": True}
    with bench(**limits, overlap=overlap, prefix_caching=False) as b:
        b.core.grammars = Grammars(lambda message: Slow(clock, seconds, len(message.prompt_token_ids)))
        for number in range(30):
            b.add(f"slow {number}", 5, 30, grammar="slow")
        b.add("free", 5, 60)
        longest, before, num_steps = 0.0, 0.0, 0
        while b.hub.inbox or b.core.has_work:
            b.turn()
            longest, before = max(longest, clock.now - before), clock.now
            if not num_steps and "free" in b.hub.deltas and b.hub.deltas["free"][-1].finish_reason:
                num_steps = b.core.news.num_steps
        # Starting requests are of unknown slowness: a step begins so many that a mask's usual time fits.
        first = MASK_SECONDS / FIRST_MASK_SECONDS * seconds
        assert longest <= first + MASK_SECONDS + DRAFT_MASK_SECONDS + seconds
        assert 60 <= num_steps <= 66, "others get a token in each step"
        for number in range(30):
            assert b.tokens(f"slow {number}") == expected(5, 30)


def test_a_step_verifies_some_dozens_of_forced_tokens(clock: Clock) -> None:
    with bench(token_budget=600, num_pages=4000, forced=True) as b:
        b.core.grammars = Grammars(lambda message: Slow(clock, 0.0, len(message.prompt_token_ids)))
        b.add("quick", 5, 300, grammar="quick")
        b.run()
        assert b.tokens("quick") == expected(5, 300)
        assert max(max(plan.num_drafts) for plan in b.plans) == MAX_FORCED


def test_nobody_asks_what_is_forced_where_plans_name_no_drafts(clock: Clock) -> None:
    with bench() as b:
        matcher = Slow(clock, 0.0, 5)
        b.core.grammars = Grammars(lambda message: matcher)
        b.add("masked", 5, 9, grammar="any")
        b.run()
        assert b.tokens("masked") == expected(5, 9)
        assert matcher.num_asked == 0
