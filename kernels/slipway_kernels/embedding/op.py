"""Embedding and the cap of logits on the device."""

from __future__ import annotations

import torch
from torch import Tensor

from slipway_kernels.cuda.launch import arch_of, launch
from slipway_kernels.cuda.prepared import prepared
from slipway_kernels.cuda.rows import PIECE_TILES
from slipway_kernels.cuda.tiles import pick
from slipway_kernels.embedding.kernel import embed_kernel, softcap_kernel


@prepared
def embed(table: Tensor, ids: Tensor, out: Tensor, *, scale: float = 1.0, first: int = 0) -> Tensor:
    """out = table[ids − first] · scale, computed in fp32.

    table  [vocab, width]  bf16, fp16 or fp32: a model's embedding, or a shard that begins with id `first`
    ids    [rows]          int32 or int64; where the table has no such row (-1 is padding), out is zero
    out    [rows, width]
    Neighbours in a row are adjacent. Returns out. Raises ValueError where shapes disagree.
    """
    rows, width = out.shape
    if table.shape[1] != width or ids.shape != (rows,) or table.stride(1) != 1 or out.stride(1) != 1:
        raise ValueError(
            f"The table is {list(table.shape)}, ids {list(ids.shape)} and out {list(out.shape)}: out has a "
            "row for each id, as wide as the table's, and the columns of a row are adjacent."
        )
    if ids.dtype not in (torch.int32, torch.int64) or ids.stride(0) != 1:
        raise ValueError(f"ids are {ids.dtype} by strides of {ids.stride()}: give int32 or int64, adjacent.")
    tile = pick(PIECE_TILES, arch_of(table.device))
    launch(
        embed_kernel,
        (rows, -(-width // tile.constants["WIDTH"])),
        tile=tile,
        table_ptr=table,
        ids_ptr=ids,
        out_ptr=out,
        table_stride=table.stride(0),
        out_stride=out.stride(0),
        width=width,
        first=first,
        vocab=len(table),
        scale=float(scale),
    )
    return out


@prepared
def softcap(logits: Tensor, cap: float) -> Tensor:
    """logits = cap · tanh(logits / cap), in place.   [rows, vocab], adjacent in a row. Returns them."""
    if logits.dim() != 2 or logits.stride(1) != 1 or not cap > 0:
        raise ValueError(
            f"logits are {list(logits.shape)} by strides of {logits.stride()} and the cap is {cap}: they are "
            "[rows, vocab], adjacent in a row, and the cap is above 0."
        )
    rows, vocab = logits.shape
    tile = pick(PIECE_TILES, arch_of(logits.device))
    launch(
        softcap_kernel,
        (rows, -(-vocab // tile.constants["WIDTH"])),
        tile=tile,
        logits_ptr=logits,
        stride=logits.stride(0),
        vocab=vocab,
        cap=float(cap),
    )
    return logits
