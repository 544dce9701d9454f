"""Whether a draft may stand for the drawn token: typical acceptance, as reference.py defines it."""

from __future__ import annotations

import triton
import triton.language as tl

from slipway_kernels.sampling.arithmetic import MASS_UNIT, mass_of
from slipway_kernels.sampling.filters import surprise_place, survivors


@triton.jit
def draft_of(slots_ptr, tokens_ptr, tokens_stride, lengths_ptr, row, slot, num_rows):
    """The draft that stands behind a row's history: where the next row is the slot's, too. Else -1."""
    behind = tl.load(slots_ptr + row + 1, mask=row + 1 < num_rows, other=-1).to(tl.int64)
    at = tokens_ptr + slot * tokens_stride + tl.load(lengths_ptr + row)
    return tl.load(at, mask=behind == slot, other=-1)


@triton.jit
def weighed_by(mass, x):
    """mass · x, rounded down: sums of it are the same in any order. x may be -inf where there is no mass."""
    return tl.floor(mass.to(tl.float64) * tl.where(mass > 0, x, 0.0).to(tl.float64)).to(tl.int64)


@triton.jit
def exceeds(its_mass, mass, weighed, threshold, alpha):
    """p > min(threshold, alpha · exp(-H)), times all mass: exp(-H) is exp(mean of x) / mass."""
    total = mass.to(tl.float64)
    likely = (tl.exp(weighed.to(tl.float64) / total) * MASS_UNIT) * alpha
    return its_mass.to(tl.float64) > tl.minimum(total * threshold, likely)


@triton.jit
def survives(row, kept, mean, by_surprise, draft, threshold, alpha, CHUNK: tl.constexpr):
    """Whether the draft stands for what would be drawn of filtered candidates.

    row, kept  as in `survivors`
    """
    masses = tl.zeros([CHUNK], tl.int64)
    weighed = tl.zeros([CHUNK], tl.int64)
    its_masses = tl.zeros([CHUNK], tl.int64)
    for start in range(0, row[2], CHUNK):
        x, power, token, alive = survivors(row, kept, start, CHUNK)
        alive &= surprise_place(x, token, mean) >= by_surprise
        mass = tl.where(alive, mass_of(power), 0)
        masses += mass
        weighed += weighed_by(mass, x)
        its_masses += tl.where(token == draft, mass, 0)
    its_mass = tl.sum(its_masses, axis=0)
    return exceeds(its_mass, tl.sum(masses, axis=0), tl.sum(weighed, axis=0), threshold, alpha)
