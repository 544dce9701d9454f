"""Products of 8-bit matrices on the device: fp8 e4m3 or int8, scaled by row, as a whole, or by blocks."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

import torch
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from slipway_kernels.cuda.launch import arch_of, launch
from slipway_kernels.cuda.prepared import follow, prepared
from slipway_kernels.cuda.tiles import Tile, pick
from slipway_kernels.linear_bf16.choose import Region, chosen
from slipway_kernels.linear_bf16.kernel import few_rows_kernel
from slipway_kernels.linear_bf16.op import check_operands
from slipway_kernels.linear_w8a8.kernel import tiles_kernel

FEW = 16
"""Rows up to which the reading of the weight is all that counts."""

TORCH: tuple[Region, ...] = ()
"""Where torch._scaled_mm is called instead: nowhere. On an H200 it took 1.02 to 1.09 times as long as ours
from 2048 rows on, but it added up in fp32. With use_fast_accum, and for fewer rows by the stopwatch of today,
the two have not been compared yet."""

# By blocks a part of k is a block, so that 256 bytes of k are for two warps instead of one.
FEW_TILES = (
    Tile(80, {"BLOCK_M": 16, "BLOCK_N": 16, "BLOCK_K": 256, "PARTS": 4}, 4, 4, {"n": 8192, "scales": "rows"}),
    Tile(80, {"BLOCK_M": 16, "BLOCK_N": 32, "BLOCK_K": 128, "PARTS": 2}, 2, 6),
    Tile(90, {"BLOCK_M": 16, "BLOCK_N": 16, "BLOCK_K": 128, "PARTS": 2}, 2, 8, {"n": 8192}),
    Tile(90, {"BLOCK_M": 16, "BLOCK_N": 16, "BLOCK_K": 128, "PARTS": 2}, 2, 6),
)


def _tile(
    arch: int, block_m: int, block_n: int, block_k: int, warps: int, stages: int, /, **when: int | str
) -> Tile:
    sizes = {"BLOCK_M": block_m, "BLOCK_N": block_n, "BLOCK_K": block_k, "GROUP": 8}
    return Tile(arch, sizes, warps, stages, when)


# `squares` counts tiles of 128 by 128. 66 of them would leave half of Hopper's 132 multiprocessors idle; up
# to 264, two each, an even share is worth more than the larger tile's rate.
TILES = (
    _tile(80, 32, 32, 128, 8, 2, rows="odd"),
    _tile(80, 64, 64, 128, 4, 4, m=64),
    _tile(80, 128, 128, 128, 8, 3),
    _tile(90, 32, 32, 128, 8, 2, rows="odd"),
    _tile(90, 64, 32, 256, 4, 4, scales="rows", m=64, n=8192),
    _tile(90, 64, 128, 128, 4, 4, scales="rows", m=64),
    _tile(90, 64, 64, 256, 4, 3, scales="rows", squares=66),
    _tile(90, 128, 128, 128, 8, 4, scales="rows", squares=264),
    _tile(90, 128, 256, 128, 8, 3, scales="rows"),
    _tile(90, 64, 32, 128, 4, 6, m=64),
    _tile(90, 64, 64, 128, 4, 5, squares=66),
    _tile(90, 128, 128, 128, 8, 4),
)


@prepared
def linear_w8a8(
    x: Tensor, x_scale: Tensor, w: Tensor, w_scale: Tensor, out: Tensor, *, bias: Tensor | None = None
) -> Tensor:
    """out = (x · x_scale) · (w · w_scale)ᵀ + bias, of fp8 e4m3 or int8 on both sides.

    x        [m, k]  float8_e4m3fn or int8, columns adjacent
    x_scale  [m] or [1]  fp32; or [m, ⌈k / 128⌉] by any strides, where w's are by blocks
    w        [n, k]  x's type, columns adjacent
    w_scale  [n] or [1]  fp32; or [⌈n / 128⌉, ⌈k / 128⌉]: one for each block of 128 by 128
    bias     [n]
    out      [m, n]  bf16, fp16 or fp32, columns adjacent
    Returns out. int8 is summed exactly, in int32. fp8 is summed in fp32; on Hopper, for more than 16 rows and
    without blocks, in its tensor cores' own accumulator, which is narrower. Raises ValueError where shapes or
    types disagree, and for fp8 below compute capability 8.9. Source for blocks: DeepSeek-V3 (2024), 3.3.2.
    """
    arch = arch_of(x.device)
    check_operands(x, w, out, bias, torch.float8_e4m3fn, torch.int8)
    if x.dtype == torch.float8_e4m3fn and arch < 89:
        raise ValueError(
            f"compute capability {arch / 10} has no fp8 arithmetic, which begins at 8.9: load these weights "
            "as int8 or bfloat16."
        )
    _check_scales(x, x_scale, w, w_scale)
    (m, k), n = x.shape, len(w)
    blocks = w_scale.ndim == 2
    if not blocks and chosen(TORCH, arch, x.dtype, m, n, k):
        follow(_by_torch, x, x_scale, w, w_scale, out, bias)
        return out
    if not m:
        return out
    (x_scale_row, x_scale_block), (w_scale_row, w_scale_block) = _strides(x_scale), _strides(w_scale)
    arguments = {
        "x_scale_ptr": x_scale,
        "w_scale_ptr": w_scale,
        "bias_ptr": bias,
        "out_ptr": out,
        "x_stride": x.stride(0),
        "w_stride": w.stride(0),
        "out_stride": out.stride(0),
        "x_scale_row": x_scale_row,
        "x_scale_block": x_scale_block,
        "w_scale_row": w_scale_row,
        "w_scale_block": w_scale_block,
        "m": m,
        "n": n,
        "k": k,
        "BLOCKS": blocks,
    }
    aligned = all(a.stride(0) % 16 == k % 16 == a.data_ptr() % 16 == 0 for a in (x, w))
    if m > FEW or not aligned:
        _many_rows(arch, x, w, blocks, aligned, arguments)
    else:
        tile = pick(FEW_TILES, arch, n=n, scales="blocks" if blocks else "rows")
        grid = (-(-n // tile.constants["BLOCK_N"]), 1)
        launch(few_rows_kernel, grid, tile=tile, x_ptr=x, w_ptr=w, **arguments)
    return out


def _many_rows(
    arch: int, x: Tensor, w: Tensor, blocks: bool, aligned: bool, arguments: Mapping[str, object]
) -> None:
    """By tiles, which TMA fetches from Hopper on where rows start and end at multiples of 16 bytes."""
    m, n = len(x), len(w)
    tma = arch >= 90 and aligned
    tile = pick(
        TILES,
        arch,
        m=m,
        n=n,
        squares=-(-m // 128) * -(-n // 128),
        scales="blocks" if blocks else "rows",
        rows="aligned" if aligned else "odd",
    )
    block_m, block_n, block_k = (tile.constants[name] for name in ("BLOCK_M", "BLOCK_N", "BLOCK_K"))
    programs = -(-m // block_m) * -(-n // block_n)
    if tma:
        # Beside a program of four warps a second one fits on its multiprocessor.
        programs = min(programs, _multiprocessors(x.device) * (8 // tile.num_warps))
    launch(
        tiles_kernel,
        (programs,),
        tile=tile,
        x=TensorDescriptor.from_tensor(x, [block_m, block_k]) if tma else x,
        w=TensorDescriptor.from_tensor(w, [block_n, block_k]) if tma else w,
        INTEGERS=x.dtype == torch.int8,
        TMA=tma,
        **arguments,
    )


def _strides(scale: Tensor) -> tuple[int, int]:
    """From row to row, and from block to block."""
    if scale.ndim == 2:
        return scale.stride(0), scale.stride(1)
    return (0 if len(scale) == 1 else scale.stride(0)), 0


@cache
def _multiprocessors(device: torch.device) -> int:
    """The interpreter has two, so that its programs, too, take tile after tile."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 2


def _by_torch(
    x: Tensor, x_scale: Tensor, w: Tensor, w_scale: Tensor, out: Tensor, bias: Tensor | None
) -> None:
    """torch has one scale for all rows on both sides, or one a row on both."""
    if len(x_scale) == len(w_scale) == 1:
        scales = x_scale, w_scale
    else:
        scales = x_scale.expand(len(x)).contiguous()[:, None], w_scale.expand(len(w)).contiguous()[None, :]
    if out.is_contiguous():
        torch._scaled_mm(x, w.t(), *scales, bias=bias, out_dtype=out.dtype, out=out)
    else:
        out.copy_(torch._scaled_mm(x, w.t(), *scales, bias=bias, out_dtype=out.dtype))


def _check_scales(x: Tensor, x_scale: Tensor, w: Tensor, w_scale: Tensor) -> None:
    m, n, blocks = len(x), len(w), -(-x.shape[1] // 128)
    by_rows = x_scale.shape in ((m,), (1,)) and w_scale.shape in ((n,), (1,))
    by_blocks = x_scale.shape == (m, blocks) and w_scale.shape == (-(-n // 128), blocks)
    if not (by_rows or by_blocks) or x_scale.dtype != torch.float32 or w_scale.dtype != torch.float32:
        raise ValueError(
            f"the scales of x are {x_scale.dtype} {list(x_scale.shape)}, those of w {w_scale.dtype} "
            f"{list(w_scale.shape)}: for x {list(x.shape)} and w {list(w.shape)} they are float32, one for "
            f"each row or one for all, or by blocks [{m}, {blocks}] and [{-(-n // 128)}, {blocks}]."
        )
