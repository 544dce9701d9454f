"""A mixture of experts on the device: choose, sort, multiply, sum.

`route` → `arrange` → `moe_linear` (gate and up) → `moe_linear` (down) → `combine`; `op_route` has all but the
products.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Literal

import torch
import triton
from torch import Tensor

from slipway_kernels.activation.reference import activate
from slipway_kernels.cuda.launch import arch_of, launch
from slipway_kernels.cuda.prepared import follow, prepared
from slipway_kernels.cuda.rows import row_stride
from slipway_kernels.cuda.tiles import Tile, pick
from slipway_kernels.linear_w4a16.layout import WORDS, Packed
from slipway_kernels.moe import tiles
from slipway_kernels.moe.kernel import product_kernel
from slipway_kernels.moe.kernel_w4a16 import product_w4a16_kernel
from slipway_kernels.moe.op_route import Arrangement

Activation = Literal["", "silu", "gelu", "gelu_tanh"]
SCALE_BLOCK = 128
"""Rows and columns of a block that shares a scale."""


@dataclass(frozen=True, slots=True)
class Scaled:
    """Matrices of fp8 e4m3 or int8 with a scale for each row, or for each block of 128 by 128.

    values  [experts, n, k]
    scales  [experts, n] or [experts, ⌈n / 128⌉, ⌈k / 128⌉]  fp32
    """

    values: Tensor
    scales: Tensor

    @property
    def group(self) -> int:
        """How many columns of a row of activations share a scale; 0: all."""
        return SCALE_BLOCK if self.scales.ndim == 3 else 0


def stack_experts(matrices: Sequence[Packed]) -> Packed:
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


@prepared
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

    x        [rows, k], read by all pairs of a row, or [rows · top_k, k]: bf16, fp16, fp32, or fp8 e4m3 or
             int8 with x_scale [rows or pairs] fp32; [rows or pairs, ⌈k / 128⌉] where weights are by blocks
    weights  [experts, n, k], with an activation [experts, 2 · n, k], gate above up, of x's type; or four or
             eight bits by `stack_experts`, packed for x's type
    out      [rows · top_k, n]; what belongs to no expert of this device means nothing
    Returns out. Sums are in fp32 (fp8 by rows: as precise as Hopper's tensor cores keep them; int8 by rows:
    in int32). Raises ValueError where shapes or types do not fit.
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
        follow(_by_torch, x, weights, order.counts, order.sorted_pairs, order.block_m, out, activation)
    else:
        _plain(x, weights, order, out, activation, x_scale)
    return out


def _shape(weights: Tensor | Scaled | Packed, experts: int) -> tuple[int, ...]:
    if isinstance(weights, Packed):
        experts = 1 if weights.n % experts else experts
        return experts, weights.n // experts, weights.k
    return tuple(weights.values.shape if isinstance(weights, Scaled) else weights.shape)


def _check_scales(x: Tensor, x_scale: Tensor | None, weights: Scaled, gate: int) -> None:
    """gate: rows of the gate, above those of up; 0: there is none."""
    (experts, n, k), (rows, _) = weights.values.shape, x.shape
    group = weights.group
    blocks = -(-k // SCALE_BLOCK)
    wanted = (experts, -(-n // SCALE_BLOCK), blocks) if group else (experts, n)
    of_x = (rows, blocks) if group else (rows,)
    for name, scales, shape in (("the weights", weights.scales, wanted), ("x", x_scale, of_x)):
        assert scales is not None  # both or neither are there
        if scales.shape != shape or scales.dtype != torch.float32 or not scales.is_contiguous():
            raise ValueError(
                f"the scales of {name} are {scales.dtype} {list(scales.shape)}, by strides of "
                f"{list(scales.stride())}: they must be float32 {list(shape)}, adjacent."
            )
    if group and gate % SCALE_BLOCK:
        raise ValueError(
            f"up begins at row {gate}, within a block of {SCALE_BLOCK} rows that share a scale: dequantize "
            "these experts."
        )


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
    (pairs, n), (rows, k), arch = out.shape, x.shape, arch_of(x.device)
    scales: Tensor | None = None
    if isinstance(weights, Tensor):
        values, blocks = weights, False
    else:
        _check_scales(x, x_scale, weights, n if activation else 0)
        values, scales, blocks = weights.values, weights.scales, weights.group > 0
    if values.dtype == torch.float8_e4m3fn and arch < 90:
        raise ValueError(
            f"products of fp8 start with sm_90, and this device is sm_{arch}: dequantize the experts to bf16."
        )
    tile = pick(_table(x.dtype, blocks), arch, block_m=str(order.block_m), dtype=str(x.dtype))
    launch(
        product_kernel,
        (_programs(order, n, tile, activation),),
        tile=tile,
        x_ptr=x,
        weight_ptr=values,
        out_ptr=out,
        x_scale_ptr=x_scale,
        weight_scale_ptr=scales,
        sorted_pairs_ptr=order.sorted_pairs,
        expert_of_block_ptr=order.expert_of_block,
        x_stride=x.stride(0),
        expert_stride=values.stride(0),
        weight_stride=values.stride(1),
        out_stride=out.stride(0),
        scale_stride=row_stride(scales),
        n=n,
        k=k,
        share=pairs // max(rows, 1),
        ACTIVATION=activation,
        EVEN_K=k % tile.constants["BLOCK_K"] == 0,
        BLOCKS=blocks,
    )


def _packed(x: Tensor, weights: Packed, order: Arrangement, out: Tensor, activation: Activation) -> None:
    (pairs, n), (rows, k) = out.shape, x.shape
    tile = pick(tiles.W4A16, arch_of(x.device), block_m=str(order.block_m))
    launch(
        product_w4a16_kernel,
        (_programs(order, n, tile, activation),),
        tile=tile,
        x_ptr=x,
        words_ptr=weights.words,
        params_ptr=weights.params,
        mask_ptr=weights.mask,
        out_ptr=out,
        sorted_pairs_ptr=order.sorted_pairs,
        expert_of_block_ptr=order.expert_of_block,
        x_stride=x.stride(0),
        out_stride=out.stride(0),
        all_rows=weights.n,
        height=weights.n // len(order.counts),
        n=n,
        k=k,
        share=pairs // max(rows, 1),
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
    _by_torch(x, weights, order.counts, order.sorted_pairs, order.block_m, out, activation)


def _by_torch(
    x: Tensor,
    weights: Tensor,
    counts: Tensor,
    sorted_pairs: Tensor,
    block_m: int,
    out: Tensor,
    activation: Activation,
) -> None:
    """The tensors of the arrangement one by one, as they may be others in the next call."""
    pairs = len(out)
    ends = (-(-counts // block_m) * block_m).cumsum(0).int()
    source = sorted_pairs.clamp(min=0) // (pairs // len(x))
    y = torch._grouped_mm(x[source], weights.transpose(1, 2), offs=ends)
    if activation:
        gate, up = y.chunk(2, dim=1)
        y = activate(gate, activation) * up
    kept = torch.empty(pairs + 1, out.shape[1], dtype=y.dtype, device=y.device)  # padding lands in the last
    kept[torch.where(sorted_pairs < 0, pairs, sorted_pairs)] = y
    out.copy_(kept[:-1])


def block_m_of(pairs: int, experts: int, dtype: torch.dtype) -> int:
    """Rows of a block that suit so many pairs, evenly spread over the experts, of x's type."""
    wanted = next((rows for most, rows in tiles.BLOCK_M if pairs <= most * experts), 128)
    sizes = {tile.constants["BLOCK_M"] for tile in _table(dtype)}
    return min((size for size in sizes if size >= wanted), default=max(sizes))


def _table(dtype: torch.dtype, blocks: bool = False) -> tuple[Tile, ...]:
    if dtype.itemsize == 1:
        return tiles.BLOCKS if blocks else tiles.EIGHT_BITS
    return tiles.FLOAT if dtype == torch.float32 else tiles.HALF
