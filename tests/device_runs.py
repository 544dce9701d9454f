"""Engines on a device, small because the interpreter runs every program of a kernel in Python."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

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


@contextmanager
def launches() -> Iterator[list[str]]:
    """By name, what is launched within: Triton's kernels and torch's operations."""
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode
    from triton.runtime.interpreter import InterpretedFunction

    noted: list[str] = []

    class Noting(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            noted.append(str(func))
            return func(*args, **kwargs or {})

    def run(kernel: Any, *args: Any, **named: Any) -> Any:
        noted.append(kernel.fn.__name__)
        with torch.utils._python_dispatch._disable_current_modes():
            return whole(kernel, *args, **named)

    whole = InterpretedFunction.run
    InterpretedFunction.run = run
    try:
        with Noting():
            yield noted
    finally:
        InterpretedFunction.run = whole
