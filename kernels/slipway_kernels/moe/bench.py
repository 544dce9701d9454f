"""The experts' cases: two models, decode and prefill, step by step."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from slipway_kernels.cuda.cases import Arithmetic, Case, Size
from slipway_kernels.cuda.compare import fp8_sum, rounding
from slipway_kernels.linear_w4a16.layout import Packed, pack, unpack
from slipway_kernels.moe import op, op_route, reference


@dataclass(frozen=True, slots=True)
class Model:
    name: str
    experts: int
    top_k: int
    width: int
    inner: int


MIXTRAL = Model("Mixtral-8x7B", 8, 2, 4096, 14336)
QWEN = Model("Qwen3-30B-A3B", 128, 8, 2048, 768)
TOY = Model("toy", 6, 2, 96, 160)
TILED = Model("tiled toy", 6, 2, 160, 128)
ROWS = (1, 8, 64, 256, 2048)
Weights = Tensor | op.Scaled | Packed
INTEGERS = 73.0
"""Standard deviation of whole numbers from -127 to 127."""
BITS = {"w4": 4, "w8": 8}
TYPES = {
    "bf16": torch.bfloat16,
    "fp8": torch.float8_e4m3fn,
    "fp8 by blocks": torch.float8_e4m3fn,
    "int8": torch.int8,
    "fp32": torch.float32,
}


def cases(device: torch.device, size: Size) -> Iterator[Case]:
    if size == "small":
        yield from _steps(TOY, 5, device)
        for kind in ("bf16", "fp8", "int8", "w4"):
            yield from _products(TOY, (5,), kind, device)
        yield from _products(TILED, (5,), "fp8 by blocks", device)
        return
    for model in (MIXTRAL, QWEN):
        for rows in ROWS:
            yield from _steps(model, rows, device)
        yield from _products(model, ROWS, "bf16", device)
        yield from _products(model, ROWS, "fp8", device)
        yield from _products(model, ROWS, "w4", device)
    yield from _products(QWEN, (1, 2048), "w8", device)
    for kind in ("fp8 by blocks", "int8"):
        yield from _products(QWEN, (1, 64, 256, 512, 2048), kind, device)
    yield from _products(TOY, (1, 64), "fp32", device)
    yield from _products(TOY, (1, 40, 150, 400), "bf16", device)  # k is no multiple of a tile's depth
    yield from _products(TOY, (1, 400), "w4", device)
    yield from _deepseek(device)


def _steps(model: Model, rows: int, device: torch.device) -> Iterator[Case]:
    """Choosing, sorting and summing."""
    shape = (rows, model.top_k)
    logits = torch.randn(rows, model.experts, device=device)
    ids, weights = torch.empty(shape, dtype=torch.int32, device=device), torch.empty(shape, device=device)

    def route() -> Tensor:
        op_route.route(logits, model.top_k, True, ids, weights)
        return weights

    def torch_route() -> tuple[Tensor, Tensor]:
        best, chosen = logits.softmax(-1).topk(model.top_k, -1)
        return best / best.sum(-1, keepdim=True), chosen

    yield Case(
        f"{model.name} route {rows}",
        route,
        lambda: reference.route(logits, model.top_k, True)[1],
        tolerance=rounding(torch.float32, terms=model.experts),
        bytes=rows * (model.experts * 4 + model.top_k * 8),
        written=rows * model.top_k * 8,
        peers={"torch": torch_route},
    )
    drawn = _drawn(model, rows).to(device)
    block_m = op.block_m_of(drawn.numel(), model.experts, torch.bfloat16)
    order = op_route.arrangement(drawn.numel(), model.experts, block_m, device)

    def expected_pairs() -> Tensor:
        blocks = len(order.expert_of_block)
        return reference.arrange(drawn.cpu(), model.experts, block_m, blocks)[0].to(device)

    yield Case(
        f"{model.name} arrange {rows}",
        lambda: op_route.arrange(drawn, order).sorted_pairs,
        expected_pairs,
        tolerance=0,
        bytes=4 * (drawn.numel() + len(order.sorted_pairs)),
        written=4 * len(order.sorted_pairs),
        peers={"torch": lambda: drawn.flatten().sort(stable=True)},
    )
    y = torch.randn(rows * model.top_k, model.width, device=device, dtype=torch.bfloat16)
    shares = torch.rand(shape, device=device)
    out = torch.empty(rows, model.width, device=device, dtype=torch.bfloat16)
    yield Case(
        f"{model.name} combine {rows}",
        lambda: op_route.combine(y, drawn, shares, out),
        lambda: reference.combine(y, drawn, shares),
        bytes=2 * (y.numel() + out.numel()),
        written=2 * out.numel(),
        peers={"torch": lambda: torch.einsum("rjw,rj->rw", y.view(*shape, -1), shares.bfloat16())},
    )


def _deepseek(device: torch.device) -> Iterator[Case]:
    """The choice of DeepSeek V3: 8 of 256 experts by sigmoid and bias, from 4 of 8 groups."""
    logits, bias = torch.randn(64, 256, device=device), torch.randn(256, device=device)
    ids, weights = torch.empty(64, 8, dtype=torch.int32, device=device), torch.empty(64, 8, device=device)

    def run() -> Tensor:
        op_route.route(
            *(logits, 8, True, ids, weights),
            kind="sigmoid",
            bias=bias,
            groups=8,
            kept_groups=4,
            scaling=2.5,
        )
        return weights

    def expected() -> Tensor:
        return reference.route(
            logits, 8, True, kind="sigmoid", bias=bias, groups=8, kept_groups=4, scaling=2.5
        )[1]

    yield Case(
        "DeepSeek-V3 route 64",
        run,
        expected,
        tolerance=rounding(torch.float32, terms=256),
        bytes=64 * (256 * 4 + 8 * 8),
        written=64 * 8 * 8,
    )


def _products(model: Model, rows: tuple[int, ...], kind: str, device: torch.device) -> Iterator[Case]:
    """Gate and up, then down, each over one set of weights for all numbers of rows."""
    for name, height, k in (("gate_up", 2 * model.inner, model.width), ("down", model.width, model.inner)):
        weights = _weights(model.experts, height, k, kind, device)
        for count in rows:
            yield _product(f"{model.name} {name} {count} {kind}", model, count, weights, name == "gate_up")


def _weights(experts: int, height: int, k: int, kind: str, device: torch.device) -> Weights:
    if kind in BITS:
        low, high, dtype = (0, 16, torch.uint8) if kind == "w4" else (-128, 128, torch.int8)
        codes = torch.randint(low, high, (experts * height, k), dtype=dtype, device=device)
        group = 32 if k % 128 else 128
        scales = torch.rand(experts * height, k // group, device=device) / ((high - low) / 4 * k**0.5)
        return pack(codes, scales, bits=BITS[kind])
    values = torch.empty(experts, height, k, device=device, dtype=TYPES[kind])
    for expert in values:
        expert.copy_(_numbers((height, k), values.dtype, device, 1 / k**0.5))
    if values.dtype.itemsize > 1:
        return values
    shape = (experts, -(-height // 128), -(-k // 128)) if kind.endswith("blocks") else (experts, height)
    scales = torch.rand(shape, device=device)
    return op.Scaled(values, scales / (INTEGERS**2 * k**0.5) if kind == "int8" else scales)


def _numbers(shape: tuple[int, int], dtype: torch.dtype, device: torch.device, deviation: float) -> Tensor:
    """Floats of this deviation, or integers of INTEGERS, at random."""
    if dtype == torch.int8:
        return torch.randint(-127, 128, shape, dtype=dtype, device=device)
    return (torch.randn(shape, device=device) * deviation).to(dtype)


def _exact(weights: Weights, experts: int) -> Tensor:
    """[experts, height, k]"""
    if isinstance(weights, Packed):
        codes, scales, _ = unpack(weights)
        numbers = codes.to(scales.dtype) - (8 if weights.bits == 4 else 0)
        numbers = numbers.view(*scales.shape, -1) * scales[..., None]
        return numbers.view(experts, -1, weights.k)
    if isinstance(weights, op.Scaled):
        if not weights.group:
            return weights.values.float() * weights.scales[..., None]
        wide = weights.scales.repeat_interleave(128, 1).repeat_interleave(128, 2)
        return weights.values.float() * wide[:, : weights.values.shape[1], : weights.values.shape[2]]
    return weights


def _product(title: str, model: Model, rows: int, weights: Weights, gated: bool) -> Case:
    values = weights.values if isinstance(weights, op.Scaled) else weights
    device = values.words.device if isinstance(values, Packed) else values.device
    k, dtype = (model.width if gated else model.inner), values.dtype
    n = model.inner if gated else model.width
    ids = _drawn(model, rows)
    touched, pairs = len(set(ids.flatten().tolist())), ids.numel()
    x = _numbers((rows if gated else pairs, k), dtype, device, 1.0)
    out_dtype, x_scale = dtype, None
    if isinstance(weights, op.Scaled):
        out_dtype, x_scale = torch.bfloat16, torch.ones(len(x), *weights.scales.shape[2:], device=device)
    out = torch.empty(pairs, n, device=device, dtype=out_dtype)
    block_m = op.block_m_of(pairs, model.experts, dtype)
    order = _arranged(ids, model.experts, block_m, device)
    activation: op.Activation = "silu" if gated else ""
    wgmma = block_m >= 64
    tensor_core = "wgmma.mma_async" if wgmma else "mma.sync"
    return Case(
        title,
        partial(op.moe_linear, x, weights, order, out, activation=activation, x_scale=x_scale),
        lambda: reference.product(x, _exact(weights, model.experts), ids.to(device), activation),
        tolerance=_tolerance(weights, out_dtype, k, gated, wgmma),
        bytes=values.nbytes * touched // model.experts + x.nbytes + out.nbytes,
        written=out.nbytes,
        flops=2 * pairs * (2 * n if gated else n) * k,
        arithmetic=_arithmetic(weights, wgmma),
        peers=_torch_grouped(x, weights, ids.to(device), gated),
        instructions=() if dtype == torch.float32 else (tensor_core, "cp.async"),
        arch=90 if dtype == torch.float8_e4m3fn else 80,
    )


def _arithmetic(weights: Weights, wgmma: bool) -> Arithmetic:
    """mma.sync multiplies fp8 in 16 bits; sums by blocks leave the tensor cores every 128 products."""
    if not isinstance(weights, op.Scaled):
        return "fp32" if weights.dtype == torch.float32 else "bf16"
    if weights.values.dtype == torch.int8:
        return "int8"
    if not wgmma:
        return "bf16"
    return "fp8_exact" if weights.group else "fp8_fast"


def _tolerance(weights: Weights, out_dtype: torch.dtype, k: int, gated: bool, wgmma: bool) -> float:
    """The result is rounded; packed weights are, too, whose error a gate and what it multiplies both have."""
    if isinstance(weights, Packed):
        return rounding(*[out_dtype] * (3 if gated else 2), terms=k)
    tolerance = rounding(out_dtype, terms=k)
    if wgmma and isinstance(weights, op.Scaled) and weights.values.dtype == torch.float8_e4m3fn:
        tolerance += fp8_sum(weights.group or k) * (2 if gated else 1)
    return tolerance


def _arranged(ids: Tensor, experts: int, block_m: int, device: torch.device) -> op_route.Arrangement:
    """By the reference: on meta tensors nothing may run."""
    order = op_route.arrangement(ids.numel(), experts, block_m, device)
    sorted_pairs, blocks, counts = reference.arrange(ids, experts, block_m, len(order.expert_of_block))
    written = (sorted_pairs.to(device), blocks.to(device), counts.to(device))
    return op_route.Arrangement(*written, order.partial, block_m)


def _torch_grouped(x: Tensor, weights: Weights, ids: Tensor, gated: bool) -> dict[str, Callable[[], object]]:
    """torch's product over rows that are sorted by expert; it is spared the sorting."""
    by_blocks = isinstance(weights, op.Scaled) and weights.group
    if isinstance(weights, Packed) or by_blocks or x.dtype not in (torch.bfloat16, torch.float8_e4m3fn):
        return {}
    pairs = ids.flatten()
    order = pairs.sort(stable=True).indices // (len(pairs) // len(x))
    values = weights.values if isinstance(weights, op.Scaled) else weights
    ends = (pairs[:, None] == torch.arange(len(values), device=pairs.device)).sum(0).cumsum(0).int()
    ones = torch.ones(len(pairs), device=pairs.device)

    def product() -> Tensor:
        sorted_x, columns = x[order], values.transpose(1, 2)
        if isinstance(weights, Tensor):
            return torch._grouped_mm(sorted_x, columns, offs=ends)
        return torch._scaled_grouped_mm(
            *(sorted_x, columns, ones, weights.scales),
            offs=ends,
            out_dtype=torch.bfloat16,
            use_fast_accum=True,
        )

    def run() -> Tensor:
        y = product()
        if not gated:
            return y
        gate, up = y.chunk(2, -1)
        return F.silu(gate) * up

    return {"torch._grouped_mm" if isinstance(weights, Tensor) else "torch._scaled_grouped_mm": run}


def _drawn(model: Model, rows: int) -> Tensor:
    """Experts at random, as even as chance: ids [rows, top_k] int32 on the CPU."""
    scores = torch.rand(rows, model.experts, generator=torch.Generator().manual_seed(rows))
    return scores.topk(model.top_k).indices.int()
