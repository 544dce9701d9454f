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

# What a filter orders by and counts.
BY_LOGIT = tl.constexpr(0)
BY_X = tl.constexpr(1)
BY_SURPRISE = tl.constexpr(2)


NOTES = tl.constexpr(workspace.NOTES)


@triton.jit
def noted_x():
    """[NOTES]: from -1 to -14.1, the closer the nearer to 0."""
    number = tl.arange(0, NOTES).to(tl.float32)
    return -1.0 - number - number * number * 0.125


@triton.jit
def survivors(keys_ptr, ids_ptr, start, count, top, inverse, min_p, by_logit, by_x, CHUNK: tl.constexpr):
    """x, exp(x), id and whether it is still in play, of candidates [start, start + CHUNK)."""
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
def find_cut(
    keys_ptr,  # [count]  int32
    ids_ptr,  # [count]  int32, or None for 0, 1, …
    count,
    need,
    low,
    high,
    top,
    inverse,
    min_p,
    by_logit,
    by_x,
    mean,
    ORDER: tl.constexpr,
    CHUNK: tl.constexpr,
    PIVOTS: tl.constexpr,
):
    """The highest place in [low, high) at or above which the tokens in play hold `need`.

    Between rounds, tokens at or above `low` hold enough and those at or above `high` do not. A round tries
    PIVOTS places at once and draws both ends in to the outermost tokens between them: a few rounds single
    out one of thousands.
    """
    while high - low > 1:
        step = (high - low + (PIVOTS - 1)) // PIVOTS
        pivot = low + step * tl.arange(0, PIVOTS).to(tl.int64)
        held = tl.zeros([CHUNK, PIVOTS], tl.int64)
        first = tl.zeros([CHUNK], tl.int64) + high
        last = tl.zeros([CHUNK], tl.int64) + low
        for start in range(0, count, CHUNK):
            if ORDER == BY_LOGIT:
                at = start + tl.arange(0, CHUNK)
                alive = at < count
                key = tl.load(keys_ptr + at, mask=alive, other=NOTHING)
                if ids_ptr is None:
                    place = place_of(key, at)
                else:
                    place = place_of(key, tl.load(ids_ptr + at, mask=alive, other=0))
                amount = alive.to(tl.int64)
            else:
                x, power, token, alive = survivors(
                    keys_ptr, ids_ptr, start, count, top, inverse, min_p, by_logit, by_x, CHUNK
                )
                place = place_of(key_of(x), token) if ORDER == BY_X else surprise_place(x, token, mean)
                amount = tl.where(alive, mass_of(power), 0)
            held += tl.where(place[:, None] >= pivot[None, :], amount[:, None], 0)
            between = alive & (place >= low) & (place < high)
            first = tl.minimum(first, tl.where(between, place, high))
            last = tl.maximum(last, tl.where(between, place, low))
        enough = tl.sum((tl.sum(held, axis=0) >= need).to(tl.int64), axis=0)
        pivot_low = low + step * (enough - 1)
        high = tl.minimum(tl.minimum(high, pivot_low + step), tl.max(last, axis=0) + 1)
        low = tl.maximum(pivot_low, tl.min(first, axis=0))
    return low


@triton.jit
def moments(keys_ptr, ids_ptr, count, top, inverse, min_p, by_logit, by_x, CHUNK: tl.constexpr):
    """Mass in play, and the mean of x over it in fp64; both the same in any order of the candidates.

    Each product of mass and x is split at the binary point: two sums of integers.
    """
    masses = tl.zeros([CHUNK], tl.int64)
    wholes = tl.zeros([CHUNK], tl.int64)
    parts = tl.zeros([CHUNK], tl.int64)
    for start in range(0, count, CHUNK):
        x, power, _, alive = survivors(
            keys_ptr, ids_ptr, start, count, top, inverse, min_p, by_logit, by_x, CHUNK
        )
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
    """The token drawn from what top-k, top-p, min-p and typical leave, one after the other."""
    top = value_of(top_key)
    lowest = count.to(tl.int64) * 0 + NOTHING
    lowest = lowest << ID_BITS
    zero = lowest.to(tl.float64) * 0.0
    by_logit = lowest
    by_x = lowest
    by_surprise = lowest
    if (top_k > 0) & (top_k < count):
        high = (top_key.to(tl.int64) + 1) << ID_BITS
        by_logit = find_cut(
            *(keys_ptr, ids_ptr, count, top_k, lowest, high, top, inverse, 0.0, lowest, lowest, zero),
            *(BY_LOGIT, CHUNK, PIVOTS),
        )
    past_zero = lowest * 0 + LAST_ID + 1  # x and the negated surprise are at most 0
    if top_p < 1.0:
        total = row_mass
        if top_k > 0:
            total, _ = moments(keys_ptr, ids_ptr, count, top, inverse, 0.0, by_logit, lowest, CHUNK)
        need = share_of(total, top_p)
        by_x = find_cut(
            *(keys_ptr, ids_ptr, count, need, lowest, past_zero, top, inverse, 0.0, by_logit, lowest, zero),
            *(BY_X, CHUNK, PIVOTS),
        )
    mean = zero
    if typical_p < 1.0:
        total, mean = moments(keys_ptr, ids_ptr, count, top, inverse, min_p, by_logit, by_x, CHUNK)
        need = share_of(total, typical_p)
        by_surprise = find_cut(
            *(keys_ptr, ids_ptr, count, need, lowest, past_zero, top, inverse, min_p, by_logit, by_x, mean),
            *(BY_SURPRISE, CHUNK, PIVOTS),
        )
    best = zero - float("inf")
    winner = count * 0 - 1
    for start in range(0, count, CHUNK):
        x, _, token, alive = survivors(
            keys_ptr, ids_ptr, start, count, top, inverse, min_p, by_logit, by_x, CHUNK
        )
        alive &= surprise_place(x, token, mean) >= by_surprise
        best, winner = best_of(best, winner, x, token, alive, seed_low, seed_high, position)
    return winner
