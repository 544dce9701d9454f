"""The kernel gives the reference's token, log-probability and rank, bit for bit, on every instruction set."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from slipway_kernels.sampling import reference
from slipway_kernels.sampling.op import Sampler
from slipway_kernels.sampling.reference import Draft, Floats, Sampling

Build = Callable[[int], Sampler]

# Around one block of 64, several blocks, and rows where the k-th block maximum bounds the candidates.
VOCABS = (1, 2, 3, 4, 5, 63, 64, 65, 200, 5000)
SHAPES: dict[str, Callable[[np.random.Generator, int], np.ndarray]] = {
    "plain": lambda rng, vocab: rng.normal(size=vocab) * 3,
    "peaked": lambda rng, vocab: rng.normal(size=vocab) * 20,
    "nearly flat": lambda rng, vocab: rng.normal(size=vocab) * 0.1,
    "many ties": lambda rng, vocab: np.round(rng.normal(size=vocab)),
    "all equal": lambda rng, vocab: np.full(vocab, -2.5),
    "zeros of both signs": lambda rng, vocab: np.where(rng.random(vocab) < 0.5, 0.0, -0.0),
    "huge": lambda rng, vocab: rng.uniform(-3e38, 3e38, vocab),
    "some -inf": lambda rng, vocab: np.where(rng.random(vocab) < 0.4, -np.inf, rng.normal(size=vocab)),
    "some +inf": lambda rng, vocab: np.where(rng.random(vocab) < 0.1, np.inf, rng.normal(size=vocab)),
    "all -inf": lambda rng, vocab: np.full(vocab, -np.inf),
    "one NaN": lambda rng, vocab: np.where(np.arange(vocab) == vocab // 2, np.nan, 1.0),
}


def make_row(shape: str, vocab: int, seed: int) -> Floats:
    return SHAPES[shape](np.random.default_rng(seed), vocab).astype(np.float32)


def often(default: float, strategy: st.SearchStrategy[float]) -> st.SearchStrategy[float]:
    return st.one_of(st.just(default), strategy)


def share() -> st.SearchStrategy[float]:
    return st.one_of(st.floats(0, 1, width=32), st.sampled_from([0.1, 0.5, 0.9, 0.95, 0.999999]))


@st.composite
def questions(draw: st.DrawFn) -> tuple[Sampling, Floats, tuple[int, ...], int, dict[str, Any]]:
    vocab = draw(st.sampled_from(VOCABS))
    tokens = st.integers(0, vocab - 1)
    listed = st.lists(tokens, max_size=4).map(tuple)
    history = draw(st.lists(tokens, max_size=12).map(tuple))
    repeats = st.integers(0, len(history)).map(lambda n: (*history[n:], draw(tokens)))
    sampling = Sampling(
        temperature=draw(st.sampled_from([0.0, 1e-39, 0.1, 0.8, 1.0, 1.7, 100.0])),
        top_k=draw(st.one_of(st.just(0), st.integers(1, 120))),
        top_p=draw(often(1.0, share())),
        min_p=draw(often(0.0, share())),
        typical_p=draw(often(1.0, share())),
        presence_penalty=draw(often(0.0, st.floats(-2, 2, width=32))),
        frequency_penalty=draw(often(0.0, st.floats(-2, 2, width=32))),
        repetition_penalty=draw(often(1.0, st.floats(0.5, 2, width=32))),
        min_tokens=draw(st.integers(0, 6)),
        seed=draw(st.integers(0, 2**64 - 1)),
        bias=draw(st.lists(st.tuples(tokens, st.floats(-100, 100, width=32)), max_size=3).map(tuple)),
        allowed=draw(listed),
        stop=draw(listed),
        bad_words=draw(st.lists(repeats, max_size=3).map(tuple)),
    )
    row = make_row(draw(st.sampled_from(sorted(SHAPES))), vocab, draw(st.integers(0, 2**32 - 1)))
    asked = draw(
        st.one_of(
            st.just({}),
            st.fixed_dictionaries(
                {"want_logprob": st.just(1), "num_top": st.sampled_from([0, 1, 5, 70])},
                optional={"given": tokens},
            ),
        )
    )
    if draw(st.booleans()):
        bits = np.random.default_rng(draw(st.integers(0, 99))).integers(0, 2**32, (vocab + 31) // 32)
        asked = {**asked, "mask": bits.astype(np.uint32)}
    if draw(st.booleans()):
        constants = st.floats(0, 1, exclude_min=True, width=32), st.sampled_from([0.01, 0.3, 1.0, 50.0])
        asked = {**asked, "draft": draw(st.builds(Draft, tokens, *constants))}
    return sampling, row, history, draw(st.integers(0, len(history))), asked


@pytest.mark.slow
@settings(max_examples=250, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(question=questions())
def test_the_kernel_equals_the_reference(each_build: Build, question) -> None:
    sampling, row, history, prompt_len, asked = question
    with np.errstate(over="ignore"):
        expected = reference.sample_row(sampling, row, history, prompt_len, **asked)
    assert each_build(len(row)).sample_row(sampling, row, history, prompt_len, **asked) == expected


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(),
        Sampling(temperature=0.3),
        Sampling(temperature=0.8, top_p=0.95, top_k=40),
        Sampling(top_k=3000),
        Sampling(top_p=0.95),
        Sampling(top_p=0.9, min_p=0.01),
        Sampling(min_p=0.02),
        Sampling(typical_p=0.9),
        Sampling(top_k=5000, typical_p=0.5),
    ],
)
@pytest.mark.parametrize("shape", ["plain", "peaked", "nearly flat", "many ties"])
def test_the_kernel_equals_the_reference_on_a_whole_vocabulary(
    sampler: Build, sampling: Sampling, shape: str
) -> None:
    row = make_row(shape, 128_256, seed=3)
    got = sampler(len(row)).sample_row(sampling, row, want_logprob=True, num_top=20)
    assert got == reference.sample_row(sampling, row, want_logprob=True, num_top=20)


@pytest.mark.parametrize("sampling", [Sampling(temperature=0.7), Sampling(top_p=0.95), Sampling(top_k=900)])
def test_the_kernel_judges_every_draft_as_the_reference_does(sampler: Build, sampling: Sampling) -> None:
    row = make_row("plain", 5000, seed=4)
    accepted = []
    order = np.argsort(-row)
    for token in [*order[:60].tolist(), *order[100::50].tolist()]:
        draft = Draft(token, 0.09, 0.3)
        got = sampler(len(row)).sample_row(sampling, row, draft=draft)
        assert got == reference.sample_row(sampling, row, draft=draft)
        accepted.append(got.token == token)
    assert 4 < sum(accepted) < 120
