"""Copies of pages in Triton: within the pool, and between scattered pages and a buffer. Bound by memory."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def copy_rows_kernel(
    source_ptr,  # [rows, words]
    source_rows_ptr,  # [n]  or None: 0, 1, 2, …
    target_ptr,  # [rows, words]
    target_rows_ptr,  # [n]  or None: 0, 1, 2, …
    source_stride,
    source_rows_stride,
    target_stride,
    target_rows_stride,
    words,
    WIDTH: tl.constexpr,
):
    """target[target_rows[i]] = source[source_rows[i]]; a row of -1 on either side is padding."""
    copy = tl.program_id(0).to(tl.int64)
    source, target = copy, copy
    if source_rows_ptr is not None:
        source = tl.load(source_rows_ptr + copy * source_rows_stride).to(tl.int64)
    if target_rows_ptr is not None:
        target = tl.load(target_rows_ptr + copy * target_rows_stride).to(tl.int64)
    word = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    inside = word < tl.where((source >= 0) & (target >= 0), words, 0)
    copied = tl.load(source_ptr + source * source_stride + word, mask=inside)
    tl.store(target_ptr + target * target_stride + word, copied, mask=inside)
