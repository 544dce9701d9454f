"""Decode's products of Llama 3.1 8B, beside cuBLAS."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from slipway_kernels.cuda.cases import Case, Size
from slipway_kernels.cuda.compare import rounding
from slipway_kernels.linear_bf16 import reference
from slipway_kernels.linear_bf16.op import few_rows

WEIGHTS = ((6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336), (128256, 4096))
SMALL = ((1, 40, 96), (5, 33, 200))


def cases(device: torch.device, size: Size) -> Iterator[Case]:
    full = [(m, n, k) for n, k in WEIGHTS for m in (1, 2, 4, 8, 16)]
    for m, n, k in full if size == "full" else SMALL:
        yield _case(device, m, n, k, torch.bfloat16, biased=False)
    m, n, k = (8, 6144, 4096) if size == "full" else SMALL[0]
    yield _case(device, m, n, k, torch.bfloat16, biased=True)
    yield _case(device, m, n, k, torch.float16, biased=True)


def _case(device: torch.device, m: int, n: int, k: int, dtype: torch.dtype, biased: bool) -> Case:
    x = torch.randn(m, k, device=device, dtype=dtype)
    weight = torch.randn(n, k, device=device, dtype=dtype) / k**0.5
    bias = torch.randn(n, device=device, dtype=dtype) if biased else None
    out = torch.empty(m, n, device=device, dtype=dtype)

    def run() -> Tensor:
        return few_rows(x, weight, out, bias=bias)

    return Case(
        f"{str(dtype).removeprefix('torch.')} {m}x{n}x{k}{' + bias' if biased else ''}",
        run,
        lambda: reference.linear_bf16(x, weight, bias),
        tolerance=rounding(dtype, terms=k),
        bytes=2 * (m * k + n * k + m * n),
        written=2 * m * n,
        flops=2 * m * n * k,
        peers={"torch": lambda: torch.nn.functional.linear(x, weight, bias)},
        instructions=("mma.sync", "cp.async"),
    )
