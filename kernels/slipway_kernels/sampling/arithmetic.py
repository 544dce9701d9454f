"""What is computed of a single logit, as reference.py defines it: the same bits on every device.

fp32 without contraction of a · b + c (the launch asks for it), an exponential of our own, masses that are
integers, and noise of a counter.
"""

from __future__ import annotations

import triton
import triton.language as tl

LARGEST = tl.constexpr(3.4028234663852886e38)
MASS_UNIT = tl.constexpr(2.0**42)
# Of -inf, as key_of gives it; and what is put for a NaN, above every number.
NOTHING = tl.constexpr(-2139095041)
UNORDERED = tl.constexpr(0x7FFFFFFF)
ID_BITS = tl.constexpr(20)
LAST_ID = tl.constexpr(2**20 - 1)
# A mass is zero below -31, and no x below -26.01 wins a draw against the x = 0 of the most likely token, for
# noise lies between -3.14 and 22.88.
NO_MASS = tl.constexpr(-32.0)
HOPELESS = tl.constexpr(-27.0)
# More than fp32 errs in x + noise, for x above NO_MASS.
MARGIN = tl.constexpr(2e-3)


@triton.jit
def key_of(value):
    """An int32 that orders as the fp32 does; -0 equals +0."""
    bits = (value + 0.0).to(tl.int32, bitcast=True)
    return tl.where(value != value, UNORDERED, bits ^ ((bits >> 31) & 0x7FFFFFFF))


@triton.jit
def value_of(key):
    return (key ^ ((key >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


@triton.jit
def place_of(key, token):
    """An int64 for each token of a row, no two equal: larger key first, then lower id."""
    return (key.to(tl.int64) << ID_BITS) | (token ^ LAST_ID).to(tl.int64)


@triton.jit
def highest_place_of(key):
    """That no token of this key is above."""
    return (key.to(tl.int64) << ID_BITS) | LAST_ID


@triton.jit
def scaled(value, top, inverse):
    """(logit - largest) / temperature, where +inf counts as the largest finite number."""
    return (tl.minimum(value, LARGEST) - tl.minimum(top, LARGEST)) * inverse


@triton.jit
def exponential(x):
    """exp of x <= 0, relative error below 2e-7; what is below -64 counts as -64."""
    x = tl.maximum(x, -64.0)
    n = (x * 1.44269504 + 12582912.0) - 12582912.0
    r = (x - n * 0.693359375) - n * -2.12194440e-4
    p = r * 1.9875691500e-4 + 1.3981999507e-3
    p = p * r + 8.3334519073e-3
    p = p * r + 4.1665795894e-2
    p = p * r + 1.6666665459e-1
    p = p * r + 5.0000001201e-1
    p = p * (r * r) + r + 1.0
    return p * ((n.to(tl.int32) + 127) << 23).to(tl.float32, bitcast=True)


@triton.jit
def mass_of(power):
    """exp(x) in units of 2^-42, rounded to nearest, ties to even; int64."""
    units = power * MASS_UNIT
    # Above 2^23 an fp32 has no fraction left; below, adding 2^23 rounds it away.
    return tl.where(units < 8388608.0, (units + 8388608.0) - 8388608.0, units).to(tl.int64)


@triton.jit
def philox(seed_low, seed_high, position, token):
    """First words of Philox4x32-10 under the counters (position, token, 0, 0), uint32. Salmon et al. 2011."""
    c1 = token.to(tl.uint32)
    c2 = c1 * 0
    c3 = c2
    c0 = c2 + position.to(tl.uint32)
    k0 = seed_low.to(tl.uint32, bitcast=True)
    k1 = seed_high.to(tl.uint32, bitcast=True)
    for _ in tl.static_range(10):
        a = c0.to(tl.uint64) * 0xD2511F53
        b = c2.to(tl.uint64) * 0xCD9E8D57
        c0 = (b >> 32).to(tl.uint32) ^ c1 ^ k0
        c1 = b.to(tl.uint32)
        c2 = (a >> 32).to(tl.uint32) ^ c3 ^ k1
        c3 = a.to(tl.uint32)
        k0 += 0x9E3779B9
        k1 += 0xBB67AE85
    return c0


@triton.jit
def noise_of(word):
    """-log(-log u), u = (word + 0.5) · 2^-32, in fp64: Gumbel noise."""
    uniform = (word.to(tl.float64) + 0.5) * 2.3283064365386963e-10
    return -tl.log(-tl.log(uniform))


@triton.jit
def rough_noise_of(word):
    """The same in fp32, with an error below MARGIN / 8."""
    uniform = (word.to(tl.float32) + 0.5) * 2.3283064365386963e-10
    rest = ((word ^ 0xFFFFFFFF).to(tl.float32) + 0.5) * 2.3283064365386963e-10
    # Near 1 the logarithm is its series in what is missing to 1.
    series = rest * (1.0 + rest * (0.5 + rest * 0.33333334))
    return -tl.log(tl.where(rest < 0.0625, series, -tl.log(uniform)))


@triton.jit
def best_of(best, winner, x, token, alive, seed_low, seed_high, position):
    """Enter tokens into a draw: the largest x + noise wins, the lower id where two are equal.

    best, winner  so far: fp64, and its token or -1
    x, token      [n]  fp32, int32; x is above NO_MASS wherever `alive`
    Noise is computed roughly for all, and exactly for the one or two that it leaves in reach.
    """
    word = philox(seed_low, seed_high, position, token)
    rough = tl.where(alive, x + rough_noise_of(word), -float("inf"))
    least = tl.maximum(tl.max(rough, axis=0), best.to(tl.float32)) - MARGIN
    near = alive & (rough >= least)
    candidate = tl.min(tl.where(near, token, LAST_ID), axis=0)
    while candidate < LAST_ID:
        its_x = tl.max(tl.where(near & (token == candidate), x, -float("inf")), axis=0)
        score = its_x.to(tl.float64) + noise_of(philox(seed_low, seed_high, position, candidate))
        wins = (score > best) | ((score == best) & (candidate < winner))
        best = tl.where(wins, score, best)
        winner = tl.where(wins, candidate, winner)
        candidate = tl.min(tl.where(near & (token > candidate), token, LAST_ID), axis=0)
    return best, winner
