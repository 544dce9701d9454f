"""RMS norm's cases: widths of models, decode and prefill."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from slipway_kernels.cuda.cases import Case, Size
from slipway_kernels.rms_norm import reference
from slipway_kernels.rms_norm.op import rms_norm

FULL = [(rows, width) for width in (128, 576, 2048, 4096, 8192, 16384) for rows in (1, 64, 2048)]
SMALL = [(1, 128), (3, 576)]


def cases(device: torch.device, size: Size) -> Iterator[Case]:
    for rows, width in FULL if size == "full" else SMALL:
        for fused in (False, True):
            yield _case(device, rows, width, fused)


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
        peers={} if fused else {"torch": lambda: torch.nn.functional.rms_norm(x, (width,), weight, 1e-5)},
    )
