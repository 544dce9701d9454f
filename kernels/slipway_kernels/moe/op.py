"""A mixture of experts on the device: choose, sort, multiply, sum.

`route` → `arrange` → `moe_linear` (gate and up) → `moe_linear` (down) → `combine`. A pair is a row and one of
its experts, numbered row · top_k + j. Nothing waits for the host and no shape depends on the routing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from operator import attrgetter
from typing import Literal

import torch
import triton
from torch import Tensor

from slipway_kernels.activation.reference import activate
from slipway_kernels.cuda.launch import Tile, arch_of, launch, pick
from slipway_kernels.linear_w4a16.layout import WORDS, Packed
from slipway_kernels.moe import tiles
from slipway_kernels.moe.kernel import product_kernel
from slipway_kernels.moe.kernel_route import (
    arrange_kernel,
    combine_kernel,
    count_kernel,
    route_kernel,
    scatter_kernel,
)
from slipway_kernels.moe.kernel_w4a16 import product_w4a16_kernel

Activation = Literal["", "silu", "gelu", "gelu_tanh"]
MAX_EXPERTS, MAX_TOP_K = 512, 16


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
        *(logits, bias, here, slots, ids, weights, logits.stride(0)),
        *(experts, groups if limited else 1, members, top_k, kept_groups, float(scaling)),
        tile=pick(tiles.ROUTE, arch_of(logits.device)),
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

    places           [blocks · block_m] int32  a pair's number, -1: padding
    expert_of_block  [blocks]           int32  -1: unused
    counts           [experts]          int32  pairs of each expert
    partial          [chunks, experts]  int32  workspace; empty where few pairs are sorted
    """

    places: Tensor
    expert_of_block: Tensor
    counts: Tensor
    partial: Tensor
    block_m: int


def block_m_of(pairs: int, experts: int, dtype: torch.dtype) -> int:
    """Rows of a block that suit so many pairs, evenly spread over the experts, of x's type."""
    wanted = next((rows for most, rows in tiles.BLOCK_M if pairs <= most * experts), 128)
    sizes = {tile.constants["BLOCK_M"] for tile in _table(dtype)}
    return min((size for size in sizes if size >= wanted), default=max(sizes))


def arrangement(pairs: int, experts: int, block_m: int, device: torch.device) -> Arrangement:
    """Room for `arrange`, which fills it: as many blocks as the worst routing needs."""
    if not 0 < experts <= MAX_EXPERTS:
        raise ValueError(f"{experts} experts on one device: between 1 and {MAX_EXPERTS} are sorted.")
    blocks = (pairs + min(pairs, experts) * (block_m - 1)) // block_m
    chunks = 0 if pairs <= tiles.SCANNED else -(-pairs // tiles.CHUNK)
    empty = partial(torch.empty, dtype=torch.int32, device=device)
    return Arrangement(
        empty(blocks * block_m), empty(blocks), empty(experts), empty(chunks, experts), block_m
    )


def arrange(ids: Tensor, to: Arrangement) -> Arrangement:
    """Sorts the pairs of ids [rows, top_k] int32 by expert into `to`, which it returns; -1 is left out.

    The same ids give the same order. Raises ValueError where `to` is for another number of pairs.
    """
    pairs, experts, blocks = ids.numel(), len(to.counts), len(to.expert_of_block)
    made_for = arrangement(pairs, experts, to.block_m, torch.device("meta"))
    if ids.dtype != torch.int32 or not ids.is_contiguous() or made_for.places.shape != to.places.shape:
        raise ValueError(
            f"ids are {list(ids.shape)} of {ids.dtype}, and the arrangement has {len(to.places)} places "
            f"where {len(made_for.places)} are needed: make it by arrangement() for as many pairs, of int32."
        )
    arch, width = arch_of(ids.device), max(32, _power_of_two(experts))
    sizes = (pairs, experts, blocks, to.block_m)
    written = (to.places, to.expert_of_block, to.counts)
    if not len(to.partial):
        tile = pick(tiles.ARRANGE, arch, pairs=pairs)
        launch(arrange_kernel, (experts + 1,), ids, *written, *sizes, tile=tile, EXPERTS=width)
        return to
    grid = (len(to.partial),)
    tile = pick(tiles.COUNT, arch)
    launch(count_kernel, grid, ids, to.partial, pairs, experts, tile=tile, EXPERTS=width)
    tile = pick(tiles.SCATTER, arch)
    launch(scatter_kernel, grid, ids, to.partial, *written, *sizes, tile=tile, EXPERTS=width)
    return to


@dataclass(frozen=True, slots=True)
class Scaled:
    """Matrices of fp8 e4m3 with a scale a row.   values [experts, n, k], scales [experts, n] fp32"""

    values: Tensor
    scales: Tensor


def tall(matrices: Sequence[Packed]) -> Packed:
    """The experts' packed matrices [n, k], one below the other: what `moe_linear` takes.

    Raises ValueError where they differ in form, or where one keeps its columns in an order of its own.
    """
    first = matrices[0]
    form = attrgetter("n", "k", "bits", "group", "shifted", "dtype")
    for matrix in matrices:
        if form(matrix) != form(first) or matrix.order is not None:
            raise ValueError(
                f"experts are packed as {form(first)} and {form(matrix)}: rows, columns, bits, group, kind "
                "of zero and type must be equal, and columns in their own order."
            )
    return replace(
        first,
        words=torch.cat([matrix.words for matrix in matrices], dim=1),
        params=torch.cat([matrix.params for matrix in matrices], dim=1),
        n=first.n * len(matrices),
        symmetric=all(matrix.symmetric for matrix in matrices),
    )


def moe_linear(
    x: Tensor,
    weights: Tensor | Scaled | Packed,
    order: Arrangement,
    out: Tensor,
    *,
    activation: Activation = "",
    x_scale: Tensor | None = None,
) -> Tensor:
    """out[pair] = x[pair] · weights[expert]ᵀ, or activation(x · gateᵀ) · (x · upᵀ).

    x        [rows, k], read by all pairs of a row, or [rows · top_k, k]: bf16, fp16, fp32, or fp8 e4m3
             with x_scale [rows or pairs] fp32
    weights  [experts, n, k], with an activation [experts, 2 · n, k], gate above up, of x's type; or four or
             eight bits by `tall`, packed for x's type
    out      [rows · top_k, n]; what belongs to no expert of this device means nothing
    Returns out. Sums are in fp32 (fp8: as precise as Hopper's tensor cores keep them). Raises ValueError
    where shapes or types do not fit.
    """
    experts, (pairs, n), (rows, k) = len(order.counts), out.shape, x.shape
    shape, expected = _shape(weights, experts), (experts, 2 * n if activation else n, k)
    if shape != expected:
        raise ValueError(
            f"the experts' weights are {list(shape)}, x is {list(x.shape)} and out {list(out.shape)}: the "
            f"weights must be {list(expected)}{', gate above up' if activation else ''}."
        )
    if pairs % max(rows, 1) or (rows and not pairs):
        raise ValueError(f"{pairs} pairs read {rows} rows of x: each row must have equally many.")
    values = weights.values if isinstance(weights, Scaled) else weights
    if (
        values.dtype != x.dtype
        or isinstance(weights, Scaled) == (x_scale is None)
        or x.stride(1) != 1
        or (isinstance(values, Tensor) and values.stride(2) != 1)
    ):
        raise ValueError(
            f"x is {x.dtype}, the weights are {values.dtype}: both must be of one type with adjacent "
            "columns, and both or neither must have scales."
        )
    if isinstance(weights, Packed):
        _packed(x, weights, order, out, activation)
    elif isinstance(weights, Tensor) and _torch_is_faster(x, pairs, experts):
        by_torch(x, weights, order, out, activation)
    else:
        _plain(x, weights, order, out, activation, x_scale)
    return out


def _shape(weights: Tensor | Scaled | Packed, experts: int) -> tuple[int, ...]:
    if isinstance(weights, Packed):
        experts = 1 if weights.n % experts else experts
        return experts, weights.n // experts, weights.k
    return tuple(weights.values.shape if isinstance(weights, Scaled) else weights.shape)


def _torch_is_faster(x: Tensor, pairs: int, experts: int) -> bool:
    least = tiles.TORCH_FROM.get(arch_of(x.device))
    return least is not None and x.dtype == torch.bfloat16 and pairs >= least * experts


def _plain(
    x: Tensor,
    weights: Tensor | Scaled,
    order: Arrangement,
    out: Tensor,
    activation: Activation,
    x_scale: Tensor | None,
) -> None:
    values = weights.values if isinstance(weights, Scaled) else weights
    scales = weights.scales if isinstance(weights, Scaled) else None
    (pairs, n), (rows, k), arch = out.shape, x.shape, arch_of(x.device)
    if scales is not None and arch < 90:
        raise ValueError(
            f"products of fp8 start with sm_90, and this device is sm_{arch}: dequantize the experts to bf16."
        )
    tile = pick(_table(x.dtype), arch, block_m=str(order.block_m))
    launch(
        product_kernel,
        (_programs(order, n, tile, activation),),
        *(x, values, out, x_scale, scales, order.places, order.expert_of_block),
        *(x.stride(0), values.stride(0), values.stride(1), out.stride(0)),
        *(0 if scales is None else scales.stride(0), n, k, pairs // max(rows, 1)),
        tile=tile,
        ACTIVATION=activation,
        EVEN_K=k % tile.constants["BLOCK_K"] == 0,
    )


def _packed(x: Tensor, weights: Packed, order: Arrangement, out: Tensor, activation: Activation) -> None:
    (pairs, n), (rows, k) = out.shape, x.shape
    tile = pick(tiles.W4A16, arch_of(x.device), block_m=str(order.block_m))
    launch(
        product_w4a16_kernel,
        (_programs(order, n, tile, activation),),
        *(x, weights.words, weights.params, weights.mask, out, order.places, order.expert_of_block),
        *(x.stride(0), out.stride(0), weights.n, weights.n // len(order.counts), n, k),
        pairs // max(rows, 1),
        tile=tile,
        ACTIVATION=activation,
        EVEN_K=k % (WORDS * 32 // weights.bits) == 0,
        PTX=isinstance(product_w4a16_kernel, triton.runtime.JITFunction),
        **weights.constants(),
    )


def _programs(order: Arrangement, n: int, tile: Tile, activation: Activation) -> int:
    width = tile.constants["BLOCK_N"] // (2 if activation else 1)
    return len(order.expert_of_block) * -(-n // width)


def by_torch(x: Tensor, weights: Tensor, order: Arrangement, out: Tensor, activation: Activation) -> None:
    """`moe_linear` of bf16 by torch's grouped product, over rows copied into the arrangement's order."""
    pairs = len(out)
    ends = (-(-order.counts // order.block_m) * order.block_m).cumsum(0).int()
    source = order.places.clamp(min=0) // (pairs // len(x))
    y = torch._grouped_mm(x[source], weights.transpose(1, 2), offs=ends)
    if activation:
        gate, up = y.chunk(2, dim=1)
        y = activate(gate, activation) * up
    kept = torch.empty(pairs + 1, out.shape[1], dtype=y.dtype, device=y.device)  # padding lands in the last
    kept[torch.where(order.places < 0, pairs, order.places)] = y
    out.copy_(kept[:-1])


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
        *(y, ids, weights, shared, shared_gate, out, y.stride(0)),
        *(0 if shared is None else shared.stride(0), 0 if shared_gate is None else shared_gate.stride(0)),
        *(out.stride(0), width, top_k),
        tile=tile,
        TOP_K=_power_of_two(top_k),
    )
    return out


def _table(dtype: torch.dtype) -> tuple[Tile, ...]:
    if dtype == torch.float8_e4m3fn:
        return tiles.FP8
    return tiles.FLOAT if dtype == torch.float32 else tiles.HALF


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
