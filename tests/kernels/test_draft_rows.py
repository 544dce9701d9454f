"""What a step makes of drafts: the tokens, log-probabilities and state that single draws would have given."""

from __future__ import annotations

import random
from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from toy import GREEDY, Server, Toy

from slipway_kernels.cpu import ExternalProgram, PageMemory, Slots
from slipway_kernels.sampling import reference

VOCAB, MAX_LEN, SLOTS, TOP = 37, 24, 4, 2
WORDS = (VOCAB + 31) // 32


@dataclass(frozen=True)
class Turn:
    """One request of a step: what its slot holds, and what the plan grants of it."""

    tokens: list[int]
    num_prompt: int
    drafts: list[int]
    granted_drafts: int
    params: SimpleNamespace
    masked: bool
    seed: int
    """Of its logits and its mask."""

    @property
    def num_verified(self) -> int:
        return max(0, min(len(self.drafts), self.granted_drafts, MAX_LEN - 1 - len(self.tokens)))

    def logits(self) -> np.ndarray:
        """[rows that draw, vocab]: mostly what the draft says, rarely nothing that can be drawn."""
        rng = np.random.default_rng(self.seed)
        rows = rng.normal(size=(1 + self.num_verified, VOCAB)) * 2
        for row, draft in enumerate(self.drafts[: self.num_verified]):
            rows[row, draft] += rng.choice([0, 12])
        if rng.random() < 0.2:
            rows[rng.integers(len(rows)), 3] = np.nan
        return rows.astype(np.float32)

    def mask(self) -> np.ndarray | None:
        bits = np.random.default_rng(self.seed + 1).integers(0, 2**32, (1 + self.granted_drafts, WORDS))
        return bits.astype(np.uint32) if self.masked else None

    def sampling(self) -> reference.Sampling:
        p = self.params
        return reference.Sampling(
            temperature=p.temperature, top_k=p.top_k, frequency_penalty=p.frequency_penalty,
            repetition_penalty=p.repetition_penalty, min_tokens=p.min_tokens, seed=p.seed,
            bias=p.logit_bias, stop=p.stop_token_ids, bad_words=p.bad_words,
        )  # fmt: skip

    def one_by_one(self, alpha: float) -> tuple[list[reference.Drawn], bool]:
        """The definition: draw, append, and go on while the token is the draft. And whether a row failed.

        alpha  of typical acceptance; 0: drafts are accepted where they are drawn
        """
        tokens, drawn, mask = list(self.tokens), list[reference.Drawn](), self.mask()
        for row, logits in enumerate(self.logits()):
            one = reference.sample_row(
                self.sampling(),
                logits,
                tuple(tokens),
                self.num_prompt,
                want_logprob=True,
                num_top=TOP,
                mask=None if mask is None else mask[row],
                draft=(
                    reference.Draft(self.drafts[row], 0.2, alpha)
                    if alpha and row < self.num_verified
                    else None
                ),
            )
            if one.failed:
                return drawn, True
            drawn.append(one)
            tokens.append(one.token)
            if row == self.num_verified or one.token != self.drafts[row]:
                break
        return drawn, False


@st.composite
def turns(draw: st.DrawFn) -> Turn:
    token = st.integers(0, VOCAB - 1)
    tokens = draw(st.lists(token, min_size=1, max_size=MAX_LEN - 1))
    params = SimpleNamespace(**vars(GREEDY))
    params.temperature = draw(st.sampled_from([0.0, 0.7]))
    params.top_k = draw(st.sampled_from([0, 5]))
    params.frequency_penalty = draw(st.sampled_from([0.0, 1.5]))
    params.repetition_penalty = draw(st.sampled_from([1.0, 1.3]))
    params.min_tokens = draw(st.integers(0, 8))
    params.seed = draw(st.integers(0, 2**64 - 1))
    params.logit_bias = draw(st.lists(st.tuples(token, st.sampled_from([-3.0, 3.0])), max_size=2).map(tuple))
    params.stop_token_ids = draw(st.lists(token, max_size=3).map(tuple))
    params.bad_words = draw(
        st.lists(st.lists(token, min_size=1, max_size=2).map(tuple), max_size=2).map(tuple)
    )
    params.num_logprobs = TOP
    return Turn(
        tokens,
        draw(st.integers(1, len(tokens))),
        draw(st.lists(token, max_size=6)),
        draw(st.integers(0, 6)),
        params,
        draw(st.booleans()),
        draw(st.integers(0, 2**32 - 2)),
    )


@pytest.mark.slow
@settings(max_examples=150)
@given(turns=st.lists(turns(), min_size=1, max_size=SLOTS), alpha=st.sampled_from([0.0, 0.3]))
def test_a_step_draws_what_single_draws_would_have_drawn(turns: list[Turn], alpha: float) -> None:
    slots = Slots(SLOTS, MAX_LEN, 1, 3)
    slots.accept_typically(0.2, alpha)
    slots.block_table[0] = np.arange(3 * SLOTS).reshape(SLOTS, 3)
    program = ExternalProgram(slots, 64, "fp32", 2, VOCAB, TOP, PageMemory(3 * SLOTS, 64), 8)
    for slot, turn in enumerate(turns):
        slots.start(slot, turn.tokens, turn.num_prompt, len(turn.tokens) - 1)
        slots.set_sampling(slot, turn.params)
        slots.guess(slot, turn.drafts)
    granted = [turn.granted_drafts for turn in turns]
    masks = {i: mask for i, turn in enumerate(turns) if (mask := turn.mask()) is not None}
    rows = program.prepare(np.arange(len(turns)), 1 + np.array(granted), np.array(granted), masks)
    assert len(rows.logit_rows) == len(rows.token_ids) == sum(1 + turn.num_verified for turn in turns)
    with np.errstate(over="ignore"):
        result = program.finish(np.concatenate([turn.logits() for turn in turns]))
        expected = [turn.one_by_one(alpha) for turn in turns]
    assert result.tokens == [[one.token for one in drawn] for drawn, _ in expected]
    assert result.requests["failed"].tolist() == [failed for _, failed in expected]
    for slot, (turn, (drawn, failed)) in enumerate(zip(turns, expected, strict=True)):
        first = result.requests["first_drawn"][slot]
        for row, one in enumerate(drawn, first):
            assert result.rows[row].item() == (one.token, 0, one.logprob, one.rank)
            assert [*zip(result.top_ids[row], result.top_logprobs[row], strict=True)] == [*one.top]
        known = [*turn.tokens, *(one.token for one in drawn)]
        if failed and len(known) < MAX_LEN:
            known.append(0)  # what a step computes that was planned meanwhile
        assert slots.known(slot).tolist() == known
        assert slots.num_computed[slot] == len(turn.tokens) - 1 + len(drawn) + failed
        assert slots.num_drafts[slot] == 0


def with_drafts(
    server: Server, prompt: list[int], right: list[int], rate: float, wrong: int | None = None
) -> tuple[list[int], list[float], int]:
    """What `Server.generate` gives, with drafts some of which are wrong, and how many were accepted."""
    rng = random.Random(len(prompt))
    server.start(0, prompt)
    tokens: list[int] = []
    logprobs: list[float] = []
    accepted = 0
    while len(tokens) < len(right):
        drafts = [
            one if rng.random() < rate else wrong if wrong is not None else rng.randrange(100)
            for one in right[len(tokens) :][: rng.randrange(6)]
        ]
        known = int(server.slots.num_tokens[0])
        server.slots.guess(0, drafts if tokens else [])
        left = np.array([known - int(server.slots.num_computed[0])])
        granted = np.array([len(drafts) if tokens else 0])
        result = server.program.step(np.array([0]), left + granted, granted)
        assert not result.requests["failed"][0]
        first = result.requests["first_drawn"][0]
        tokens += result.tokens[0]
        logprobs += result.rows["logprob"][first:][: len(result.tokens[0])].tolist()
        accepted += len(result.tokens[0]) - 1
    return tokens, logprobs, accepted


PROMPT = torch.randint(0, 100, (20,), generator=torch.Generator().manual_seed(5)).tolist()


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("window", [0, 20])
def test_rejected_drafts_leave_no_bit_behind(dtype: str, window: int) -> None:
    toy = Toy(dtype, window=window)
    expected = Server(toy).generate(0, PROMPT, 60, 100)
    for block_size, threads in ((1, 1), (7, 2), (16, 3), (64, 1)):
        server = Server(toy, block_size, threads)
        tokens, logprobs, accepted = with_drafts(server, PROMPT, expected[0], 0.7)
        assert (tokens[:60], logprobs[:60]) == expected, (block_size, threads)
        assert 10 < accepted < 50


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_a_draft_whose_numbers_are_nan_spoils_no_row_before_it(dtype: str) -> None:
    """Its value meets probabilities of 0 in their tile, and 0 times NaN is NaN."""
    toy = Toy(dtype, nan_token=100)
    for prompt in (PROMPT[:1], PROMPT[:14], PROMPT):
        expected = Server(toy).generate(0, prompt, 60, 100)
        for block_size in (7, 16):
            server = Server(toy, block_size, threads=2)
            tokens, logprobs, accepted = with_drafts(server, prompt, expected[0], 0.7, wrong=100)
            assert (tokens[:60], logprobs[:60]) == expected
            assert accepted > 10


def test_drafts_that_the_slot_has_not_are_not_computed() -> None:
    server = Server(Toy())
    server.start(0, PROMPT)
    server.program.step(np.array([0]), np.array([20]))
    server.slots.guess(0, [1, 2])
    result = server.program.step(np.array([0]), np.array([5]), np.array([4]))
    assert len(result.rows) == 3


@pytest.mark.parametrize(("num_new", "num_drafts"), [(3, 3), (19, 2), (21, 0), (2, 3)])
def test_drafts_are_refused_where_they_do_not_follow_the_last_known_token(
    num_new: int, num_drafts: int
) -> None:
    server = Server(Toy())
    server.start(0, PROMPT)
    server.slots.guess(0, [1, 2, 3])
    with pytest.raises(ValueError, match="drafts follow the last"):
        server.program.step(np.array([0]), np.array([num_new]), np.array([num_drafts]))
    assert server.slots.num_computed[0] == 0


def test_a_mask_of_the_wrong_shape_is_refused() -> None:
    server = Server(Toy())
    server.start(0, PROMPT)
    with pytest.raises(ValueError, match=r"mask of request 0 has shape \(2, 4\) instead of \(1, 4\)"):
        server.program.step(np.array([0]), np.array([20]), None, {0: np.zeros((2, 4), np.uint32)})
