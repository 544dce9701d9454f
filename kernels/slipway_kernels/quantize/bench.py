"""Quantization's cases: the inputs of products, decode and prefill."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from slipway_kernels.cuda.cases import Case, Size
from slipway_kernels.cuda.compare import one_code
from slipway_kernels.quantize import reference
from slipway_kernels.quantize.op import quantize_rows

FULL = [(rows, width) for width in (256, 1024, 2048, 4096, 8192, 14336, 28672) for rows in (1, 64, 2048)]
SMALL = [(3, 96)]
E4M3 = torch.float8_e4m3fn


def cases(device: torch.device, size: Size) -> Iterator[Case]:
    for rows, width in FULL if size == "full" else SMALL:
        yield _of_rows(device, rows, width, torch.int8, 0)
        yield _of_rows(device, rows, width, E4M3, 128)
    for rows in (1, 64, 2048) if size == "full" else (3,):
        yield _of_rows(device, rows, 4096, torch.int8, 128)
        yield _of_rows(device, rows, 4096, E4M3, 0)


def _of_rows(device: torch.device, rows: int, width: int, dtype: torch.dtype, group: int) -> Case:
    x = torch.randn(rows, width, device=device, dtype=torch.bfloat16)
    out = torch.empty(rows, width, device=device, dtype=dtype)
    shape = (rows, -(-width // group)) if group else (rows,)
    scales = torch.empty(shape, device=device)
    return Case(
        f"rows {rows}x{width} {str(dtype).removeprefix('torch.')}{f' by {group}' if group else ''}",
        lambda: quantize_rows(x, out, scales, group=group)[0],
        lambda: reference.quantize(x, dtype, group)[0],
        tolerance=one_code(dtype),
        bytes=rows * width * 3,
        written=rows * width,
        peers={"torch": lambda: reference.quantize(x, dtype, group)},
        always=("st.global.v",),
        arch=90 if dtype == E4M3 else 80,
    )
