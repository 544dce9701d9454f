"""How far a kernel's result may be from its reference's: row by row, and by what rounding explains.

An absolute tolerance lets small rows be anything: the output of attention over 300 keys is of the order of
0.1, where 2e-2 is a fifth. Here an error is measured against the row that it is in.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

FP32 = 2.0**-24
"""Half a unit in the last place of fp32."""

_FP8_SUM = 2.0**-13
"""What Hopper's tensor cores cut off where they add to a sum of fp8 products: they keep about 14 bits."""


def row_error(result: Tensor, expected: Tensor) -> float:
    """The largest ‖result − expected‖ / ‖expected‖ of a row, in the Euclidean norm and in the largest's.

    A row is what the last dimension holds. The first norm finds an error that many numbers have, the second
    one that a single number of a wide row has. Where `expected` is no finite number, `result` must be the
    same; else the error is infinite, as it is of a row that should be zeros and is not. Raises ValueError
    where shapes disagree.
    """
    if result.shape != expected.shape:
        raise ValueError(f"the result is {list(result.shape)}, the reference's {list(expected.shape)}.")
    if not expected.numel():
        return 0.0
    result, expected = result.double(), expected.double()
    finite = expected.isfinite()
    same = (result == expected) | (result.isnan() & expected.isnan())
    if not (finite | same).all():
        return float("inf")
    zero = torch.zeros((), dtype=torch.float64, device=expected.device)
    difference = torch.where(finite, result - expected, zero)
    expected = torch.where(finite, expected, zero)
    errors = [
        torch.linalg.vector_norm(difference, order, -1) / torch.linalg.vector_norm(expected, order, -1)
        for order in (2, float("inf"))
    ]
    exact = difference.abs().amax(-1) == 0  # also of a row of zeros, where 0 / 0 is no number
    worst = max(float(torch.where(exact, 0.0, error).max()) for error in errors)
    return float("inf") if worst != worst else worst


def rounding(*types: torch.dtype, terms: int = 1) -> float:
    """The row error that rounding explains.

    types  what numbers are rounded to on their way, once for each time: the result, and what is between. To
           nearest, that moves each number by half a unit in its last place at most, in proportion to itself
    terms  of a sum in fp32. Errors of random sign grow with the root of their number, four times which is
           beyond all that is seen; it also covers the few roundings that other fp32 arithmetic has
    """
    halves = sum(float(torch.finfo(dtype).eps) / 2 for dtype in types)
    return halves + 4 * FP32 * math.sqrt(terms) + 8 * FP32


def fp8_sum(terms: int) -> float:
    """The row error of sums of so many fp8 products that Hopper's tensor cores hold throughout.

    torch._scaled_mm with use_fast_accum has the same, and none of it without. It grows with the root of their
    number: on an H200 it was 0.006 of 4096 terms and 0.011 of 14336.
    """
    return _FP8_SUM * math.sqrt(terms)


def one_code(dtype: torch.dtype) -> float:
    """The row error of a quantized row, whose largest number is its type's, where one is a code away.

    What is midway between two codes falls to either: kernels multiply by the inverse of the scale that their
    reference divides by.
    """
    if not dtype.is_floating_point:
        return 1 / torch.iinfo(dtype).max
    limit = torch.finfo(dtype).max
    return float(torch.finfo(dtype).eps * 2.0 ** math.floor(math.log2(limit)) / limit)
