"""Products of 16-bit matrices: PyTorch's, or for few rows ours where that was measured to be faster."""

from __future__ import annotations

import torch
from torch import Tensor

from slipway_kernels.cuda.launch import arch_of, launch
from slipway_kernels.cuda.prepared import follow, prepared
from slipway_kernels.cuda.tiles import Tile, pick
from slipway_kernels.linear_bf16.choose import Region, chosen
from slipway_kernels.linear_bf16.kernel import few_rows_kernel

FEW = 16
"""Rows that one tile holds: more of them would read the weight again."""

OURS = (
    Region(
        arch=90,
        dtype=torch.bfloat16,
        m=(1, FEW),
        n=(4096, 6144),
        k=(4096, 14336),
        measured="H200, 1 and 16 rows: 22.0 µs where torch takes 22.7 for 6144x4096, 17.2 for 19.0 of "
        "4096x4096, 41.1 for 42.8 of 4096x14336; 28672x4096 takes torch 68.7 to 70.3, and us 69.6 to 72.9; "
        "by an older stopwatch, which added ten microseconds and more to all of these",
    ),
)
"""Where few_rows is called."""

# Hopper has 132 multiprocessors: 4096 columns make two programs for each, 16 columns a program.
TILES = (
    Tile(80, {"BLOCK_M": 16, "BLOCK_N": 16, "BLOCK_K": 128, "PARTS": 4}, 4, 4, {"n": 8192}),
    Tile(80, {"BLOCK_M": 16, "BLOCK_N": 32, "BLOCK_K": 64, "PARTS": 2}, 2, 6),
    Tile(90, {"BLOCK_M": 16, "BLOCK_N": 16, "BLOCK_K": 64, "PARTS": 2}, 2, 8, {"n": 8192}),
    Tile(90, {"BLOCK_M": 16, "BLOCK_N": 32, "BLOCK_K": 64, "PARTS": 2}, 2, 6),
)


@prepared
def linear_bf16(x: Tensor, weight: Tensor, out: Tensor, *, bias: Tensor | None = None) -> Tensor:
    """out = x · weightᵀ + bias, by PyTorch, or by our kernel where OURS says so.

    x       [m, k]  bf16 or fp16, columns adjacent
    weight  [n, k]  the same type, columns adjacent
    out     [m, n]  the same type, columns adjacent
    bias    [n]
    Returns out. Raises ValueError where shapes disagree.
    """
    check_operands(x, weight, out, bias, torch.bfloat16, torch.float16)
    (m, k), n = x.shape, len(weight)
    if m <= FEW and chosen(OURS, arch_of(x.device), x.dtype, m, n, k):
        return few_rows(x, weight, out, bias=bias)
    follow(by_torch, x, weight, out, bias)
    return out


def by_torch(x: Tensor, weight: Tensor, out: Tensor, bias: Tensor | None) -> None:
    """out = x · weightᵀ + bias by cuBLAS."""
    if bias is None:
        torch.mm(x, weight.t(), out=out)
    else:
        torch.addmm(bias, x, weight.t(), out=out)


@prepared
def few_rows(x: Tensor, weight: Tensor, out: Tensor, *, bias: Tensor | None = None) -> Tensor:
    """out = x · weightᵀ + bias by our kernel, which is made for at most 16 rows.

    As linear_bf16, but out may also be fp32. A row's result does not depend on the other rows.
    """
    check_operands(x, weight, out, bias, torch.bfloat16, torch.float16)
    (m, k), n = x.shape, len(weight)
    tile = pick(TILES, arch_of(x.device), n=n)
    launch(
        few_rows_kernel,
        (-(-n // tile.constants["BLOCK_N"]), -(-m // tile.constants["BLOCK_M"])),
        tile=tile,
        x_ptr=x,
        w_ptr=weight,
        x_scale_ptr=None,
        w_scale_ptr=None,
        bias_ptr=bias,
        out_ptr=out,
        x_stride=x.stride(0),
        w_stride=weight.stride(0),
        out_stride=out.stride(0),
        x_scale_row=0,
        x_scale_block=0,
        w_scale_row=0,
        w_scale_block=0,
        m=m,
        n=n,
        k=k,
        BLOCKS=False,
    )
    return out


def check_operands(
    x: Tensor, w: Tensor, out: Tensor, bias: Tensor | None, first: torch.dtype, second: torch.dtype
) -> None:
    """Raises ValueError unless x [m, k] and w [n, k] are both of one type, and out [m, n] and a bias fit."""
    (m, k), n = x.shape, len(w)
    if w.shape != (n, k) or out.shape != (m, n) or (bias is not None and bias.shape != (n,)):
        raise ValueError(
            f"x is {list(x.shape)}, w {list(w.shape)}, out {list(out.shape)}"
            f"{'' if bias is None else f' and the bias {list(bias.shape)}'}: x is [m, k], w [n, k], "
            "out [m, n] and a bias [n]."
        )
    if x.dtype != w.dtype or x.dtype not in (first, second):
        raise ValueError(f"x is {x.dtype} and w {w.dtype}: both are {first} or both {second}.")
    if 1 not in (k, x.stride(1)) or 1 not in (k, w.stride(1)) or 1 not in (n, out.stride(1)):
        raise ValueError(
            f"x has strides {x.stride()}, w {w.stride()} and out {out.stride()}: the columns of a row are "
            "adjacent."
        )
