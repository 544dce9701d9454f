"""Which tokens are still in play: exact selection without sorting, over the candidates of one row.

A filter keeps a prefix of the tokens in some order. That prefix ends at a place, and places are integers
without ties (arithmetic.place_of), so that finding it is a search: how much do the tokens at or above a place
hold?
"""

from __future__ import annotations

import triton
import triton.language as tl

from slipway_kernels.sampling import workspace
from slipway_kernels.sampling.arithmetic import (
    ID_BITS,
    LAST_ID,
    NOTHING,
    best_of,
    exponential,
    key_of,
    mass_of,
    place_of,
    scaled,
    value_of,
)

NOTES = tl.constexpr(workspace.NOTES)


@triton.jit
def noted_x():
    """[NOTES]: from -1 to -14.1, the closer the nearer to 0."""
    number = tl.arange(0, NOTES).to(tl.float32)
    return -1.0 - number - number * number * 0.125


@triton.jit
def survivors(row, kept, start, CHUNK: tl.constexpr):
    """x, exp(x), id and whether it is still in play, of candidates [start, start + CHUNK) of a row.

    row   (keys_ptr, ids_ptr, count, top, inverse): the candidates' keys [count] and ids [count], the row's
          largest logit and the inverse of its temperature
    kept  (min_p, by_logit, by_x): the least exp(x), and the lowest place in the orders of logits and of x
    """
    keys_ptr, ids_ptr, count, top, inverse = row
    min_p, by_logit, by_x = kept
    at = start + tl.arange(0, CHUNK)
    inside = at < count
    key = tl.load(keys_ptr + at, mask=inside, other=NOTHING)
    token = tl.load(ids_ptr + at, mask=inside, other=0)
    x = scaled(value_of(key), top, inverse)
    power = exponential(x)
    alive = inside & (place_of(key, token) >= by_logit) & (place_of(key_of(x), token) >= by_x)
    return x, power, token, alive & (power >= min_p)


@triton.jit
def surprise_place(x, token, mean):
    """Places in ascending order of |-log p - H|, which is |x - E[x]|."""
    return place_of(key_of(-tl.abs(x.to(tl.float64) - mean).to(tl.float32)), token)


@triton.jit
def pivots_of(low, high, PIVOTS: tl.constexpr):
    """PIVOTS places from `low` on, a step apart, the last of which is within a step of `high`."""
    step = (high - low + (PIVOTS - 1)) // PIVOTS
    return low + step * tl.arange(0, PIVOTS).to(tl.int64), step


@triton.jit
def tallied(tally, place, amount, alive, pivot, low, high):
    """Count a chunk of tokens: what those at or above each pivot hold, and the outermost places between.

    tally  (held [CHUNK, PIVOTS], first [CHUNK], last [CHUNK]) int64
    """
    held, first, last = tally
    held += tl.where(place[:, None] >= pivot[None, :], amount[:, None], 0)
    between = alive & (place >= low) & (place < high)
    first = tl.minimum(first, tl.where(between, place, high))
    last = tl.maximum(last, tl.where(between, place, low))
    return held, first, last


@triton.jit
def narrowed(tally, step, need, low, high):
    """Both ends of a search after a round: tokens at or above `low` hold enough, at or above `high` do not.

    Between two pivots, and drawn in to the outermost tokens there: a few rounds single out one of thousands.
    """
    held, first, last = tally
    enough = tl.sum((tl.sum(held, axis=0) >= need).to(tl.int64), axis=0)
    pivot_low = low + step * (enough - 1)
    high = tl.minimum(tl.minimum(high, pivot_low + step), tl.max(last, axis=0) + 1)
    return tl.maximum(pivot_low, tl.min(first, axis=0)), high


@triton.jit
def kth_place(keys_ptr, ids_ptr, count, k, low, high, CHUNK: tl.constexpr, PIVOTS: tl.constexpr):
    """The place in [low, high) of the k-th largest of `count` keys; without ids the n-th key has the id n."""
    while high - low > 1:
        pivot, step = pivots_of(low, high, PIVOTS)
        held = tl.zeros([CHUNK, PIVOTS], tl.int64)
        first = tl.zeros([CHUNK], tl.int64) + high
        last = tl.zeros([CHUNK], tl.int64) + low
        for start in range(0, count, CHUNK):
            at = start + tl.arange(0, CHUNK)
            alive = at < count
            key = tl.load(keys_ptr + at, mask=alive, other=NOTHING)
            if ids_ptr is None:
                place = place_of(key, at)
            else:
                place = place_of(key, tl.load(ids_ptr + at, mask=alive, other=0))
            tally = (held, first, last)
            held, first, last = tallied(tally, place, alive.to(tl.int64), alive, pivot, low, high)
        low, high = narrowed((held, first, last), step, k, low, high)
    return low


@triton.jit
def mass_place(
    row,  # as in `survivors`
    kept,
    need,
    mean,  # of x, where the order is by surprise
    low,
    high,
    BY_SURPRISE: tl.constexpr,
    CHUNK: tl.constexpr,
    PIVOTS: tl.constexpr,
):
    """The highest place in [low, high) at or above which the tokens in play have the mass `need`.

    Places are in the order of x, or of surprise.
    """
    count = row[2]
    while high - low > 1:
        pivot, step = pivots_of(low, high, PIVOTS)
        held = tl.zeros([CHUNK, PIVOTS], tl.int64)
        first = tl.zeros([CHUNK], tl.int64) + high
        last = tl.zeros([CHUNK], tl.int64) + low
        for start in range(0, count, CHUNK):
            x, power, token, alive = survivors(row, kept, start, CHUNK)
            place = surprise_place(x, token, mean) if BY_SURPRISE else place_of(key_of(x), token)
            mass = tl.where(alive, mass_of(power), 0)
            held, first, last = tallied((held, first, last), place, mass, alive, pivot, low, high)
        low, high = narrowed((held, first, last), step, need, low, high)
    return low


@triton.jit
def moments(row, kept, CHUNK: tl.constexpr):
    """Mass in play, and the mean of x over it in fp64; both the same in any order of the candidates.

    Each product of mass and x is split at the binary point: two sums of integers.
    """
    masses = tl.zeros([CHUNK], tl.int64)
    wholes = tl.zeros([CHUNK], tl.int64)
    parts = tl.zeros([CHUNK], tl.int64)
    for start in range(0, row[2], CHUNK):
        x, power, _, alive = survivors(row, kept, start, CHUNK)
        mass = tl.where(alive, mass_of(power), 0)
        product = mass.to(tl.float64) * tl.where(mass > 0, x, 0.0).to(tl.float64)
        whole = tl.floor(product)
        masses += mass
        wholes += whole.to(tl.int64)
        parts += ((product - whole) * 4294967296.0).to(tl.int64)
    total = tl.sum(masses, axis=0)
    part = tl.sum(parts, axis=0).to(tl.float64) * 2.3283064365386963e-10
    return total, (tl.sum(wholes, axis=0).to(tl.float64) + part) / total.to(tl.float64)


@triton.jit
def share_of(total, share):
    """The mass that a share asks for: at least one unit, at most all."""
    need = tl.ceil(share.to(tl.float64) * total.to(tl.float64)).to(tl.int64)
    return tl.minimum(tl.maximum(need, 1), total)


@triton.jit
def draw_filtered(
    keys_ptr,  # [count]  of the logits of tokens that can survive
    ids_ptr,  # [count]
    count,
    row_mass,  # of the whole row
    top_key,
    inverse,
    top_k,
    top_p,
    min_p,
    typical_p,
    seed_low,
    seed_high,
    position,
    CHUNK: tl.constexpr,
    PIVOTS: tl.constexpr,
):
    """The token drawn from what top-k, top-p, min-p and typical leave, one after the other.

    And what they leave: `kept` as in `survivors`, the mean of x, and the lowest place by surprise.
    """
    row = (keys_ptr, ids_ptr, count, value_of(top_key), inverse)
    lowest = count.to(tl.int64) * 0 + NOTHING
    lowest = lowest << ID_BITS
    zero = lowest.to(tl.float64) * 0.0
    by_logit = lowest
    by_x = lowest
    by_surprise = lowest
    if (top_k > 0) & (top_k < count):
        high = (top_key.to(tl.int64) + 1) << ID_BITS
        by_logit = kth_place(keys_ptr, ids_ptr, count, top_k, lowest, high, CHUNK, PIVOTS)
    past_zero = lowest * 0 + LAST_ID + 1  # x and the negated surprise are at most 0
    if top_p < 1.0:
        kept = (0.0, by_logit, lowest)
        total = row_mass
        if top_k > 0:
            total, _ = moments(row, kept, CHUNK)
        need = share_of(total, top_p)
        by_x = mass_place(row, kept, need, zero, lowest, past_zero, False, CHUNK, PIVOTS)
    mean = zero
    if typical_p < 1.0:
        kept = (min_p, by_logit, by_x)
        total, mean = moments(row, kept, CHUNK)
        need = share_of(total, typical_p)
        by_surprise = mass_place(row, kept, need, mean, lowest, past_zero, True, CHUNK, PIVOTS)
    best = zero - float("inf")
    winner = count * 0 - 1
    for start in range(0, count, CHUNK):
        x, _, token, alive = survivors(row, (min_p, by_logit, by_x), start, CHUNK)
        alive &= surprise_place(x, token, mean) >= by_surprise
        best, winner = best_of(best, winner, x, token, alive, seed_low, seed_high, position)
    return winner, (min_p, by_logit, by_x), mean, by_surprise
