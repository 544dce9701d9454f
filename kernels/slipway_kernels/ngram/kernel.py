"""Prompt lookup in Triton: where the last tokens of a slot stood before, they may go on as they did there.

Two kernels, bound by reading tokens once and by latency: the first looks through a slot in pieces, the second
takes the best of what these found. What differs from step to step is not specialized for.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _drawing(request, slots_ptr, counts_ptr, num_tokens_ptr):
    """The slot of a request, and its known tokens: 0 where it drew nothing."""
    slot = tl.load(slots_ptr + request)
    drew = (slot >= 0) & (tl.load(counts_ptr + request) > 0)
    return slot, tl.load(num_tokens_ptr + slot, mask=drew, other=0)


@triton.jit(do_not_specialize=["max_n"])
def find_kernel(
    slots_ptr,  # [requests]  -1: padding
    counts_ptr,  # [requests]  tokens that each has drawn
    tokens_ptr,  # [num_slots, max_len]
    num_tokens_ptr,  # [num_slots]
    found_ptr,  # [requests, PIECES] int64, written
    tokens_stride,
    max_n,
    WIDTH: tl.constexpr,
    PIECES: tl.constexpr,
):
    """found = max over e of (n(e), -e): n(e) tokens up to e are the last n(e), of e in this program's pieces.

    n(e) = the largest n ≤ min(max_n, e + 1) with tokens[e - i] = tokens[known - 1 - i] for all i < n, and
    e < known - 1. Both halves lie in one number: n above, 2³¹ - 1 - e below.
    """
    request = tl.program_id(0)
    slot, known = _drawing(request, slots_ptr, counts_ptr, num_tokens_ptr)
    tokens_ptr += slot.to(tl.int64) * tokens_stride
    last = known - 1
    best = tl.zeros([WIDTH], tl.int64)
    for start in range(tl.program_id(1) * WIDTH, last, tl.num_programs(1) * WIDTH):
        end = start + tl.arange(0, WIDTH)
        token = tl.load(tokens_ptr + last)
        alike = (end < last) & (tl.load(tokens_ptr + end, mask=end < last, other=-1) == token)
        n = alike.to(tl.int32)
        longest = 1
        # Nearly everywhere nothing is alike, and one look is all.
        while (longest < max_n) & (tl.max(alike.to(tl.int32), axis=0) > 0):
            alike = alike & (end >= longest)
            token = tl.load(tokens_ptr + last - longest)
            alike = alike & (tl.load(tokens_ptr + end - longest, mask=alike, other=-1) == token)
            n += alike.to(tl.int32)
            longest += 1
        place = (n.to(tl.int64) << 32) + (0x7FFFFFFF - end)
        best = tl.maximum(best, tl.where(n > 0, place, 0))
    tl.store(found_ptr + request * PIECES + tl.program_id(1), tl.max(best, axis=0))


@triton.jit(do_not_specialize=["max_len", "pieces", "most", "min_n"])
def draft_kernel(
    slots_ptr,  # [requests]  -1: padding
    counts_ptr,  # [requests]
    found_ptr,  # [requests, PIECES] int64, of which `pieces` are written
    tokens_ptr,  # [num_slots, max_len]
    num_tokens_ptr,  # [num_slots]
    num_drafts_ptr,  # [num_slots]
    tokens_stride,
    max_len,
    pieces,
    most,
    min_n,
    WIDTH: tl.constexpr,
    PIECES: tl.constexpr,
):
    """tokens[known + i] = tokens[e + 1 + i] for i < min(most, known - e - 1, max_len - known), of the best e
    where its n is min_n or more."""
    request = tl.program_id(0)
    slot, known = _drawing(request, slots_ptr, counts_ptr, num_tokens_ptr)
    piece = tl.arange(0, PIECES)
    best = tl.max(tl.load(found_ptr + request * PIECES + piece, mask=piece < pieces, other=0), axis=0)
    begin = 0x7FFFFFFF - (best & 0x7FFFFFFF).to(tl.int32) + 1
    count = tl.minimum(tl.minimum(most, known - begin), max_len - known)
    count = tl.where(best >> 32 >= min_n, tl.maximum(count, 0), 0)
    tokens_ptr += slot.to(tl.int64) * tokens_stride
    for start in range(0, count, WIDTH):
        number = start + tl.arange(0, WIDTH)
        token = tl.load(tokens_ptr + begin + number, mask=number < count)
        tl.store(tokens_ptr + known + number, token, mask=number < count)
    tl.store(num_drafts_ptr + slot, count, mask=known > 0)
