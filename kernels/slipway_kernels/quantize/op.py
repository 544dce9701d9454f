"""Quantization on the device: to fp8 or int8, by a scale for each row or for a part of it."""

from __future__ import annotations

import torch
from torch import Tensor

from slipway_kernels.cuda.launch import arch_of, launch
from slipway_kernels.cuda.prepared import prepared
from slipway_kernels.cuda.rows import ROW_TILES
from slipway_kernels.cuda.tiles import Tile, pick
from slipway_kernels.quantize.kernel import quantize_rows_kernel
from slipway_kernels.quantize.reference import limit_of


@prepared
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
    check_rows(x.shape, x=x, out=out)
    rows, width = x.shape
    tile = row_tile(arch_of(x.device), width, group)
    launch(
        quantize_rows_kernel,
        (rows,),
        tile=tile,
        x_ptr=x,
        out_ptr=out,
        scales_ptr=scales,
        x_stride=x.stride(0),
        out_stride=out.stride(0),
        scales_stride=scales.stride(0),
        width=width,
        LIMIT=limit,
        GROUP=group or tile.constants["WIDTH"],
    )
    return out, scales


def row_format(shape: torch.Size, out: Tensor, scales: Tensor | None, group: int) -> tuple[float, int]:
    """The limit of a kernel that quantizes rows of that shape into `out`, and its group; 0 without scales."""
    if scales is None:
        return 0.0, 0
    limit = _limit_on(out)
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


def check_rows(shape: torch.Size, **tensors: Tensor | None) -> None:
    """Raises ValueError unless all that are there have this shape, and adjacent columns."""
    for name, tensor in tensors.items():
        if tensor is not None and (tensor.shape != shape or tensor.dim() != 2 or tensor.stride(1) != 1):
            raise ValueError(
                f"{name} is {list(tensor.shape)} by strides of {tensor.stride()}: here it must be "
                f"{list(shape)}, rows by width, and the columns of a row adjacent."
            )


def check_columns(width: int, **vectors: Tensor | None) -> None:
    """Raises ValueError unless all that are there have one number a column, adjacent."""
    for name, vector in vectors.items():
        if vector is not None and (vector.shape != (width,) or vector.stride(0) != 1):
            raise ValueError(
                f"{name} is {list(vector.shape)} by strides of {vector.stride()}: it has a number for "
                f"each of {width} columns, and they are adjacent."
            )


def _limit_on(out: Tensor) -> float:
    """The largest number of out's type. Raises ValueError where its device cannot make that type."""
    if out.dtype not in (torch.int8, torch.float8_e4m3fn, torch.float8_e5m2):
        raise ValueError(f"out is {out.dtype}: quantize to int8, float8_e4m3fn or float8_e5m2.")
    arch = arch_of(out.device)
    if out.dtype == torch.float8_e4m3fn and arch < 89:
        raise ValueError(
            f"fp8 e4m3 needs compute capability 8.9 and this device has {arch / 10}: quantize to int8."
        )
    return limit_of(out.dtype)
