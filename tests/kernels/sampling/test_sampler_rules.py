"""What the sampling parameters mean, each against a definition outside the project."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest
import torch

from slipway_kernels.sampling.op import Sampler
from slipway_kernels.sampling.reference import Draft, Floats, Sampling, philox_block

Build = Callable[[int], Sampler]

GREEDY = Sampling(temperature=0)


def normal_row(vocab: int, scale: float = 3.0, seed: int = 0) -> Floats:
    noise = np.random.default_rng(seed).normal(size=vocab)
    return (noise * scale).astype(np.float32)


@pytest.mark.parametrize(
    ("counter", "key", "expected"),
    [
        ("00000000 00000000 00000000 00000000", "00000000 00000000", "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
        ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff", "408f276d 41c83b0e a20bc7c6 6d5451fd"),
        ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0", "d16cfe09 94fdcceb 5001e420 24126ea1"),
    ],
)
def test_philox_gives_the_published_vectors(counter: str, key: str, expected: str) -> None:
    words = tuple(np.array([int(word, 16)], np.uint64) for word in counter.split())
    low, high = (int(word, 16) for word in key.split())
    block = philox_block(words, low | high << 32)
    assert " ".join(f"{int(word[0]):08x}" for word in block) == expected


def test_temperature_zero_takes_the_first_of_the_largest(sampler: Build) -> None:
    for vocab in (1, 5, 64, 1000):
        for seed in range(20):
            row = np.round(normal_row(vocab, seed=seed))
            assert sampler(vocab).sample_row(GREEDY, row).token == row.argmax()


def test_a_seed_reproduces_its_tokens_and_another_does_not(sampler: Build) -> None:
    row = normal_row(1000, scale=0.5)

    def tokens(seed: int) -> list[int]:
        histories = [tuple(range(length)) for length in range(50)]
        return [sampler(1000).sample_row(Sampling(seed=seed), row, h).token for h in histories]

    assert tokens(7) == tokens(7)
    # Both halves of the key count.
    assert tokens(7) != tokens(8)
    assert tokens(7) != tokens(7 + (1 << 32))


def test_a_draw_depends_on_position_and_not_on_the_tokens_before(sampler: Build) -> None:
    row = normal_row(1000, scale=0.5)
    draws = [sampler(1000).sample_row(Sampling(seed=1), row, (t,) * 9).token for t in range(20)]
    assert len(set(draws)) == 1


def test_a_survivor_draws_the_same_whatever_filter_left_it(sampler: Build) -> None:
    row = normal_row(1000)
    for seed in range(50):
        unfiltered = sampler(1000).sample_row(Sampling(seed=seed), row).token
        rank = int((row > row[unfiltered]).sum()) + 1
        filtered = Sampling(seed=seed, top_k=rank)
        assert sampler(1000).sample_row(filtered, row).token == unfiltered


@pytest.mark.parametrize("value", [np.nan, -np.nan])
@pytest.mark.parametrize("place", [0, 63, 64, 130])
def test_a_nan_fails_its_row_and_not_the_next(sampler: Build, value: float, place: int) -> None:
    row = normal_row(131)
    broken = row.copy()
    broken[place] = value
    drawn = sampler(131).sample_row(GREEDY, broken, want_logprob=True, num_top=3)
    assert drawn.failed
    assert drawn.token == -1
    assert sampler(131).sample_row(GREEDY, row).token == row.argmax()


def test_a_row_with_every_token_forbidden_fails(sampler: Build) -> None:
    assert sampler(5).sample_row(Sampling(), np.full(5, -np.inf, np.float32)).failed
    forbidden = Sampling(allowed=(2,), bad_words=((2,),))
    assert sampler(5).sample_row(forbidden, normal_row(5)).failed


def test_logprobs_are_torchs_on_the_untouched_row(sampler: Build) -> None:
    row = normal_row(50_000)
    expected = torch.log_softmax(torch.from_numpy(row).double(), 0)
    changed = Sampling(bias=((3, 50.0),), repetition_penalty=1.5, temperature=0.5, top_k=10)
    drawn = sampler(50_000).sample_row(changed, row, (5, 6), 1, want_logprob=True, num_top=20)
    assert drawn.token == 3
    assert drawn.logprob == pytest.approx(expected[3].item(), abs=1e-5)
    assert drawn.rank == 1 + int((row > row[3]).sum())
    values, ids = torch.topk(expected, 20)
    assert [token for token, _ in drawn.top] == ids.tolist()
    assert [logprob for _, logprob in drawn.top] == pytest.approx(values.tolist(), abs=1e-5)


def test_a_given_token_is_reported_and_not_drawn(sampler: Build) -> None:
    row = normal_row(100)
    drawn = sampler(100).sample_row(Sampling(allowed=(1,)), row, given=42, want_logprob=True)
    expected = torch.log_softmax(torch.from_numpy(row), 0)[42].item()
    assert drawn.token == 42
    assert drawn.logprob == pytest.approx(expected, abs=1e-5)


def test_equal_logits_rank_by_token_id(sampler: Build) -> None:
    row = np.zeros(100, np.float32)
    drawn = sampler(100).sample_row(GREEDY, row, given=42, want_logprob=True, num_top=3)
    assert drawn.rank == 43
    assert [token for token, _ in drawn.top] == [0, 1, 2]


def test_more_top_tokens_than_the_vocabulary_has_gives_all_of_them(sampler: Build) -> None:
    drawn = sampler(3).sample_row(GREEDY, normal_row(3), want_logprob=True, num_top=10)
    assert sorted(token for token, _ in drawn.top) == [0, 1, 2]


def token_after(sampler: Build, sampling: Sampling, row: Floats, history: tuple[int, ...]) -> int:
    return sampler(len(row)).sample_row(sampling, row, history, prompt_len=2).token


@pytest.mark.parametrize("token", [0, 1, 2, 3, 70])
def test_penalties_follow_their_published_formulas(sampler: Build, token: int) -> None:
    prompt, output = (1, 2), (2, 3, 3, 3, 70)
    row = normal_row(80)
    expected = float(row[token])
    if token in prompt + output:
        expected = expected / 1.5 if expected > 0 else expected * 1.5
    count = Counter(output)[token]
    expected -= count * 0.25 + (count > 0) * 0.5
    # The penalized logit shows against a rival just below it, then just above it.
    rival = 79
    penalized = Sampling(
        temperature=0,
        repetition_penalty=1.5,
        frequency_penalty=0.25,
        presence_penalty=0.5,
        allowed=(token, rival),
    )
    for gap, winner in ((-1e-3, token), (1e-3, rival)):
        row[rival] = expected + gap
        assert token_after(sampler, penalized, row, prompt + output) == winner


def test_a_bad_word_is_forbidden_only_where_it_would_complete(sampler: Build) -> None:
    row = np.array([0, 1, 2, 3], np.float32)
    bad = Sampling(temperature=0, bad_words=((1, 2, 3), (2,)))
    assert token_after(sampler, bad, row, (0, 1, 2)) == 1
    assert token_after(sampler, bad, row, (1, 2, 0)) == 3
    assert token_after(sampler, bad, row, (2,)) == 3


def test_stop_tokens_wait_for_the_minimum_length(sampler: Build) -> None:
    row = np.array([0, 1, 2, 3], np.float32)
    held = Sampling(temperature=0, min_tokens=2, stop=(3, 2))
    assert token_after(sampler, held, row, (0, 0)) == 1
    assert token_after(sampler, held, row, (0, 0, 0)) == 1
    assert token_after(sampler, held, row, (0, 0, 0, 0)) == 3


def test_bias_does_not_bring_back_a_token_that_is_not_allowed(sampler: Build) -> None:
    row = np.array([0, 1, 2, 3], np.float32)
    biased = Sampling(temperature=0, allowed=(0, 1), bias=((0, 1.5), (3, 100.0)))
    assert token_after(sampler, biased, row, (2, 2)) == 0


def test_token_ids_beyond_the_vocabulary_are_ignored(sampler: Build) -> None:
    row = np.array([0, 1, 2, 3], np.float32)
    strange = Sampling(
        temperature=0,
        min_tokens=9,
        stop=(99,),
        bias=((77, 5.0),),
        allowed=(1, 88),
        bad_words=((66,),),
    )
    assert token_after(sampler, strange, row, (0, 0)) == 1


def probabilities(sampling: Sampling, row: Floats) -> np.ndarray:
    """What temperature and top-k leave, in fp64."""
    logits = row.astype(np.float64) / sampling.temperature
    if sampling.top_k:
        logits[np.argsort(-row, kind="stable")[sampling.top_k :]] = -np.inf
    weights = np.exp(logits - logits.max())
    return weights / weights.sum()


@pytest.mark.parametrize(("threshold", "alpha"), [(0.09, 0.3), (0.5, 0.3), (0.01, 0.3), (0.09, 2.0)])
@pytest.mark.parametrize("sampling", [Sampling(), Sampling(temperature=0.6), Sampling(top_k=12)])
def test_typical_acceptance_takes_what_exceeds_threshold_or_entropy(
    sampler: Build, sampling: Sampling, threshold: float, alpha: float
) -> None:
    for scale in (0.5, 2.0, 6.0):
        row = normal_row(300, scale)
        p = probabilities(sampling, row)
        entropy = -(p[p > 0] * np.log(p[p > 0])).sum()
        bound = min(threshold, alpha * np.exp(-entropy))
        drawn = sampler(300).sample_row(sampling, row).token
        for token in range(300):
            assert (
                abs(p[token] / bound - 1) > 1e-5
            )  # no draft lies at the bound, where roundings would decide
            got = sampler(300).sample_row(sampling, row, draft=Draft(token, threshold, alpha)).token
            assert got == (token if p[token] > bound else drawn)


def test_a_greedy_row_and_what_a_mask_forbids_take_no_draft(sampler: Build) -> None:
    row = np.zeros(40, np.float32)
    row[3] = 0.01
    draft = Draft(7, 1e-6, 1e-6)
    assert sampler(40).sample_row(GREEDY, row, draft=draft).token == 3
    assert sampler(40).sample_row(Sampling(), row, draft=draft).token == 7
    allowed = np.array([1 << 5, 1 << 2], np.uint32)
    assert sampler(40).sample_row(Sampling(), row, draft=draft, mask=allowed).token in (5, 34)
    assert sampler(40).sample_row(Sampling(top_k=1), row, draft=draft).token == 3


def test_a_drafts_log_probability_is_the_models(sampler: Build) -> None:
    row = normal_row(50)
    draft = Draft(int(np.argsort(-row)[2]), 1e-6, 1e-6)
    got = sampler(50).sample_row(Sampling(temperature=0.5), row, draft=draft, want_logprob=True)
    assert got.token == draft.token
    assert got.rank == 3
    assert got.logprob == pytest.approx(np.log(probabilities(Sampling(), row)[draft.token]), abs=1e-5)
