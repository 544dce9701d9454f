"""Heads in registers: loaded as their pairs and the rest, normed and rotated, and stored."""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from __future__ import annotations

import triton
import triton.language as tl

from slipway_kernels.quantize.kernel import stored


@triton.jit
def load_pairs(
    head_ptr,  # [ROWS, 1]
    inside,  # [ROWS, 1]
    ROWS: tl.constexpr,
    HALF: tl.constexpr,
    PADDED: tl.constexpr,
    ADJACENT: tl.constexpr,
):
    """First and second of each pair, [ROWS, PADDED] in fp32."""
    if ADJACENT:
        # Read as they lie, sixteen bytes a thread, and parted in registers.
        column = tl.arange(0, 2 * PADDED)[None, :]
        both = tl.load(head_ptr + column, mask=inside & (column < 2 * HALF), other=0.0)
        first, second = tl.split(tl.reshape(both.to(tl.float32), (ROWS, PADDED, 2)))
    else:
        column = tl.arange(0, PADDED)[None, :]
        within = inside & (column < HALF)
        first = tl.load(head_ptr + column, mask=within, other=0.0).to(tl.float32)
        second = tl.load(head_ptr + HALF + column, mask=within, other=0.0).to(tl.float32)
    return first, second


@triton.jit
def vector_pairs(
    vector_ptr,  # [2 · HALF]
    HALF: tl.constexpr,
    PADDED: tl.constexpr,
    ADJACENT: tl.constexpr,
):
    """First and second of each pair, [PADDED] in fp32.

    They are read in one dimension: as a row they would have a layout of their own, and Triton would move all
    heads through shared memory to it and back.
    """
    pair = tl.arange(0, PADDED)
    vector_ptr += 2 * pair if ADJACENT else pair
    first = tl.load(vector_ptr, mask=pair < HALF, other=0.0).to(tl.float32)
    second = tl.load(vector_ptr + (1 if ADJACENT else HALF), mask=pair < HALF, other=0.0).to(tl.float32)
    return first, second


@triton.jit
def load_rest(
    head_ptr,  # [ROWS, 1]
    inside,  # [ROWS, 1]
    HEAD_DIM: tl.constexpr,
    HALF: tl.constexpr,
    REST: tl.constexpr,
):
    """What is beyond the pairs, [ROWS, REST] in fp32."""
    column = 2 * HALF + tl.arange(0, REST)[None, :]
    return tl.load(head_ptr + column, mask=inside & (column < HEAD_DIM), other=0.0).to(tl.float32)


@triton.jit
def store_head(
    head_ptr,  # [ROWS, 1]
    inside,  # [ROWS, 1]
    first,  # [ROWS, PADDED]
    second,  # [ROWS, PADDED]
    rest,  # [ROWS, REST]
    HEAD_DIM: tl.constexpr,
    HALF: tl.constexpr,
    PADDED: tl.constexpr,
    REST: tl.constexpr,
    ADJACENT: tl.constexpr,
    LIMIT: tl.constexpr,
):
    """The inverse of the loads, in the memory's type; saturated where it has a LIMIT."""
    dtype = head_ptr.dtype.element_ty
    if ADJACENT:
        column = tl.arange(0, 2 * PADDED)[None, :]
        both = stored(tl.interleave(first, second), dtype, LIMIT)
        tl.store(head_ptr + column, both, mask=inside & (column < 2 * HALF))
    else:
        column = tl.arange(0, PADDED)[None, :]
        within = inside & (column < HALF)
        tl.store(head_ptr + column, stored(first, dtype, LIMIT), mask=within)
        tl.store(head_ptr + HALF + column, stored(second, dtype, LIMIT), mask=within)
    column = 2 * HALF + tl.arange(0, REST)[None, :]
    tl.store(head_ptr + column, stored(rest, dtype, LIMIT), mask=inside & (column < HEAD_DIM))


@triton.jit
def turned(
    head_ptr,  # [HEADS, 1]
    inside,  # [HEADS, 1]
    weight_ptr,  # [HEAD_DIM]  or None
    cos_sin_ptr,  # [HALF, 2], of the row's position  or None
    eps,
    ADD_ONE: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    HEADS: tl.constexpr,
    HALF: tl.constexpr,
    PADDED: tl.constexpr,
    REST: tl.constexpr,
    ADJACENT: tl.constexpr,
):
    """Heads with their norm and rotation: (a, b) becomes (a · cos − b · sin, b · cos + a · sin)."""
    # All loads come first: what follows has barriers, and no load would pass them.
    first, second = load_pairs(head_ptr, inside, HEADS, HALF, PADDED, ADJACENT)
    rest = load_rest(head_ptr, inside, HEAD_DIM, HALF, REST)
    if weight_ptr is not None:
        weight_first, weight_second = vector_pairs(weight_ptr, HALF, PADDED, ADJACENT)
        beyond = 2 * HALF + tl.arange(0, REST)
        weight_rest = tl.load(weight_ptr + beyond, mask=beyond < HEAD_DIM, other=0.0).to(tl.float32)
    if cos_sin_ptr is not None:
        cos, sin = vector_pairs(cos_sin_ptr, HALF, PADDED, True)
    if weight_ptr is not None:
        total = tl.sum(first * first + second * second, axis=1) + tl.sum(rest * rest, axis=1)
        scale = tl.rsqrt(total / HEAD_DIM + eps)[:, None]
        if ADD_ONE:
            weight_first, weight_second, weight_rest = weight_first + 1, weight_second + 1, weight_rest + 1
        first *= scale * weight_first[None, :]
        second *= scale * weight_second[None, :]
        rest *= scale * weight_rest[None, :]
    if cos_sin_ptr is not None:
        cos, sin = cos[None, :], sin[None, :]
        first, second = first * cos - second * sin, second * cos + first * sin
    return first, second, rest
