"""What the attention kernels share: the loop over keys and values, and how a tile of rows begins."""

# Triton's own language, not Python's:
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
from __future__ import annotations

import triton
import triton.language as tl

LOG2E = tl.constexpr(1.4426950408889634)


@triton.jit
def _offsets(block_table_ptr, position, inside, page_stride, token_stride, BLOCK: tl.constexpr):
    """Where the keys of these positions are, int64: in their pages, or in rows that follow each other."""
    if block_table_ptr is None:
        offset = position.to(tl.int64) * token_stride
    else:
        page = tl.load(block_table_ptr + position // BLOCK, mask=inside, other=0)
        offset = page.to(tl.int64) * page_stride + (position % BLOCK) * token_stride
    return offset


@triton.jit
def _load(base_ptr, offset, inside, HEAD_DIM: tl.constexpr, HEAD: tl.constexpr):
    """[TILE, HEAD] keys or values; zeros where nothing is to be read."""
    column = tl.arange(0, HEAD)
    mask = inside[:, None]
    if HEAD_DIM != HEAD:
        mask = mask & (column < HEAD_DIM)[None, :]
    return tl.load(base_ptr + offset[:, None] + column[None, :], mask=mask, other=0.0)


@triton.jit
def _operand(x, BYTES: tl.constexpr):
    """What the product takes: fp16, which holds both formats of eight bits exactly; wider ones stay.

    e5m2  seeeeemm            fp16  seeeeemm 00000000
    e4m3  seeeemmm            fp16  s0eeeemm m0000000, which is 1/256 of it
    """
    if BYTES == "e5m2":
        x = (x.to(tl.uint16) << 8).to(tl.float16, bitcast=True)
    elif BYTES == "e4m3":
        # The sum carries the sign over the exponent's new bits. Exponents count from 7 where those of fp16
        # do from 15: this is 1/256 of the value, as the scales know.
        wide = x.to(tl.uint16)
        x = ((wide + (wide & 0x80)) << 7).to(tl.float16, bitcast=True)
    elif x.dtype.primitive_bitwidth == 8:
        x = x.to(tl.float16)
    return x


@triton.jit
def operand(q, keys_ptr):
    """Queries in the type of their product with keys."""
    TYPE: tl.constexpr = keys_ptr.dtype.element_ty
    return q.to(tl.float16 if TYPE.primitive_bitwidth == 8 else TYPE)


@triton.jit
def stored_scale(scale_ptr, kv_head, STRIDE: tl.constexpr, BYTES: tl.constexpr):
    """What stored keys or values are multiplied by."""
    scale = 1.0
    if scale_ptr is not None:
        scale = tl.load(scale_ptr + kv_head * STRIDE)
    if BYTES == "e4m3":
        scale *= 256.0
    return scale


@triton.jit
def attend(
    acc,  # [ROWS, HEAD] fp32
    total,  # [ROWS] sum of the weights so far
    peak,  # [ROWS] highest score so far
    q,  # [ROWS, HEAD]
    query,  # [ROWS] positions
    lowest,  # of them
    newest,
    first,
    limit,
    keys,  # pointer of the head, or its TMA descriptor of boxes [TILE, HEAD]
    values,
    block_table_ptr,
    page_stride,
    token_stride,
    scale,
    softcap,
    slope,  # [ROWS] or None
    window,
    CAUSAL: tl.constexpr,
    TILE: tl.constexpr,
    BLOCK: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    HEAD: tl.constexpr,
    BYTES: tl.constexpr,
    TMA: tl.constexpr,
    FIRST: tl.constexpr,
):
    """Online softmax: add the keys at first .. limit, TILE at a time, to what a tile of queries has seen.

    Where CAUSAL, a row sees the keys up to its own position, from FIRST on if it is not before that, the last
    `window` of them; otherwise all, or `window` to each side, its own included.
    """
    PLAIN: tl.constexpr = softcap is None and slope is None
    for start in range(first, limit, TILE):
        position = start + tl.arange(0, TILE)
        inside = position < limit
        if TMA:
            key = keys.load([start, 0])
        else:
            offset = _offsets(block_table_ptr, position, inside, page_stride, token_stride, BLOCK)
            key = _operand(_load(keys, offset, inside, HEAD_DIM, HEAD), BYTES)
        score = tl.dot(q, tl.trans(key), input_precision="ieee")
        if softcap is not None:
            # tanh(x) = 1 − 2 / (1 + exp(2x)), which no x overflows.
            doubled = tl.exp2(score * (scale * 2.0 / softcap))
            score = (softcap * LOG2E) * (1.0 - 2.0 / (1.0 + doubled))
        elif slope is not None:
            score = score * scale
        if slope is not None:
            score += slope[:, None] * (position[None, :] - query[:, None]).to(tl.float32)
        if CAUSAL:
            # One loop for all tiles keeps the next ones under way; few are at an edge and pay for masks.
            edge = start + TILE > lowest + 1
            if window is not None:
                edge = edge | (start <= newest - window)
            if FIRST:
                edge = edge | (start < FIRST)
            if edge:
                shown = position[None, :] <= query[:, None]
                if window is not None:
                    shown = shown & (position[None, :] > query[:, None] - window)
                if FIRST:
                    shown = shown & ((position[None, :] >= FIRST) | (query[:, None] < FIRST))
                score = tl.where(shown, score, float("-inf"))
        else:
            shown = inside[None, :]
            if window is not None:
                distance = position[None, :] - query[:, None]
                shown = shown & (distance < window) & (-distance < window)
            score = tl.where(shown, score, float("-inf"))
        highest = tl.max(score, 1)
        if PLAIN:
            highest = highest * scale
        highest = tl.maximum(peak, highest)
        base = highest
        if window is not None:
            # A row that has seen nothing yet must not subtract infinities.
            base = tl.where(highest == float("-inf"), 0.0, highest)
        weight = tl.exp2(tl.fma(score, scale, -base[:, None]) if PLAIN else score - base[:, None])
        decay = tl.exp2(peak - base)
        total = total * decay + tl.sum(weight, 1)
        if TMA:
            value = values.load([start, 0])
        else:
            value = _operand(_load(values, offset, inside, HEAD_DIM, HEAD), BYTES)
            if values.dtype.element_ty.primitive_bitwidth == 8:
                # One, though the compiler cannot see it where it lays out data: it would have each thread
                # gather single bytes of a column otherwise, and now transposes 16 bits at a time.
                value *= tl.where(first < limit, 1.0, 0.0).to(tl.float16)
        acc = tl.dot(weight.to(value.dtype), value, acc * decay[:, None], input_precision="ieee")
        peak = highest
    return acc, total, peak


@triton.jit
def pointers(base_ptr, token, head, token_stride, head_stride, HEAD: tl.constexpr):
    """Pointers [ROWS, HEAD] to one head of one token a row."""
    row = token.to(tl.int64) * token_stride + head.to(tl.int64) * head_stride
    return base_ptr + row[:, None] + tl.arange(0, HEAD)[None, :]


@triton.jit
def slopes_of(slopes_ptr, head, known):
    """ALiBi's slopes of the rows, in units of log 2."""
    slope = None
    if slopes_ptr is not None:
        slope = tl.load(slopes_ptr + head, mask=known, other=0.0) * LOG2E
    return slope


@triton.jit
def softmax_start(sinks_ptr, head, known, here, ROWS: tl.constexpr):
    """Sum of weights and highest score before the first key: a sink's, which counts once, or none."""
    total = tl.zeros([ROWS], tl.float32)
    peak = tl.full([ROWS], float("-inf"), tl.float32)
    if sinks_ptr is not None:
        sink = tl.load(sinks_ptr + head, mask=known, other=float("-inf")) * LOG2E
        peak = tl.where(here, sink, peak)
        total = tl.where(peak == float("-inf"), 0.0, 1.0)
    return total, peak
