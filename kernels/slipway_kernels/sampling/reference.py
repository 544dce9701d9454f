"""One row of logits becomes a token: the definition that kernel.cpp equals, token for token.

In this order:
1. A row with a NaN, or with nothing above -inf, fails.
2. Log-probabilities are those of the untouched row.
3. Edits: tokens that the mask or the allowed list leaves out, last tokens of bad words that would complete,
   and stop tokens before the minimum length become -inf; then logit bias is added; then come the penalties:
   repetition over prompt and output (Keskar et al. 2019), frequency and presence over the output (as the
   OpenAI API defines them). A row with nothing above -inf now fails too.
4. Temperature 0 takes the largest logit. Otherwise x = (logit - largest) / temperature, and the filters
   top-k, top-p (Holtzman et al. 2020), min-p (Nguyen et al. 2024) and typical (Meister et al. 2022) follow
   each other, each over the probabilities renormalised over what the one before it left.
5. Of the survivors, the largest x - log(-log u) is drawn (Gumbel-max), u = (w + 0.5) · 2^-32 with w the first
   word of Philox4x32-10 under key = seed and counter = (position, token, 0, 0): a token's draw depends on
   nothing else.

A draft of the token may stand for it, by the rule of typical acceptance (Cai et al. 2024): where the
temperature is not 0 and p(draft) > min(threshold, alpha · exp(-H)). p is what the row is drawn from, behind
edits, temperature and filters, so that nothing is accepted that a request forbids, and H is its entropy. Sums
of mass · x are of integers, each product rounded down.

Every tie goes to the lower token id. Top-k keeps the largest logits; top-p the shortest prefix, in descending
order of x, whose mass reaches its share; typical the same in ascending order of |-log p - H|. Logits, x and
that distance are fp32; a mass is exp(x) rounded to a multiple of 2^-42, so that sums are exact in any order.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]
Integers = NDArray[np.int64]
Words = NDArray[np.uint64]
Mask = NDArray[np.uint32]

MASS_UNIT = 2.0**42


@dataclass(frozen=True, slots=True)
class Sampling:
    """How tokens are drawn; `sw_sampling` of slipway.h. The defaults change nothing."""

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    typical_p: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    min_tokens: int = 0
    seed: int = 0
    bias: tuple[tuple[int, float], ...] = ()
    allowed: tuple[int, ...] = ()
    stop: tuple[int, ...] = ()
    bad_words: tuple[tuple[int, ...], ...] = ()


@dataclass(frozen=True, slots=True)
class Drawn:
    """`token` is -1 where the row failed; the rest is zero or empty where it was not asked for."""

    token: int
    failed: bool = False
    logprob: float = 0.0
    rank: int = 0
    top: tuple[tuple[int, float], ...] = ()
    """The most likely tokens with their log-probabilities, best first."""


@dataclass(frozen=True, slots=True)
class Draft:
    """A guess of the token that is drawn, with the constants of the rule by which it stands for it."""

    token: int
    threshold: float
    alpha: float


FAILED = Drawn(token=-1, failed=True)


def sample_row(
    sampling: Sampling,
    logits: Floats,
    history: tuple[int, ...] = (),
    prompt_len: int = 0,
    *,
    given: int = -1,
    want_logprob: bool = False,
    num_top: int = 0,
    mask: Mask | None = None,
    draft: Draft | None = None,
) -> Drawn:
    """Draws the token after `history`, or reports on the given one.

    logits   [vocab]  fp32
    history  prompt, then output; its length is the position of the token drawn
    mask     [ceil(vocab / 32)]  bits, one a token that may be drawn; None: all may
    draft    taken where typical acceptance accepts it; None: nothing but the draw counts
    """
    if not drawable(logits):
        return FAILED
    token = given
    if token < 0:
        edited = edit(sampling, masked(logits, mask), history, prompt_len)
        if not drawable(edited):
            return FAILED
        token = draw(sampling, edited, len(history), draft)
    return report(logits, token, num_top) if want_logprob else Drawn(token)


def drawable(logits: Floats) -> bool:
    return not np.isnan(logits).any() and bool((logits > -np.inf).any())


def report(logits: Floats, token: int, num_top: int) -> Drawn:
    x = scaled(logits, temperature=1.0)
    logprobs = x.astype(np.float64) - math.log(int(mass(x).sum()) / MASS_UNIT)
    order = descending(logits)
    top = tuple((int(i), float(np.float32(logprobs[i]))) for i in order[:num_top])
    rank = 1 + int(np.flatnonzero(order == token)[0])
    return Drawn(token, logprob=float(np.float32(logprobs[token])), rank=rank, top=top)


def masked(logits: Floats, mask: Mask | None) -> Floats:
    if mask is None:
        return logits
    tokens = np.arange(len(logits))
    return np.where(mask[tokens // 32] >> (tokens % 32).astype(np.uint32) & 1, logits, np.float32(-np.inf))


def edit(s: Sampling, logits: Floats, history: tuple[int, ...], prompt_len: int) -> Floats:
    row = logits.copy()
    vocab, output = len(row), history[prompt_len:]
    if s.allowed:
        row[:] = -np.inf
        allowed = [token for token in s.allowed if token < vocab]
        row[allowed] = logits[allowed]
    for *before, last in s.bad_words:
        if last < vocab and history[len(history) - len(before) :] == tuple(before):
            row[last] = -np.inf
    if len(output) < s.min_tokens:
        row[[token for token in s.stop if token < vocab]] = -np.inf
    for token, bias in s.bias:
        if token < vocab:
            row[token] += np.float32(bias)
    counts = Counter(output)
    for token in set(history):
        repetition = np.float32(s.repetition_penalty)
        row[token] = row[token] / repetition if row[token] > 0 else row[token] * repetition
        row[token] -= np.float32(counts[token]) * np.float32(s.frequency_penalty)
        row[token] -= np.float32(counts[token] > 0) * np.float32(s.presence_penalty)
    return row


def draw(s: Sampling, logits: Floats, position: int, draft: Draft | None = None) -> int:
    if s.temperature == 0:
        return int(logits.argmax())
    x = scaled(logits, s.temperature)
    ids = np.flatnonzero(logits > -np.inf)
    if 0 < s.top_k < len(logits):
        ids = ids[descending(logits[ids])[: s.top_k]]
        ids.sort()
    if s.top_p < 1:
        ids = shortest(ids, -x[ids], mass(x[ids]), s.top_p)
    if s.min_p > 0:
        ids = ids[exponential(x[ids]) >= np.float32(min(s.min_p, 1.0))]
    if s.typical_p < 1:
        ids = shortest(ids, surprise(x[ids]), mass(x[ids]), s.typical_p)
    if draft is not None and accepts(draft, ids, x[ids]):
        return draft.token
    return int(ids[np.argmax(x[ids] + gumbel(s.seed, position, ids))])


def accepts(draft: Draft, ids: Integers, x: Floats) -> bool:
    """p(draft) > min(threshold, alpha · exp(-H)), p over `ids` alone; both sides times all mass.

    With log p = x - log(all mass), exp(-H) is exp(E[x]) / all mass: no entropy is computed.
    """
    masses = mass(x)
    # x may be -inf where there is no mass.
    products = np.floor(masses * np.where(masses > 0, x, 0).astype(np.float64)).astype(np.int64)
    total = float(masses.sum())
    likely = float(np.float32(draft.alpha)) * (math.exp(float(products.sum()) / total) * MASS_UNIT)
    its_mass = float(masses[ids == draft.token].sum())
    return its_mass > min(float(np.float32(draft.threshold)) * total, likely)


def descending(values: Floats) -> Integers:
    """Indices in descending order of value, ties in ascending order of index."""
    return np.argsort(-values, kind="stable")


def scaled(logits: Floats, temperature: float) -> Floats:
    """(logit - largest) / temperature in fp32, where +inf counts as the largest finite number."""
    largest = np.finfo(np.float32).max
    finite = np.minimum(logits, largest)
    with np.errstate(over="ignore"):
        inverse = min(np.float32(1) / np.float32(temperature), largest)
        x: Floats = (finite - finite.max()) * inverse
    return x


def exponential(x: Floats) -> Floats:
    """exp of x <= 0 in fp32, relative error below 2e-7; what is below -64 counts as -64."""
    f = np.float32
    x = np.maximum(x, f(-64))
    n = (x * f(1.44269504) + f(12582912)) - f(12582912)
    r = (x - n * f(0.693359375)) - n * f(-2.12194440e-4)
    p = np.full_like(r, 1.9875691500e-4)
    for c in (1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1):
        p = p * r + f(c)
    power: Floats = np.ldexp(p * (r * r) + r + f(1), n.astype(np.int32))
    return power


def mass(x: Floats) -> Integers:
    return np.rint(exponential(x).astype(np.float64) * MASS_UNIT).astype(np.int64)


def shortest(ids: Integers, distance: Floats, masses: Integers, share: float) -> Integers:
    """The nearest ids, as few as hold `share` of all mass but at least one; in ascending order."""
    order = np.argsort(distance, kind="stable")
    total = int(masses.sum())
    need = min(total, max(1, math.ceil(float(np.float32(share)) * float(total))))
    count = 1 + int(np.searchsorted(np.cumsum(masses[order]), need))
    return np.sort(ids[order[:count]])


def surprise(x: Floats) -> Floats:
    """|-log p - H|, which is |x - E[x]| whatever the normalisation."""
    masses, wide = mass(x), x.astype(np.float64)
    # x may be -inf where there is no mass. cumsum adds in order of id; sum would not.
    held = masses > 0
    mean = np.cumsum(masses[held] * wide[held])[-1] / float(masses.sum())
    distance: Doubles = np.abs(wide - mean)
    return distance.astype(np.float32)


def gumbel(seed: int, position: int, ids: Integers) -> Doubles:
    words = philox(seed, position, ids).astype(np.float64)
    noise: Doubles = -np.log(-np.log((words + 0.5) * 2.0**-32))
    return noise


def philox(seed: int, position: int, ids: Integers) -> Words:
    """First words of Philox4x32-10 at the counters (position, id, 0, 0)."""
    zeros = np.zeros(len(ids), np.uint64)
    counter = (zeros + np.uint64(position), ids.astype(np.uint64), zeros, zeros)
    return philox_block(counter, seed)[0]


def philox_block(counter: tuple[Words, Words, Words, Words], seed: int) -> tuple[Words, ...]:
    """Philox4x32-10 (Salmon et al. 2011) under a 64-bit key: four words, each below 2^32, of each counter."""
    low = np.uint64(0xFFFFFFFF)
    c0, c1, c2, c3 = counter
    k0, k1 = seed & 0xFFFFFFFF, seed >> 32
    for _ in range(10):
        a, b = c0 * np.uint64(0xD2511F53), c2 * np.uint64(0xCD9E8D57)
        c0, c1 = (b >> np.uint64(32)) ^ c1 ^ np.uint64(k0), b & low
        c2, c3 = (a >> np.uint64(32)) ^ c3 ^ np.uint64(k1), a & low
        k0, k1 = (k0 + 0x9E3779B9) & 0xFFFFFFFF, (k1 + 0xBB67AE85) & 0xFFFFFFFF
    return c0, c1, c2, c3
