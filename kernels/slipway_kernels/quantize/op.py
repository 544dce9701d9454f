"""Quantization on the device: to fp8 or int8, by scales that are found or given."""

from __future__ import annotations

import torch
from torch import Tensor

from slipway_kernels.cuda.launch import Tile, arch_of, launch, pick
from slipway_kernels.cuda.rows import PIECE_TILES, ROW_TILES
from slipway_kernels.quantize.kernel import largest_kernel, quantize_pieces_kernel, quantize_rows_kernel
from slipway_kernels.quantize.reference import limit_of

PROGRAMS = 1024
"""Partial maxima of a tensor: enough programs for every device."""


def workspace(device: torch.device) -> Tensor:
    """What `quantize_tensor` works in, for tensors of any size; two calls at a time need two."""
    return torch.empty(PROGRAMS, dtype=torch.float32, device=device)


def quantize_rows(x: Tensor, out: Tensor, scales: Tensor, *, group: int = 0) -> tuple[Tensor, Tensor]:
    """out = x / scale, scale = max |x| / limit of each row, or of each `group` of its columns.

    x       [rows, width]  bf16, fp16 or fp32
    out     [rows, width]  int8, or fp8: e4m3 (from sm_89) or e5m2
    scales  [rows] or [rows, ceil(width / group)]  fp32
    group   a power of two, or 0: the whole row
    Neighbours in a row are adjacent. A row that holds a NaN gets it as its scale. Returns out and scales.
    Raises ValueError where shapes disagree.
    """
    limit, group = row_format(x.shape, out, scales, group)
    _check_rows(x, out)
    rows, width = x.shape
    tile = row_tile(arch_of(x.device), width, group)
    launch(
        quantize_rows_kernel,
        (rows,),
        *(x, out, scales, x.stride(0), out.stride(0), scales.stride(0), width),
        tile=tile,
        LIMIT=limit,
        GROUP=group or tile.constants["WIDTH"],
    )
    return out, scales


def quantize_tensor(x: Tensor, out: Tensor, scale: Tensor, workspace: Tensor) -> tuple[Tensor, Tensor]:
    """As `quantize_rows`, with one scale [1] for the whole tensor."""
    limit = limit_on(out)
    _check_rows(x, out, scale)
    if workspace.shape != (PROGRAMS,) or workspace.dtype != torch.float32:
        raise ValueError(
            f"The workspace is {workspace.dtype} {list(workspace.shape)}: make it by workspace()."
        )
    rows, width = x.shape
    tile = pick(PIECE_TILES, arch_of(x.device))
    programs = min(rows * -(-width // tile.constants["WIDTH"]), PROGRAMS)
    launch(largest_kernel, (programs,), x, workspace, x.stride(0), rows, width, tile=tile)
    _quantize_pieces(x, out, scale, workspace[:programs], limit)
    return out, scale


def quantize_static(x: Tensor, out: Tensor, scale: Tensor) -> Tensor:
    """out = x / scale, saturated, by a given scale [1] fp32. The rest is as in `quantize_rows`."""
    limit = limit_on(out)
    _check_rows(x, out, scale)
    _quantize_pieces(x, out, scale, None, limit)
    return out


def limit_on(out: Tensor) -> float:
    """The largest number of out's type. Raises ValueError where its device cannot make that type."""
    if out.dtype not in (torch.int8, torch.float8_e4m3fn, torch.float8_e5m2):
        raise ValueError(f"out is {out.dtype}: quantize to int8, float8_e4m3fn or float8_e5m2.")
    arch = arch_of(out.device)
    if out.dtype == torch.float8_e4m3fn and arch < 89:
        raise ValueError(
            f"fp8 e4m3 needs compute capability 8.9 and this device has {arch / 10}: quantize to int8."
        )
    return limit_of(out.dtype)


def row_format(shape: torch.Size, out: Tensor, scales: Tensor, group: int) -> tuple[float, int]:
    """The limit of a kernel that quantizes rows of that shape into `out`, and its group."""
    limit = limit_on(out)
    if group and (group & (group - 1) or group < 16):
        raise ValueError(f"The group is {group}: give a power of two from 16 on, or 0 for the whole row.")
    expected = (shape[0], -(-shape[1] // group)) if group else (shape[0],)
    if scales.shape != expected or scales.dtype != torch.float32 or not scales.is_contiguous():
        raise ValueError(
            f"scales are {scales.dtype} {list(scales.shape)}: for rows of {list(shape)} by groups of "
            f"{group or shape[1]} they are fp32 {list(expected)}, contiguous."
        )
    return limit, group


def row_tile(arch: int, width: int, group: int) -> Tile:
    """The tile that holds a row and a group."""
    return pick(ROW_TILES, arch, width=max(width, group))


def _quantize_pieces(x: Tensor, out: Tensor, scale: Tensor, most: Tensor | None, limit: float) -> None:
    rows, width = x.shape
    tile = pick(PIECE_TILES, arch_of(x.device))
    launch(
        quantize_pieces_kernel,
        (rows, -(-width // tile.constants["WIDTH"])),
        *(x, out, scale, most, x.stride(0), out.stride(0), width, 0 if most is None else len(most)),
        tile=tile,
        LIMIT=limit,
        PROGRAMS=PROGRAMS,
    )


def _check_rows(x: Tensor, out: Tensor, scale: Tensor | None = None) -> None:
    if x.shape != out.shape or x.dim() != 2 or x.stride(1) != 1 or out.stride(1) != 1:
        raise ValueError(
            f"x is {list(x.shape)} by strides of {x.stride()}, out {list(out.shape)} by {out.stride()}: both "
            "are [rows, width], and the columns of a row are adjacent."
        )
    if scale is not None and (scale.shape != (1,) or scale.dtype != torch.float32):
        raise ValueError(f"The scale is {scale.dtype} {list(scale.shape)}: it is one fp32 number, [1].")
