"""Tokens come as often as transformers' filters say they should."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch

from slipway_kernels.sampling.op import Sampler
from slipway_kernels.sampling.reference import Sampling

DRAWS = 20_000
VOCAB = 70


def expected_probabilities(sampling: Sampling, logits: torch.Tensor) -> torch.Tensor:
    from transformers.generation import logits_process as warpers

    scores = logits.double()[None] / sampling.temperature
    if sampling.top_k > 0:
        scores = warpers.TopKLogitsWarper(sampling.top_k)(None, scores)
    if sampling.top_p < 1:
        scores = warpers.TopPLogitsWarper(sampling.top_p)(None, scores)
    if sampling.min_p > 0:
        scores = warpers.MinPLogitsWarper(sampling.min_p)(None, scores)
    if sampling.typical_p < 1:
        scores = warpers.TypicalLogitsWarper(sampling.typical_p)(None, scores)
    return scores.softmax(-1)[0]


@pytest.mark.slow
@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(),
        Sampling(temperature=0.7),
        Sampling(temperature=2.0, top_k=12),
        Sampling(top_p=0.8),
        Sampling(min_p=0.05),
        Sampling(typical_p=0.6),
        Sampling(temperature=0.8, top_k=40, top_p=0.95),
        Sampling(temperature=1.5, top_k=30, top_p=0.9, min_p=0.03, typical_p=0.9),
    ],
)
def test_tokens_come_as_often_as_they_should(sampler: Callable[[int], Sampler], sampling: Sampling) -> None:
    logits = np.random.default_rng(5).normal(size=VOCAB).astype(np.float32) * 1.5
    seeds = range(1, DRAWS + 1)
    tokens = [sampler(VOCAB).sample_row(replace(sampling, seed=s), logits).token for s in seeds]
    assert_distributed(tokens, expected_probabilities(sampling, torch.from_numpy(logits)).numpy())


def test_positions_of_one_request_draw_independently(sampler: Callable[[int], Sampler]) -> None:
    logits = np.log(np.array([0.1, 0.2, 0.3, 0.4], np.float32))
    lengths = range(2000)
    sampling = Sampling(seed=11)
    tokens = [sampler(4).sample_row(sampling, logits, (0,) * n).token for n in lengths]
    assert_distributed(tokens, np.exp(logits))
    pairs = [4 * a + b for a, b in pairwise(tokens)]
    assert_distributed(pairs, np.outer(np.exp(logits), np.exp(logits)).ravel())


def assert_distributed(tokens: list[int], probabilities: np.ndarray) -> None:
    """Chi-square over the cells that expect five or more, at four standard deviations of its limit."""
    counts = np.bincount(tokens, minlength=len(probabilities))
    expected = probabilities * len(tokens)
    assert counts[expected == 0].sum() == 0
    common = expected >= 5
    statistic = ((counts - expected)[common] ** 2 / expected[common]).sum()
    freedom = common.sum() - 1
    assert statistic < freedom + 4 * np.sqrt(2 * freedom)
