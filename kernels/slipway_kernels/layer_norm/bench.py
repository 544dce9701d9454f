"""Layer norm's cases: widths of models, decode and prefill."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from slipway_kernels.cuda.cases import Case, Size
from slipway_kernels.layer_norm import reference
from slipway_kernels.layer_norm.op import layer_norm

FULL = [(rows, width) for width in (768, 4096, 12288) for rows in (1, 64, 2048)]
SMALL = [(1, 128), (3, 576)]


def cases(device: torch.device, size: Size) -> Iterator[Case]:
    for rows, width in FULL if size == "full" else SMALL:
        for fused in (False, True):
            yield _case(device, rows, width, fused, torch.bfloat16)
    rows, width = (2048, 4096) if size == "full" else SMALL[0]
    for dtype in (torch.int8, torch.float8_e4m3fn):
        yield _case(device, rows, width, True, dtype)
    for fused in (False, True):
        yield _encoder(device, rows, width, fused)


def _encoder(device: torch.device, rows: int, width: int, fused: bool) -> Case:
    """As encoders launch it: by weights in fp32, first of all over embeddings that were added up in fp32."""
    x, before = torch.randn(2, rows, width, device=device, dtype=torch.bfloat16 if fused else torch.float32)
    weight, bias = torch.randn(2, width, device=device)
    residual = before.clone() if fused else None
    whole = (x.float() + before.float()).bfloat16() if fused else x
    out = torch.empty(rows, width, device=device, dtype=torch.bfloat16)
    return Case(
        f"{'add and norm' if fused else 'norm fp32'} {rows}x{width} by fp32",
        lambda: layer_norm(x, weight, bias, 1e-5, out, residual=residual),
        lambda: reference.layer_norm(whole, weight, bias, 1e-5),
        bytes=rows * width * (8 if fused else 6),
        written=rows * width * (4 if fused else 2),
    )


def _case(device: torch.device, rows: int, width: int, fused: bool, dtype: torch.dtype) -> Case:
    x, before = torch.randn(2, rows, width, device=device, dtype=torch.bfloat16)
    weight, bias = torch.randn(2, width, device=device, dtype=torch.bfloat16)
    out = torch.empty(rows, width, device=device, dtype=dtype)
    scales = torch.empty(rows, device=device) if dtype.itemsize == 1 else None
    residual = before.clone() if fused else None
    whole = (x.float() + before.float()).bfloat16() if fused else x
    return Case(
        f"{'add and norm' if fused else 'norm'} {rows}x{width} to {str(dtype).removeprefix('torch.')}",
        lambda: layer_norm(x, weight, bias, 1e-5, out, residual=residual, scales=scales),
        (lambda: reference.layer_norm(whole, weight, bias, 1e-5)) if scales is None else None,
        bytes=rows * width * ((6 if fused else 2) + dtype.itemsize),
        written=rows * width * ((2 if fused else 0) + dtype.itemsize),
        peers={}
        if fused
        else {"torch": lambda: torch.nn.functional.layer_norm(x, (width,), weight, bias, 1e-5)},
        arch=90 if dtype == torch.float8_e4m3fn else 80,
    )
