"""Products of Llama 3.1 8B in 8 bits, beside PyTorch's: fp8 summed fast and exactly, int8 without scales."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from slipway_kernels.cuda.cases import Arithmetic, Case, Size
from slipway_kernels.cuda.compare import fp8_sum, rounding
from slipway_kernels.linear_w8a8 import reference
from slipway_kernels.linear_w8a8.op import FEW, linear_w8a8

WEIGHTS = ((6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336))
ROWS = (1, 8, 16, 32, 64, 128, 256, 512, 2048, 8192)
SMALL = ((1, 40, 96), (5, 33, 320), (20, 72, 288), (70, 40, 160))
FP8, INT8 = torch.float8_e4m3fn, torch.int8
FEW_ROWS, MANY_ROWS = ("mma.sync", "cp.async"), ("wgmma.mma_async", "cp.async.bulk")


def cases(device: torch.device, size: Size) -> Iterator[Case]:
    for m, n, k in [(m, n, k) for n, k in WEIGHTS for m in ROWS] if size == "full" else SMALL:
        yield _case(device, m, n, k, FP8)
        yield _case(device, m, n, k, INT8)
        yield _case(device, m, n, k, FP8, blocks=True)
    n, k = (6144, 4096) if size == "full" else (24, 64)
    for m in (8, 64, 2048) if size == "full" else (3, 17):
        yield _case(device, m, n, k, FP8, to=torch.float16, biased=True)
        yield _case(device, m, n, k, INT8, to=torch.float32)
        yield _case(device, m, n + 3, k - 4, INT8, biased=True)


def _case(
    device: torch.device,
    m: int,
    n: int,
    k: int,
    dtype: torch.dtype,
    blocks: bool = False,
    to: torch.dtype = torch.bfloat16,
    biased: bool = False,
) -> Case:
    x, w = (_values(rows, k, dtype, device) for rows in (m, n))
    x_scale = torch.rand(m, -(-k // 128), device=device) if blocks else torch.rand(m, device=device)
    w_scale = (
        torch.rand(-(-n // 128), -(-k // 128), device=device) if blocks else torch.rand(n, device=device)
    )
    w_scale /= k**0.5 * (1 if dtype == FP8 else 1000)
    bias = torch.randn(n, device=device) if biased else None
    out = torch.empty(m, n, device=device, dtype=to)

    def run() -> Tensor:
        return linear_w8a8(x, x_scale, w, w_scale, out, bias=bias)

    def scaled(fast: bool) -> Callable[[], Tensor]:
        scales = x_scale[:, None], w_scale[None, :]
        return lambda: torch._scaled_mm(x, w.t(), *scales, out_dtype=to, use_fast_accum=fast)

    peers: dict[str, Callable[[], object]] = {}
    if dtype == FP8 and not (blocks or biased):
        peers = {"torch fast": scaled(True), "torch exact": scaled(False)}
    elif dtype == INT8 and not biased and m > FEW:
        peers = {"torch int8 sums": lambda: torch._int_mm(x, w.t())}
    narrow = dtype == FP8 and m > FEW
    return Case(
        f"{'fp8' if dtype == FP8 else 'int8'}{' by blocks' if blocks else ''} {m}x{n}x{k}"
        f"{' + bias' if biased else ''}",
        run,
        lambda: reference.linear_w8a8(x, x_scale, w, w_scale, bias),
        tolerance=rounding(to, terms=k) + (fp8_sum(128 if blocks else k) if narrow else 0.0),
        bytes=m * k + n * k + m * n * to.itemsize,
        written=m * n * to.itemsize,
        flops=2 * m * n * k,
        arithmetic=_arithmetic(dtype, m, blocks),
        peers=peers,
        instructions=() if k % 16 else FEW_ROWS if m <= FEW else MANY_ROWS,
        arch=90 if dtype == FP8 else 80,
    )


def _arithmetic(dtype: torch.dtype, m: int, blocks: bool) -> Arithmetic:
    """Few rows of fp8 are multiplied in 16 bits. Sums by blocks leave the tensor cores every 128 products."""
    if dtype == INT8:
        return "int8"
    if m <= FEW:
        return "bf16"
    return "fp8_exact" if blocks else "fp8_fast"


def _values(rows: int, k: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    if dtype == INT8:
        return torch.randint(-127, 128, (rows, k), device=device, dtype=dtype)
    return torch.randn(rows, k, device=device).to(dtype)
