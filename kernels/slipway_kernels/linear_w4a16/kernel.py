"""Products with weights of four or eight bits in Triton: y = x · Wᵀ + bias, W made in registers.

A program computes outᵀ = W · xᵀ, so that the weights, which are unpacked in registers, are the operand that
tensor cores take from registers, and no number of them goes through shared memory a second time. The words'
order (layout.py) makes the two halves of every word neighbours along K: the bits that are masked out of a
word are one register of the operand.
"""

from __future__ import annotations

import triton
import triton.language as tl

from slipway_kernels.linear_w4a16.kernel_unpack import halves, weights


@triton.jit
def _sum_of_splits(partial_ptr, entry, size, inside, BLOCK_N: tl.constexpr, BLOCK_M: tl.constexpr):
    """[BLOCK_N, BLOCK_M]: what all splits have stored, `size` numbers apart, added in their order."""
    acc = tl.zeros((BLOCK_N, BLOCK_M), tl.float32)
    # Loads of a few splits are on their way at a time; the order of the sum stays.
    TOGETHER: tl.constexpr = max(2, 64 // BLOCK_M)
    for first in range(0, tl.num_programs(2), TOGETHER):
        for other in tl.static_range(TOGETHER):
            there = inside & (first + other < tl.num_programs(2))
            # The entries last: pointers of a whole tile that live through the loop spill registers.
            at = partial_ptr + (first + other) * size + entry
            acc += tl.load(at, mask=there, other=0.0, cache_modifier=".cg")
    return acc


@triton.jit(do_not_specialize=["m", "blocks"])
def linear_w4a16_kernel(
    x_ptr,  # [m, k]  bf16 or fp16
    words_ptr,  # [blocks, n, WORDS]  int32
    params_ptr,  # [groups, n]  int32
    mask_ptr,  # [1]  int32
    bias_ptr,  # [n]  or None
    out_ptr,  # [m, n]
    partial_ptr,  # [splits, m, n]  fp32, or None
    arrived_ptr,  # [tiles]  int32, all 0, or None
    x_stride,
    out_stride,
    m,
    n,
    k,
    blocks,  # that a split sums over
    BITS: tl.constexpr,
    GROUP: tl.constexpr,  # columns, or 0 where a row has one scale
    SHIFTED: tl.constexpr,
    PTX: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_M: tl.constexpr,
):
    """out[i, j] = Σ_c x[i, c] · W[j, c] + bias[j]: programs by rows of x, by rows of W, by splits of K.

    The splits of a tile leave their sums in `partial`; the last to arrive adds them up in their order, so
    that a result does not depend on who was last, and sets the count back to 0 for the next launch.
    """
    WORDS: tl.constexpr = 16
    K: tl.constexpr = WORDS * 32 // BITS
    # Triton multiplies each half of K by itself where the operand comes from registers (wgmma), and divides
    # it without moving numbers about where the scales have halves, too.
    HALVES: tl.constexpr = 2 if BLOCK_M > 16 else 1
    GROUPS: tl.constexpr = K // GROUP if GROUP > 0 and GROUP * HALVES < K else HALVES
    # With few rows of x it is cheaper to scale a block's sums than its weights.
    FORM: tl.constexpr = "minimum" if not SHIFTED else "code" if GROUPS == 1 and BLOCK_M <= 16 else "shift"
    column = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    row = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    split = tl.program_id(2)
    in_x, in_w = (column < m)[None, :], (row < n)[:, None]
    x_at = x_ptr + column[None, :].to(tl.int64) * x_stride
    words_at = words_ptr + row[:, None] * WORDS + tl.arange(0, WORDS)[None, :]
    block_size = tl.cast(n, tl.int64) * WORDS
    params_at = params_ptr + row[:, None]
    # Loaded: a constant would be written to a register again for every word that it masks, which is one
    # instruction in seven.
    mask = tl.load(mask_ptr + tl.arange(0, 1))[:, None]
    acc = tl.zeros((BLOCK_N, BLOCK_M), tl.float32)
    begin = split * blocks
    end = tl.minimum(begin + blocks, tl.cdiv(k, K))
    tl.assume(begin < end)  # or each wgmma would wait for the last: the sums might be the zeros above
    for block in range(begin, end):
        words = tl.load(words_at + block * block_size, mask=in_w, other=0)
        c = block * K + tl.arange(0, K)[:, None]
        part = tl.arange(0, GROUPS)[None, :]
        group = (block * K + part * (K // GROUPS)) // GROUP if GROUP else part * 0
        params = tl.load(params_at + group.to(tl.int64) * n, mask=in_w, other=0)
        x = tl.load(x_at + c, mask=in_x & (c < k), other=0.0)
        w = weights(words, params, mask, BITS, FORM, x_ptr.dtype.element_ty, PTX)
        if FORM == "code":
            scale, _ = halves(params, x_ptr.dtype.element_ty)
            acc += tl.dot(w, x) * scale.to(tl.float32)
        else:
            acc = tl.dot(w, x, acc)
    inside = in_x & in_w
    entry = column[None, :].to(tl.int64) * n + row[:, None]
    last = True
    if partial_ptr is not None:
        size = tl.cast(m, tl.int64) * n
        tl.store(partial_ptr + split * size + entry, acc, mask=inside)
        tl.debug_barrier()  # the whole program has stored before one thread says so
        arrived = arrived_ptr + tl.program_id(1) * tl.num_programs(0) + tl.program_id(0)
        last = tl.atomic_add(arrived, 1) == tl.num_programs(2) - 1
        if last:
            acc = _sum_of_splits(partial_ptr, entry, size, inside, BLOCK_N, BLOCK_M)
            tl.store(arrived, 0)
    if last:
        if bias_ptr is not None:
            acc += tl.load(bias_ptr + row, mask=row < n, other=0.0).to(tl.float32)[:, None]
        at = out_ptr + column[None, :].to(tl.int64) * out_stride + row[:, None]
        tl.store(at, acc.to(out_ptr.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["first", "rows"])
def dequantize_kernel(
    ids_ptr,  # [rows]  int32 or int64, -1 for rows to leave; or None for first, first + 1, …
    words_ptr,  # [blocks, n, WORDS]  int32
    params_ptr,  # [groups, n]  int32
    mask_ptr,  # [1]  int32
    order_ptr,  # [k]  int32  where each column belongs, or None where they stay
    out_ptr,  # [rows, k]
    out_stride,
    first,
    rows,
    n,
    k,
    BITS: tl.constexpr,
    GROUP: tl.constexpr,
    SHIFTED: tl.constexpr,
    PTX: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """out = rows of W: programs by blocks of columns and by BLOCK_N rows."""
    WORDS: tl.constexpr = 16
    K: tl.constexpr = WORDS * 32 // BITS
    GROUPS: tl.constexpr = K // GROUP if GROUP > 0 and GROUP < K else 1
    block = tl.program_id(0).to(tl.int64)
    line = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    if ids_ptr is not None:
        row = tl.load(ids_ptr + line, mask=line < rows, other=-1).to(tl.int64)
    else:
        row = tl.where(line < rows, first + line, -1).to(tl.int64)
    inside = (row >= 0)[:, None]
    row = row[:, None]
    words = tl.load(
        words_ptr + (block * n + row) * WORDS + tl.arange(0, WORDS)[None, :], mask=inside, other=0
    )
    group = block * K // GROUP + tl.arange(0, GROUPS)[None, :] if GROUP else tl.arange(0, 1)[None, :]
    params = tl.load(params_ptr + group * n + row, mask=inside, other=0)
    mask = tl.load(mask_ptr + tl.arange(0, 1))[:, None]
    FORM: tl.constexpr = "shift" if SHIFTED else "minimum"
    w = weights(words, params, mask, BITS, FORM, out_ptr.dtype.element_ty, PTX)
    c = block * K + tl.arange(0, K)
    to = c
    if order_ptr is not None:
        to = tl.load(order_ptr + c, mask=c < k, other=0).to(tl.int64)
    at = out_ptr + line[:, None].to(tl.int64) * out_stride + to[None, :]
    tl.store(at, w, mask=inside & (c < k)[None, :])


@triton.jit
def permute_kernel(
    x_ptr,  # [m, k]
    order_ptr,  # [k]  int32
    out_ptr,  # [m, k]
    x_stride,
    k,
    WIDTH: tl.constexpr,
):
    """out[i, c] = x[i, order[c]]: programs by rows and by WIDTH columns."""
    row = tl.program_id(0).to(tl.int64)
    c = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    source = tl.load(order_ptr + c, mask=c < k, other=0)
    x = tl.load(x_ptr + row * x_stride + source, mask=c < k, other=0.0)
    tl.store(out_ptr + row * k + c, x, mask=c < k)
