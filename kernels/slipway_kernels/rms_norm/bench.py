"""RMS norm's cases: widths of models, decode and prefill."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from slipway_kernels.cuda.cases import Case, Size
from slipway_kernels.cuda.compare import one_code
from slipway_kernels.quantize.reference import quantize
from slipway_kernels.rms_norm import reference
from slipway_kernels.rms_norm.op import rms_norm

FULL = [(rows, width) for width in (128, 576, 2048, 4096, 8192, 16384, 20480) for rows in (1, 64, 2048)]
SMALL = [(1, 128), (3, 576)]


def cases(device: torch.device, size: Size) -> Iterator[Case]:
    for rows, width in FULL if size == "full" else SMALL:
        for fused in (False, True):
            yield _case(device, rows, width, fused)
    for rows, width in [(64, 4096), (2048, 4096)] if size == "full" else SMALL:
        for dtype in (torch.int8, torch.float8_e4m3fn):
            for group in (0, 128):
                yield _quantized(device, rows, width, dtype, group)


def _case(device: torch.device, rows: int, width: int, fused: bool) -> Case:
    x, before = torch.randn(2, rows, width, device=device, dtype=torch.bfloat16)
    weight = torch.randn(width, device=device, dtype=torch.bfloat16)
    out = torch.empty_like(x)
    residual = before.clone() if fused else None
    whole = (x.float() + before.float()).bfloat16() if fused else x

    def run() -> torch.Tensor:
        return rms_norm(x, weight, 1e-5, out, residual=residual)

    return Case(
        f"{'add and norm' if fused else 'norm'} {rows}x{width}",
        run,
        lambda: reference.rms_norm(whole, weight, 1e-5),
        bytes=rows * width * (8 if fused else 4),
        written=rows * width * (4 if fused else 2),
        peers={} if fused else {"torch": lambda: torch.nn.functional.rms_norm(x, (width,), weight, 1e-5)},
    )


def _quantized(device: torch.device, rows: int, width: int, dtype: torch.dtype, group: int) -> Case:
    x, before = torch.randn(2, rows, width, device=device, dtype=torch.bfloat16)
    weight = torch.randn(width, device=device, dtype=torch.bfloat16)
    out = torch.empty(rows, width, device=device, dtype=dtype)
    scales = torch.empty((rows, -(-width // group)) if group else (rows,), device=device)
    residual = before.clone()
    whole = (x.float() + before.float()).bfloat16()

    def expected() -> torch.Tensor:
        return quantize(reference.rms_norm(whole, weight, 1e-5), dtype, group)[0]

    eighth = dtype == torch.float8_e4m3fn
    to = f"{str(dtype).removeprefix('torch.')}{f' by {group}' if group else ''}"
    return Case(
        f"add and norm {rows}x{width} to {to}",
        lambda: rms_norm(x, weight, 1e-5, out, residual=residual, scales=scales, group=group),
        expected,
        tolerance=one_code(dtype),
        bytes=rows * width * 7,
        written=rows * width * 3,
        arch=90 if eighth else 80,
    )
