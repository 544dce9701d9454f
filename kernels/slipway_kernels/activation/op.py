"""Activations on the device."""

from __future__ import annotations

from typing import Literal, get_args

from torch import Tensor

from slipway_kernels.activation.kernel import activation_kernel, add_gated_kernel
from slipway_kernels.cuda.launch import arch_of, launch
from slipway_kernels.cuda.prepared import prepared
from slipway_kernels.cuda.rows import PIECE_TILES, row_stride
from slipway_kernels.cuda.tiles import pick
from slipway_kernels.quantize.op import row_format, row_tile

Kind = Literal["silu", "gelu", "gelu_tanh", "relu", "relu2", "tanh"]


@prepared
def gated(
    x: Tensor, out: Tensor, kind: Kind, *, run: int = 0, scales: Tensor | None = None, group: int = 0
) -> Tensor:
    """out = act(gate) · up.

    x       [rows, 2 · width]  bf16, fp16 or fp32: the gate's columns, then up's; or, where `run` is not 0,
                               so many columns of each in turn, the last run as long as the others
    out     [rows, width]      the same types; with scales int8 or fp8
    scales  [rows] or [rows, ceil(width / group)]  fp32: out is quantized as by `quantize_rows`
    Neighbours in a row are adjacent. Returns out. Raises ValueError where shapes disagree.
    """
    width = out.shape[1]
    columns = 2 * run * -(-width // run) if run else 2 * width
    if x.shape[1] != columns:
        raise ValueError(
            f"x has {x.shape[1]} columns, for {width} of out there are {columns}: half are the gate's, "
            f"{f'in runs of {run}' if run else 'all before the others'}."
        )
    return _activate(x, out, kind, True, run, scales, group)


@prepared
def activate(x: Tensor, out: Tensor, kind: Kind, *, scales: Tensor | None = None, group: int = 0) -> Tensor:
    """out = act(x), x and out [rows, width]; out may be x. The rest is as in `gated`."""
    if x.shape != out.shape:
        raise ValueError(f"x is {list(x.shape)} and out {list(out.shape)}: they must be equal.")
    return _activate(x, out, kind, False, 0, scales, group)


@prepared
def add_gated(out: Tensor, y: Tensor, gate: Tensor) -> Tensor:
    """out += sigmoid(gate) · y.   out, y [rows, width], gate [rows, 1]: bf16, fp16 or fp32. Returns out."""
    rows, width = out.shape
    if y.shape != out.shape or gate.shape != (rows, 1) or y.stride(1) != 1 or out.stride(1) != 1:
        raise ValueError(
            f"out is {list(out.shape)}, y {list(y.shape)} and the gate {list(gate.shape)}: out and y are "
            "equal, their columns adjacent, and the gate has one number a row."
        )
    tile = pick(PIECE_TILES, arch_of(out.device))
    launch(
        add_gated_kernel,
        (rows, -(-width // tile.constants["WIDTH"])),
        tile=tile,
        out_ptr=out,
        y_ptr=y,
        gate_ptr=gate,
        out_stride=out.stride(0),
        y_stride=y.stride(0),
        gate_stride=gate.stride(0),
        width=width,
    )
    return out


def _activate(
    x: Tensor, out: Tensor, kind: Kind, has_gate: bool, run: int, scales: Tensor | None, group: int
) -> Tensor:
    rows, width = out.shape
    if kind not in get_args(Kind):
        raise ValueError(f"The activation is {kind!r}: there are {', '.join(get_args(Kind))}.")
    if len(x) != rows or x.stride(1) != 1 or out.stride(1) != 1:
        raise ValueError(
            f"x is {list(x.shape)} by strides of {x.stride()}, out {list(out.shape)} by {out.stride()}: they "
            "have the same rows, and the columns of a row are adjacent."
        )
    arch = arch_of(x.device)
    limit, group = row_format(out.shape, out, scales, group)
    tile = pick(PIECE_TILES, arch) if scales is None else row_tile(arch, width, group)
    launch(
        activation_kernel,
        (rows, -(-width // tile.constants["WIDTH"])),
        tile=tile,
        x_ptr=x,
        out_ptr=out,
        scales_ptr=scales,
        x_stride=x.stride(0),
        out_stride=out.stride(0),
        scales_stride=row_stride(scales),
        width=width,
        KIND=kind,
        GATED=has_gate,
        RUN=run,
        LIMIT=limit,
        GROUP=group or tile.constants["WIDTH"],
    )
    return out
