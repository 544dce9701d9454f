"""Products with experts of four or eight bits, in Triton: linear_w4a16's program for many matrices."""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from __future__ import annotations

import triton
import triton.language as tl

from slipway_kernels.activation.kernel import activated
from slipway_kernels.linear_w4a16.kernel_unpack import halves, weights
from slipway_kernels.moe.kernel import block_and_column


@triton.jit
def _added(total, words, params, mask, x, BITS: tl.constexpr, FORM: tl.constexpr, PTX: tl.constexpr):
    """total + W · x of one block of columns; a code's scale follows its product."""
    w = weights(words, params, mask, BITS, FORM, x.dtype, PTX)
    if FORM == "code":
        scale, _ = halves(params, x.dtype)
        total += tl.dot(w, x) * scale.to(tl.float32)
    else:
        total = tl.dot(w, x, total)
    return total


@triton.jit
def product_w4a16_kernel(
    x_ptr,  # [rows or pairs, k]  bf16 or fp16
    words_ptr,  # [steps, experts · height, WORDS] int32
    params_ptr,  # [groups, experts · height] int32
    mask_ptr,  # [1] int32
    out_ptr,  # [pairs, n]
    sorted_pairs_ptr,  # [blocks · BLOCK_M] int32: a pair or -1
    expert_of_block_ptr,  # [blocks] int32: an expert or -1
    x_stride,
    out_stride,
    all_rows,  # experts · height
    height,  # rows of an expert's matrix: n, or 2 · n, gate above up
    n,
    k,
    share,  # pairs that read one row of x
    ACTIVATION: tl.constexpr,
    EVEN_K: tl.constexpr,
    BITS: tl.constexpr,
    GROUP: tl.constexpr,  # columns, or 0 where a row has one scale
    SHIFTED: tl.constexpr,
    PTX: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    TOGETHER: tl.constexpr,  # see block_and_column
):
    """out[pair] = x[pair / share] · W[expert]ᵀ, or activation(x · gateᵀ) · (x · upᵀ).

    Computed as outᵀ = W · xᵀ, as linear_w4a16 does and for its reason; the experts are one matrix, in
    its layout. A program with an activation has BLOCK_N / 2 rows of the gate and the same rows of up.
    """
    GATED: tl.constexpr = ACTIVATION != ""
    WIDTH: tl.constexpr = BLOCK_N // 2 if GATED else BLOCK_N
    WORDS: tl.constexpr = 16
    K: tl.constexpr = WORDS * 32 // BITS
    # See linear_w4a16_kernel for these three.
    HALVES: tl.constexpr = 2 if BLOCK_M > 32 else 1
    GROUPS: tl.constexpr = K // GROUP if GROUP > 0 and GROUP * HALVES < K else HALVES
    FORM: tl.constexpr = "minimum" if not SHIFTED else "code" if GROUPS == 1 and BLOCK_M <= 16 else "shift"
    block, column = block_and_column(tl.cdiv(n, WIDTH), TOGETHER)
    expert = tl.load(expert_of_block_ptr + block)
    if expert < 0:
        return
    pair = tl.load(sorted_pairs_ptr + block * BLOCK_M + tl.arange(0, BLOCK_M))  # [BLOCK_M]
    source = tl.maximum(pair, 0).to(tl.int64) // share
    columns = column * WIDTH + tl.arange(0, WIDTH)
    row = expert * height + columns % n  # beyond the last column, the first ones again
    words_at = words_ptr + row[:, None] * WORDS + tl.arange(0, WORDS)[None, :]  # [WIDTH, WORDS]
    params_at = params_ptr + row[:, None]
    x_at = x_ptr + source[None, :] * x_stride + tl.arange(0, K)[:, None]  # [K, BLOCK_M]
    mask = tl.load(mask_ptr + tl.arange(0, 1))[:, None]
    total = tl.zeros((WIDTH, BLOCK_M), tl.float32)
    total_up = total
    for step in range(tl.cdiv(k, K)):
        part = tl.arange(0, GROUPS)[None, :]
        group = (step * K + part * (K // GROUPS)) // GROUP if GROUP else part * 0
        params = params_at + group.to(tl.int64) * all_rows  # [WIDTH, GROUPS]
        if EVEN_K:
            x = tl.load(x_at + step * K)
        else:
            x = tl.load(x_at + step * K, mask=tl.arange(0, K)[:, None] < k - step * K, other=0.0)
        total = _added(total, tl.load(words_at), tl.load(params), mask, x, BITS, FORM, PTX)
        if GATED:
            words = tl.load(words_at + n * WORDS)
            total_up = _added(total_up, words, tl.load(params + n), mask, x, BITS, FORM, PTX)
        words_at += all_rows * WORDS
    if GATED:
        total = activated(total, ACTIVATION) * total_up
    at = out_ptr + pair.to(tl.int64)[None, :] * out_stride + columns[:, None]
    inside = (pair >= 0)[None, :] & (columns < n)[:, None]
    tl.store(at, total.to(out_ptr.dtype.element_ty), mask=inside)
