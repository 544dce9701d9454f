"""Engines on a device, small because the interpreter runs every program of a kernel in Python."""

from __future__ import annotations

import pytest

from local_engine import Output

SMALL: dict[str, object] = {
    "dtype": "float32",
    "max_num_seqs": 4,
    "max_num_batched_tokens": 8,
    "max_model_len": 64,
    "block_size": 8,
    "num_blocks": 32,
}


def assert_same(found: list[Output], expected: list[Output]) -> None:
    assert [one.tokens for one in found] == [one.tokens for one in expected]
    assert [one.finish_reason for one in found] == [one.finish_reason for one in expected]
    for ours, theirs in zip(found, expected, strict=True):
        for one, other in zip(ours.logprobs, theirs.logprobs, strict=True):
            assert one.logprob == pytest.approx(other.logprob, abs=1e-3)
            assert one.rank == other.rank
            assert [token for token, _ in one.top] == [token for token, _ in other.top]


def assert_near(found: Output, expected: Output, largest: float, *, shared: int = 3) -> None:
    """At least `shared` of the first token's alternatives are in both, about as probable."""
    ours, theirs = dict(found.logprobs[0].top), dict(expected.logprobs[0].top)
    common = ours.keys() & theirs.keys()
    assert len(common) >= shared
    for token in common:
        assert ours[token] == pytest.approx(theirs[token], abs=largest)
