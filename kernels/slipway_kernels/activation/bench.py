"""The activations' cases: MLPs of models, decode and prefill, plain and quantized."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from slipway_kernels.activation import reference
from slipway_kernels.activation.op import Kind, activate, add_gated, gated
from slipway_kernels.cuda.cases import Case, Size
from slipway_kernels.cuda.compare import one_code
from slipway_kernels.quantize.reference import quantize

E4M3 = torch.float8_e4m3fn


def cases(device: torch.device, size: Size) -> Iterator[Case]:
    full = size == "full"
    for rows, width in [(r, w) for w in (1536, 14336) for r in (1, 64, 2048)] if full else [(3, 96)]:
        for run in (0, 16):
            yield _gated(device, rows, width, "silu", run)
        yield _gated(device, rows, width, "gelu_tanh", 0)
        for kind in ("gelu", "gelu_tanh", "tanh"):
            yield _plain(device, rows, width, kind)
        yield _added(device, rows, width)
    widths = (1536, 14336, 28672) if full else (96,)
    for rows, width in [(r, w) for w in widths for r in (64, 2048)] if full else [(3, 96)]:
        for dtype in (torch.int8, E4M3):
            for group in (0, 128):
                yield _quantized(device, rows, width, dtype, group)


def _gated(device: torch.device, rows: int, width: int, kind: Kind, run: int) -> Case:
    x = torch.randn(rows, 2 * width, device=device, dtype=torch.bfloat16)
    out = torch.empty(rows, width, device=device, dtype=torch.bfloat16)
    return Case(
        f"{kind} {rows}x{width}{f' in runs of {run}' if run else ''}",
        lambda: gated(x, out, kind, run=run),
        lambda: reference.gated(x, width, kind, run),
        bytes=rows * width * 6,
        written=rows * width * 2,
        peers={} if run else {"torch": lambda: reference.activate(x[:, :width], kind) * x[:, width:]},
    )


def _plain(device: torch.device, rows: int, width: int, kind: Kind) -> Case:
    x = torch.randn(rows, width, device=device, dtype=torch.bfloat16)
    out = torch.empty_like(x)
    return Case(
        f"{kind} alone {rows}x{width}",
        lambda: activate(x, out, kind),
        lambda: reference.activate(x.float(), kind),
        bytes=rows * width * 4,
        written=rows * width * 2,
        peers={"torch": lambda: reference.activate(x, kind)},
    )


def _added(device: torch.device, rows: int, width: int) -> Case:
    before, y = torch.randn(2, rows, width, device=device, dtype=torch.bfloat16)
    gate = torch.randn(rows, 1, device=device, dtype=torch.bfloat16)
    out = before.clone()
    return Case(
        f"add gated {rows}x{width}",
        lambda: add_gated(out, y, gate),
        lambda: reference.add_gated(before.float(), y.float(), gate.float()),
        bytes=rows * width * 6,
        written=rows * width * 2,
        peers={"torch": lambda: reference.add_gated(before, y, gate)},
    )


def _quantized(device: torch.device, rows: int, width: int, dtype: torch.dtype, group: int) -> Case:
    x = torch.randn(rows, 2 * width, device=device, dtype=torch.bfloat16)
    out = torch.empty(rows, width, device=device, dtype=dtype)
    scales = torch.empty((rows, -(-width // group)) if group else (rows,), device=device)

    def expected() -> Tensor:
        return quantize(reference.gated(x, width, "silu"), dtype, group)[0]

    return Case(
        f"silu {rows}x{width} to {str(dtype).removeprefix('torch.')}{f' by {group}' if group else ''}",
        lambda: gated(x, out, "silu", scales=scales, group=group),
        expected,
        tolerance=one_code(dtype),
        bytes=rows * width * 5,
        written=rows * width,
        peers={"torch": expected},
        arch=90 if dtype == E4M3 else 80,
    )
