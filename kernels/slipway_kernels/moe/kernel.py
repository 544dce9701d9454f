"""Products of rows with the matrices of their experts, in Triton: one launch for all experts."""

from __future__ import annotations

import triton
import triton.language as tl

from slipway_kernels.activation.kernel import activated


@triton.jit
def block_and_column(columns, TOGETHER: tl.constexpr):
    """Which block of rows and of columns this program computes.

    TOGETHER blocks of rows, most of one expert, walk through the columns together: a weight comes from memory
    once and from the L2 cache for the others.
    """
    program = tl.program_id(0)
    blocks = tl.num_programs(0) // columns
    first = program // (TOGETHER * columns) * TOGETHER
    together = tl.minimum(blocks - first, TOGETHER)
    within = program % (TOGETHER * columns)
    return first + within % together, within // together


@triton.jit
def _added(total, x, weight_at, scale, depth, left, EVEN_K: tl.constexpr, BLOCKS: tl.constexpr):
    """total + x · weightᵀ of one block of columns; by BLOCKS the product has scales [BLOCK_M] of its own."""
    w = tl.load(weight_at) if EVEN_K else tl.load(weight_at, mask=depth[:, None] < left, other=0.0)
    SUM: tl.constexpr = tl.int32 if x.dtype == tl.int8 else tl.float32
    if BLOCKS:
        total += tl.dot(x, w, out_dtype=SUM).to(tl.float32) * scale[:, None]
    else:
        total = tl.dot(x, w, total, input_precision="ieee", out_dtype=SUM)
    return total


@triton.jit
def _scales(x_scale_at, scale_at, up, block):
    """Of the products with a block of columns: the gate's, and those of up beyond it. [BLOCK_M] each"""
    x_scale = tl.load(x_scale_at + block)
    return x_scale * tl.load(scale_at + block), x_scale * tl.load(scale_at + up + block)


@triton.jit
def _scaled(total, total_up, x_scale_at, scale_at, n, GATED: tl.constexpr):
    """The sums times the scales of their rows of x and of the weights; up's are n beyond the gate's."""
    x_scale = tl.load(x_scale_at)[:, None]
    total *= x_scale * tl.load(scale_at)[None, :]
    if GATED:
        total_up *= x_scale * tl.load(scale_at + n)[None, :]
    return total, total_up


@triton.jit
def product_kernel(
    x_ptr,  # [rows or pairs, k]
    weight_ptr,  # [experts, n, k], or [experts, 2 · n, k], gate above up
    out_ptr,  # [pairs, n]
    x_scale_ptr,  # [rows or pairs] fp32, by blocks [rows or pairs, k / 128];  or None
    weight_scale_ptr,  # [experts, n or 2 · n] fp32, by blocks [experts, n or 2 · n / 128, k / 128];  or None
    sorted_pairs_ptr,  # [blocks · BLOCK_M] int32: a pair or -1
    expert_of_block_ptr,  # [blocks] int32: an expert or -1
    x_stride,
    expert_stride,
    weight_stride,
    out_stride,
    scale_stride,
    n,
    k,
    share,  # pairs that read one row of x
    ACTIVATION: tl.constexpr,
    EVEN_K: tl.constexpr,
    BLOCKS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    TOGETHER: tl.constexpr,  # see block_and_column
):
    """out[pair] = x[pair / share] · weight[expert]ᵀ, or activation(x · gateᵀ) · (x · upᵀ).

    Bound by memory while an expert has few rows: each weight is read once and a deep pipeline keeps the
    reads on their way; by the tensor cores beyond some 200 rows an expert. A program with an activation has
    a block of the gate and the same block of up, BLOCK_N / 2 wide each, so that their results meet in
    registers. Padding reads row 0 and writes nothing. With BLOCKS each 128 by 128 weights have a scale, as
    have 128 columns of a row of x: BLOCK_K is 128 then, and BLOCK_N at most that.
    """
    GATED: tl.constexpr = ACTIVATION != ""
    WIDTH: tl.constexpr = BLOCK_N // 2 if GATED else BLOCK_N
    INTEGERS: tl.constexpr = x_ptr.dtype.element_ty == tl.int8
    block, column = block_and_column(tl.cdiv(n, WIDTH), TOGETHER)
    expert = tl.load(expert_of_block_ptr + block).to(tl.int64)
    if expert < 0:
        return
    pair = tl.load(sorted_pairs_ptr + block * BLOCK_M + tl.arange(0, BLOCK_M))  # [BLOCK_M]
    row = tl.maximum(pair, 0).to(tl.int64) // share
    columns = column * WIDTH + tl.arange(0, WIDTH)
    # Columns beyond the last compute the first ones again: cheaper than a mask on every load.
    weight_row = columns % n
    depth = tl.arange(0, BLOCK_K)
    x_at = x_ptr + row[:, None] * x_stride + depth[None, :]  # [BLOCK_M, BLOCK_K]
    weight_ptr += expert * expert_stride
    # [BLOCK_K, WIDTH]
    weight_at = weight_ptr + weight_row.to(tl.int64)[None, :] * weight_stride + depth[:, None]
    up = tl.full((), n, tl.int64) * weight_stride
    total = tl.zeros((BLOCK_M, WIDTH), tl.int32 if INTEGERS and not BLOCKS else tl.float32)
    total_up = total
    steps = tl.cdiv(k, BLOCK_K)
    scale, scale_up = None, None
    if BLOCKS:
        x_scale_at = x_scale_ptr + row * steps
        scale_at = weight_scale_ptr + expert * scale_stride + column * WIDTH // 128 * steps
        up_scale = n // 128 * steps if GATED else 0
        scale, scale_up = _scales(x_scale_at, scale_at, up_scale, 0)
    for step in range(steps):
        left = k - step * BLOCK_K
        x = tl.load(x_at) if EVEN_K else tl.load(x_at, mask=depth[None, :] < left, other=0.0)
        if BLOCKS:  # the next block's scales are on their way while this block is multiplied
            following = tl.minimum(step + 1, steps - 1)
            next_scale, next_up = _scales(x_scale_at, scale_at, up_scale, following)
        total = _added(total, x, weight_at, scale, depth, left, EVEN_K, BLOCKS)
        if GATED:
            total_up = _added(total_up, x, weight_at + up, scale_up, depth, left, EVEN_K, BLOCKS)
        if BLOCKS:
            scale, scale_up = next_scale, next_up
        x_at += BLOCK_K
        weight_at += BLOCK_K
    total, total_up = total.to(tl.float32), total_up.to(tl.float32)
    if x_scale_ptr is not None and not BLOCKS:
        scale_at = weight_scale_ptr + expert * scale_stride + weight_row
        total, total_up = _scaled(total, total_up, x_scale_ptr + row, scale_at, n, GATED)
    if GATED:
        total = activated(total, ACTIVATION) * total_up
    at = out_ptr + pair.to(tl.int64)[:, None] * out_stride + columns[None, :]
    inside = (pair >= 0)[:, None] & (columns < n)[None, :]
    tl.store(at, total.to(out_ptr.dtype.element_ty), mask=inside)
