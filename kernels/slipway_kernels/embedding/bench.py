"""Embedding's cases and the cap's: vocabularies of models, decode and prefill."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from slipway_kernels.cuda.cases import Case, Size
from slipway_kernels.cuda.compare import rounding
from slipway_kernels.embedding import reference
from slipway_kernels.embedding.op import embed, softcap


def cases(device: torch.device, size: Size) -> Iterator[Case]:
    full = size == "full"
    for rows in (1, 64, 2048) if full else (3,):
        for width in (576, 4096) if full else (40,):
            yield _embedding(device, rows, width, 32_000 if full else 50)
    for rows in (1, 64, 256) if full else (3,):
        for dtype in (torch.float32, torch.bfloat16):
            yield _cap(device, rows, 256_000 if full else 50, dtype)


def _embedding(device: torch.device, rows: int, width: int, vocab: int) -> Case:
    table = torch.randn(vocab, width, device=device, dtype=torch.bfloat16)
    ids = torch.randint(0, vocab, (rows,), device=device, dtype=torch.int32)
    out = torch.empty(rows, width, device=device, dtype=torch.bfloat16)
    return Case(
        f"embed {rows}x{width}",
        lambda: embed(table, ids, out, scale=2.0),
        lambda: reference.embed(table, ids.long(), 2.0),
        bytes=rows * (4 * width + 4),
        written=2 * rows * width,
        peers={"torch": lambda: torch.nn.functional.embedding(ids, table) * 2.0},
    )


def _cap(device: torch.device, rows: int, vocab: int, dtype: torch.dtype) -> Case:
    before = torch.randn(rows, vocab, device=device, dtype=dtype) * 20
    logits = before.clone()
    return Case(
        f"cap {rows}x{vocab} {str(dtype).removeprefix('torch.')}",
        lambda: softcap(logits, 30.0),
        lambda: reference.softcap(before, 30.0),
        tolerance=rounding(dtype),
        bytes=2 * rows * vocab * dtype.itemsize,
        written=rows * vocab * dtype.itemsize,
        peers={"torch": lambda: reference.softcap(before, 30.0)},
    )
