"""Choosing experts, sorting pairs by expert, and summing: what stands round the experts' products.

A pair is a row and one of its experts, numbered row · top_k + j. Nothing waits for the host and no shape
depends on the routing.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
from torch import Tensor

from slipway_kernels.cuda.launch import arch_of, launch
from slipway_kernels.cuda.prepared import prepared
from slipway_kernels.cuda.rows import row_stride
from slipway_kernels.cuda.tiles import pick
from slipway_kernels.moe import tiles
from slipway_kernels.moe.kernel_route import (
    arrange_kernel,
    combine_kernel,
    count_kernel,
    route_kernel,
    scatter_kernel,
)

MAX_EXPERTS, MAX_TOP_K = 512, 16


@prepared
def route(
    logits: Tensor,
    top_k: int,
    normalize: bool,
    ids: Tensor,
    weights: Tensor,
    *,
    kind: Literal["softmax", "sigmoid"] = "softmax",
    bias: Tensor | None = None,
    groups: int = 1,
    kept_groups: int = 1,
    scaling: float = 1.0,
    here: Tensor | None = None,
    slots: Tensor | None = None,
) -> None:
    """The top_k experts of each row, best first, and their weights; of equals the lower expert.

    logits   [rows, experts]  any float type; neighbours in a row are adjacent
    ids      [rows, top_k]    int32, written
    weights  [rows, top_k]    fp32, written: softmax over all experts or sigmoid, divided by their sum where
                              `normalize`, times `scaling`
    bias     [experts]        added to the scores for the choice alone
    groups, kept_groups       only experts of the best groups of neighbours are chosen: by the sum of a
                              group's two best scores where there is a bias, else by its best
    here     [experts] int32  an expert's number on this device, -1: elsewhere; ids are those numbers
    slots    [rows] int32     rows of slot -1 are padding: ids -1, weights 0
    Raises ValueError where sizes do not fit. Source: DeepSeek-AI 2024 (V2, V3).
    """
    rows, experts = logits.shape
    _expect("logits", logits, (rows, experts), strided=True)
    if not 0 < top_k <= min(experts, MAX_TOP_K) or experts > MAX_EXPERTS:
        raise ValueError(
            f"top_k is {top_k} of {experts} experts: at most {MAX_TOP_K} of at most {MAX_EXPERTS} are chosen."
        )
    if experts % groups or not 0 < kept_groups <= groups or kept_groups * (experts // groups) < top_k:
        raise ValueError(
            f"{kept_groups} of {groups} groups of {experts} experts are kept for top_k {top_k}: groups must "
            "divide the experts evenly, and those kept must hold top_k of them."
        )
    _expect("ids", ids, (rows, top_k), torch.int32)
    _expect("weights", weights, (rows, top_k), torch.float32)
    _expect("bias", bias, (experts,))
    _expect("here", here, (experts,), torch.int32)
    _expect("slots", slots, (rows,), torch.int32)
    limited = kept_groups < groups
    members = experts // groups if limited else experts
    launch(
        route_kernel,
        (rows,),
        tile=pick(tiles.ROUTE, arch_of(logits.device)),
        logits_ptr=logits,
        bias_ptr=bias,
        here_ptr=here,
        slots_ptr=slots,
        ids_ptr=ids,
        weights_ptr=weights,
        logits_stride=logits.stride(0),
        experts=experts,
        groups=groups if limited else 1,
        members=members,
        top_k=top_k,
        kept_groups=kept_groups,
        scaling=float(scaling),
        SIGMOID=kind == "sigmoid",
        NORMALIZE=normalize,
        LIMITED=limited,
        GROUPS=_power_of_two(groups) if limited else 1,
        MEMBERS=_power_of_two(members),
        TOP_K=_power_of_two(top_k),
    )


@dataclass(frozen=True, slots=True)
class Arrangement:
    """Pairs sorted by expert, then row; each expert's run is padded to whole blocks.

    sorted_pairs     [blocks · block_m] int32  a pair's number, -1: padding
    expert_of_block  [blocks]           int32  -1: unused
    counts           [experts]          int32  pairs of each expert
    partial          [chunks, experts]  int32  workspace; empty where few pairs are sorted
    """

    sorted_pairs: Tensor
    expert_of_block: Tensor
    counts: Tensor
    partial: Tensor
    block_m: int


def arrangement(pairs: int, experts: int, block_m: int, device: torch.device) -> Arrangement:
    """What `arrange` fills: as many blocks as the worst routing needs."""
    if not 0 < experts <= MAX_EXPERTS:
        raise ValueError(f"{experts} experts on one device: between 1 and {MAX_EXPERTS} are sorted.")
    blocks = _blocks(pairs, experts, block_m)
    chunks = 0 if pairs <= tiles.SCANNED else -(-pairs // tiles.CHUNK)
    empty = partial(torch.empty, dtype=torch.int32, device=device)
    return Arrangement(
        empty(blocks * block_m), empty(blocks), empty(experts), empty(chunks, experts), block_m
    )


def _blocks(pairs: int, experts: int, block_m: int) -> int:
    """What the worst routing needs."""
    return (pairs + min(pairs, experts) * (block_m - 1)) // block_m


@prepared
def arrange(ids: Tensor, to: Arrangement) -> Arrangement:
    """Sorts the pairs of ids [rows, top_k] int32 by expert into `to`, which it returns; -1 is left out.

    The same ids give the same order. Raises ValueError where `to` is for another number of pairs.
    """
    pairs, experts, blocks = ids.numel(), len(to.counts), len(to.expert_of_block)
    needed, held = _blocks(pairs, experts, to.block_m) * to.block_m, len(to.sorted_pairs)
    if ids.dtype != torch.int32 or not ids.is_contiguous() or held != needed:
        raise ValueError(
            f"ids are {list(ids.shape)} of {ids.dtype}, and the arrangement holds {held} where {needed} are "
            "needed: make it by arrangement() for as many pairs, of int32."
        )
    arch, width = arch_of(ids.device), max(32, _power_of_two(experts))
    counted = {"ids_ptr": ids, "pairs": pairs, "experts": experts, "EXPERTS": width}
    written = {
        "sorted_pairs_ptr": to.sorted_pairs,
        "expert_of_block_ptr": to.expert_of_block,
        "counts_ptr": to.counts,
        "blocks": blocks,
        "block_m": to.block_m,
    }
    if not len(to.partial):
        launch(
            arrange_kernel, (experts + 1,), tile=pick(tiles.ARRANGE, arch, pairs=pairs), **counted, **written
        )
        return to
    counted["partial_ptr"] = to.partial
    launch(count_kernel, (len(to.partial),), tile=pick(tiles.COUNT, arch), **counted)
    launch(scatter_kernel, (len(to.partial),), tile=pick(tiles.SCATTER, arch), **counted, **written)
    return to


@prepared
def combine(
    y: Tensor,
    ids: Tensor,
    weights: Tensor,
    out: Tensor,
    *,
    shared: Tensor | None = None,
    shared_gate: Tensor | None = None,
) -> Tensor:
    """out[row] = Σ_j weights[row, j] · y[row · top_k + j] + shared[row] · sigmoid(shared_gate[row]).

    y            [rows · top_k, width]; pairs of id -1 are not read
    ids          [rows, top_k]  int32
    weights      [rows, top_k]  fp32
    shared       [rows, width]  result of an expert that sees every row
    shared_gate  [rows, 1]      logits of its share; all of it without them
    Returns out [rows, width]. Sums in fp32, always in one order. Raises ValueError where shapes do not fit.
    """
    rows, top_k = ids.shape
    width = out.shape[1]
    _expect("ids", ids, (rows, top_k), torch.int32)
    _expect("weights", weights, (rows, top_k), torch.float32)
    _expect("y", y, (rows * top_k, width), strided=True)
    _expect("out", out, (rows, width), strided=True)
    _expect("shared", shared, (rows, width), strided=True)
    _expect("shared_gate", shared_gate, (rows, 1), strided=True)
    tile = pick(tiles.COMBINE, arch_of(y.device))
    launch(
        combine_kernel,
        (rows, -(-width // tile.constants["COLUMNS"])),
        tile=tile,
        y_ptr=y,
        ids_ptr=ids,
        weights_ptr=weights,
        shared_ptr=shared,
        gate_ptr=shared_gate,
        out_ptr=out,
        y_stride=y.stride(0),
        shared_stride=row_stride(shared),
        gate_stride=row_stride(shared_gate),
        out_stride=out.stride(0),
        width=width,
        top_k=top_k,
        TOP_K=_power_of_two(top_k),
    )
    return out


def _expect(
    name: str,
    tensor: Tensor | None,
    shape: tuple[int, ...],
    dtype: torch.dtype | None = None,
    strided: bool = False,
) -> None:
    """Raise ValueError unless a tensor, where there is one, has this form; `strided`: rows may be apart."""
    if tensor is None:
        return
    dense = tensor.stride(-1) == 1 or tensor.shape[-1] == 1 if strided else tensor.is_contiguous()
    if tensor.shape != shape or tensor.dtype != (dtype or tensor.dtype) or not dense:
        raise ValueError(
            f"{name} is {list(tensor.shape)} of {tensor.dtype}, by strides of {list(tensor.stride())}: it "
            f"must be {list(shape)} of {dtype or 'a float type'}, "
            f"{'the columns of a row' if strided else 'all of it'} adjacent."
        )


def _power_of_two(number: int) -> int:
    return 1 << (number - 1).bit_length()
