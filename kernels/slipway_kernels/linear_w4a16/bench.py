"""Weight-only products' cases: the four matrices of an 8B layer, from decode to prefill."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import cache

import torch
from torch import Tensor

from slipway_kernels.cuda.cases import Case, Size
from slipway_kernels.cuda.compare import rounding
from slipway_kernels.linear_w4a16 import reference
from slipway_kernels.linear_w4a16.layout import Packed, pack
from slipway_kernels.linear_w4a16.op import PREFILL_ROWS, Workspace, dequantize, linear_w4a16, rows

MATRICES = ((4096, 28672), (14336, 4096), (4096, 6144), (4096, 4096))  # k, n
ROWS = (1, 8, 16, 32, 64, 256, 2048)


def cases(device: torch.device, size: Size) -> Iterator[Case]:
    if size == "small":
        yield _case(device, 3, 256, 72, group=64)
        yield _case(device, 20, 160, 72, group=32, asymmetric=True, ordered=True)
        yield _case(device, 2, 128, 64, group=64, bits=8)
        return
    for k, n in MATRICES:
        for m in ROWS:
            yield _case(device, m, k, n)
    for m in (8, 16, 32, 64, 256):
        yield _case(device, m, 4096, 28672, group=32)
        yield _case(device, m, 4096, 28672, bits=8)
    for m in (1, 16, 256):
        yield _case(device, m, 4096, 28672, dtype=torch.float16, asymmetric=True)
        yield _case(device, m, 14336, 4096, ordered=True)
        yield _case(device, m, 14336, 4096, group=14336)
        yield _case(device, m, 4096, 4096, group=64, asymmetric=True, halves=True)
    yield _rows(device, 64, 4096, 32768)
    yield _slab(device, 4096, 4096)


def _case(
    device: torch.device,
    m: int,
    k: int,
    n: int,
    *,
    group: int = 128,
    bits: int = 4,
    dtype: torch.dtype = torch.bfloat16,
    asymmetric: bool = False,
    halves: bool = False,
    ordered: bool = False,
) -> Case:
    weights = packed(device, n, k, group, bits, dtype, asymmetric, halves, ordered)
    x = torch.randn(m, k, device=device, dtype=dtype)
    out = torch.empty(m, n, device=device, dtype=dtype)
    space = Workspace(device)

    def run() -> Tensor:
        return linear_w4a16(x, weights, out, workspace=space)

    plain = not (asymmetric or ordered or bits == 8 or group != 128)
    fused = not ordered and m <= PREFILL_ROWS[90]
    form = f"{bits} bits by {group}" + ", zeros" * asymmetric + ", act-order" * ordered
    return Case(
        f"{m}x{k}x{n}, {form}, {str(dtype)[6:]}",
        run,
        lambda: reference.linear_w4a16(x, weights),
        tolerance=rounding(dtype, dtype, terms=k),  # weights, and the result
        bytes=weights.nbytes + 2 * m * (k + n),
        written=2 * m * n,
        flops=2 * m * n * k,
        peers=_peers(x, weights) if plain else {},
        instructions=("cp.async", "wgmma.mma_async" if m > 8 else "mma.sync") if fused else (),
    )


def _peers(x: Tensor, weights: Packed) -> Mapping[str, Callable[[], object]]:
    """The product by 16-bit weights, and torch's own with four bits, where it has one."""
    n, k = weights.shape

    @cache
    def wide() -> Tensor:
        return reference.dequantized(weights)

    @cache
    def four() -> tuple[Tensor, Tensor]:
        codes = torch.randint(0, 256, (n, k // 2), dtype=torch.uint8, device=x.device)
        scales = torch.ones(k // weights.group, n, 2, dtype=torch.bfloat16, device=x.device)
        return torch._convert_weight_to_int4pack(codes, 8), scales

    return {
        "torch bf16": lambda: torch.nn.functional.linear(x, wide()),
        "torch int4": lambda: torch._weight_int4pack_mm(x, four()[0], weights.group, four()[1]),
    }


def _rows(device: torch.device, count: int, k: int, n: int) -> Case:
    weights = packed(device, n, k, 128)
    ids = torch.randint(0, n, (count,), device=device)
    out = torch.empty(count, k, device=device, dtype=weights.dtype)
    return Case(
        f"{count} rows of {n}x{k}",
        lambda: rows(weights, ids, out),
        lambda: reference.dequantized(weights)[ids],
        bytes=count * k * 5 // 2,
        written=out.nbytes,
    )


def _slab(device: torch.device, n: int, k: int) -> Case:
    weights = packed(device, n, k, 128)
    out = torch.empty(n, k, device=device, dtype=weights.dtype)
    return Case(
        f"all of {n}x{k} in 16 bits",
        lambda: dequantize(weights, 0, out),
        lambda: reference.dequantized(weights),
        bytes=weights.nbytes + out.nbytes,
        written=out.nbytes,
    )


def packed(
    device: torch.device,
    n: int,
    k: int,
    group: int,
    bits: int = 4,
    dtype: torch.dtype = torch.bfloat16,
    asymmetric: bool = False,
    halves: bool = False,
    ordered: bool = False,
) -> Packed:
    """A random matrix whose products are of the order of 1; `halves` makes zeros that are no integers."""
    low, high, type_ = (0, 16, torch.uint8) if bits == 4 else (-128, 128, torch.int8)
    codes = torch.randint(low, high, (n, k), dtype=type_, device=device)
    scales = (torch.rand(n, k // group, device=device) + 0.5) / (4.0 if bits == 4 else 64.0) / k**0.5
    minimums = None
    if asymmetric:
        zeros = torch.randint(low, high, scales.shape, device=device) + (0.5 if halves else 0.0)
        minimums = -zeros * scales
    order = torch.randperm(k, device=device) if ordered and device.type != "meta" else None
    if ordered and order is None:
        order = torch.empty(k, dtype=torch.int64, device=device)
    result = pack(codes, scales, minimums, order, bits=bits, dtype=dtype)
    return replace(result, shifted=not halves) if device.type == "meta" else result
