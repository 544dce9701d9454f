"""Embedding and the cap of logits in Triton: the two ends of a model. Bound by memory."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["first", "vocab"])
def embed_kernel(
    table_ptr,  # [vocab, width]
    ids_ptr,  # [rows]
    out_ptr,  # [rows, width]
    table_stride,
    out_stride,
    width,
    first,
    vocab,
    scale,
    WIDTH: tl.constexpr,
):
    """out = table[ids − first] · scale; zeros where the table has no such row."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    index = tl.load(ids_ptr + row).to(tl.int64) - first
    held = tl.where((index >= 0) & (index < vocab), width, 0)
    x = tl.load(table_ptr + index * table_stride + column, mask=column < held, other=0.0).to(tl.float32)
    y = (x * scale).to(out_ptr.dtype.element_ty)
    tl.store(out_ptr + row * out_stride + column, y, mask=column < width)


@triton.jit
def softcap_kernel(
    logits_ptr,  # [rows, vocab]
    stride,
    vocab,
    cap,
    WIDTH: tl.constexpr,
):
    """logits = cap · tanh(logits / cap)"""
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    inside = column < vocab
    logits_ptr += row * stride + column
    x = tl.load(logits_ptr, mask=inside, other=0.0).to(tl.float32)
    # tanh(u) = 1 − 2 / (exp(2u) + 1), which stays finite as exp overflows, and a NaN stays one.
    y = cap * (1.0 - 2.0 / (tl.exp(x * (2.0 / cap)) + 1.0))
    tl.store(logits_ptr, y.to(logits_ptr.dtype.element_ty), mask=inside)
