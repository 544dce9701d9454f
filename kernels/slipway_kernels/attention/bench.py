"""Attention's cases: decode, prompts with and without computed context, steps of both."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from slipway_kernels.attention import reference
from slipway_kernels.attention.op import contiguous_attention, paged_attention, workspace
from slipway_kernels.cuda.cases import Case, Size
from slipway_kernels.cuda.compare import rounding

BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
NAMES = {BF16: "bf16", FP16: "fp16", FP32: "fp32", E4M3: "e4m3", E5M2: "e5m2"}
PEERS = {"torch flash": SDPBackend.FLASH_ATTENTION, "torch cudnn": SDPBackend.CUDNN_ATTENTION}


@dataclass(frozen=True, slots=True)
class Step:
    """Requests by (queries, positions after the step), those of up to `decode_queries` first."""

    name: str
    requests: tuple[tuple[int, int], ...]
    heads: int = 32
    kv_heads: int = 8
    head_dim: int = 128
    dtype: torch.dtype = BF16
    stored: torch.dtype = BF16
    block: int = 16
    window: int = 0
    softcap: float = 0.0
    slopes: bool = False
    sinks: bool = False
    paged: bool = True
    causal: bool = True
    decode_queries: int = 1
    first: int = 0

    @property
    def num_decodes(self) -> int:
        return sum(queries <= self.decode_queries for queries, _ in self.requests) if self.paged else 0

    @property
    def title(self) -> str:
        heads = f"{self.heads}/{self.kv_heads}x{self.head_dim}"
        extras = [name for name in ("window", "first", "softcap", "slopes", "sinks") if getattr(self, name)]
        extras += [] if self.causal else ["both ways"]
        return " ".join((self.name, heads, NAMES[self.stored], *extras))

    @property
    def pairs(self) -> int:
        """Keys that queries see, all together."""
        return sum(
            min(position + 1, self.window or position + 1)
            + (0 if self.causal else min(length - 1 - position, self.window - 1 if self.window else length))
            for queries, length in self.requests
            for position in range(length - queries, length)
        )


def decode(batch: int, length: int, **changes: Any) -> Step:
    return Step(f"decode {batch} after {length}", ((1, length),) * batch, **changes)


def chunk(queries: int, length: int, name: str = "", batch: int = 1, **changes: Any) -> Step:
    name = name or (f"prompt {queries}" if queries == length else f"chunk {queries} of {length}")
    return Step(name, ((queries, length),) * batch, **changes)


def encode(length: int, batch: int, heads: int = 12, head_dim: int = 64, **changes: Any) -> Step:
    """Texts whose tokens see each other both ways."""
    requests = ((length, length),) * batch
    name = f"text {length} by {batch}"
    return Step(name, requests, heads, heads, head_dim, paged=False, causal=False, **changes)


def verify(drafts: int, batch: int, length: int, **changes: Any) -> Step:
    """The next token and its drafts; every second request has one less."""
    requests = tuple((1 + drafts - number % 2, length) for number in range(batch))
    return Step(f"{drafts} drafts, {batch} after {length}", requests, decode_queries=1 + drafts, **changes)


MIXED = ((1, 4096),) * 32 + ((1, 1),) * 4 + ((2048, 2048), (512, 8704))

FULL = [
    *(decode(batch, length) for batch in (1, 16, 64, 256) for length in (1024, 4096, 16384)),
    *(decode(batch, length, stored=E4M3) for batch in (1, 16, 64, 256) for length in (1024, 4096, 16384)),
    decode(16, 4096, stored=E5M2),
    decode(64, 4096, heads=28, kv_heads=4, dtype=FP16, stored=FP16),
    decode(64, 4096, heads=24, kv_heads=8, head_dim=64, slopes=True, sinks=True),
    decode(64, 4096, heads=16, kv_heads=8, head_dim=256, window=1024, softcap=50.0, block=32),
    decode(64, 4096, heads=16, kv_heads=8, head_dim=256, stored=E4M3),
    decode(4, 4096, heads=48, kv_heads=1, head_dim=80, dtype=FP32, stored=FP32),
    decode(4, 4096, heads=8, kv_heads=8, head_dim=192, dtype=FP32, stored=FP32),
    *(chunk(queries, queries, paged=paged) for queries in (2048, 8192) for paged in (True, False)),
    *(chunk(512, 8704, stored=stored) for stored in (BF16, E4M3)),
    Step("mixed", MIXED),
    *(verify(4, batch, length) for batch, length in ((1, 16384), (16, 4096), (64, 4096))),
    verify(4, 16, 4096, stored=E4M3),
    *(verify(5, 16, 4096, stored=stored, first=1) for stored in (BF16, E4M3)),
    *(chunk(512, 8704, stored=stored, first=1) for stored in (BF16, E4M3)),
    verify(3, 16, 4096, heads=24, kv_heads=8, head_dim=64, slopes=True, sinks=True),
    verify(2, 16, 4096, heads=16, kv_heads=8, head_dim=256, window=1024, softcap=50.0, block=32),
    verify(2, 4, 4096, heads=48, kv_heads=1, head_dim=80, dtype=FP32, stored=FP32),
    chunk(4, 4096, batch=16),
    chunk(16, 2048, batch=16),
    *(chunk(2048, 2048, heads=32, head_dim=64, paged=paged) for paged in (True, False)),
    chunk(2048, 4096, heads=24, head_dim=64, dtype=FP16, stored=FP16, slopes=True, sinks=True),
    chunk(2048, 2048, heads=24, kv_heads=24, head_dim=64, stored=E4M3),
    chunk(4096, 4096, heads=16, head_dim=256, window=1024, softcap=50.0, block=32),
    *(chunk(2048, 2048, heads=16, head_dim=256, paged=paged) for paged in (True, False)),
    chunk(512, 4096, heads=16, head_dim=256, stored=E4M3),
    chunk(2048, 2048, heads=32, kv_heads=32, head_dim=96),
    chunk(256, 1024, heads=8, kv_heads=4, head_dim=160, dtype=FP32, stored=FP32),
    encode(128, 64),
    encode(512, 8, dtype=FP16, stored=FP16),
    encode(8192, 1, window=65),
    encode(256, 32, head_dim=32, dtype=FP32, stored=FP32),
]
SMALL = [
    decode(3, 40, heads=4, kv_heads=2, head_dim=16, block=8),
    Step("mixed", ((1, 30), (9, 20), (5, 5)), heads=4, kv_heads=2, head_dim=16, block=8, stored=E4M3),
    verify(2, 2, 40, heads=4, kv_heads=2, head_dim=16, block=8),
    verify(2, 2, 40, heads=4, kv_heads=2, head_dim=16, block=8, first=1),
    chunk(33, 33, heads=4, kv_heads=2, head_dim=16, first=1),
    chunk(33, 33, heads=4, kv_heads=2, head_dim=16, paged=False),
    encode(33, 2, heads=4, head_dim=16),
    encode(70, 1, heads=4, head_dim=16, window=9),
]


def cases(device: torch.device, size: Size) -> Iterator[Case]:
    for step in FULL if size == "full" else SMALL:
        yield _paged(device, step) if step.paged else _contiguous(device, step)


def _case(step: Step, run: Callable[[], Tensor], expected: Callable[[], Tensor], **more: Any) -> Case:
    read = sum(
        min(length, step.window + queries if step.window else length) for queries, length in step.requests
    )
    rows = sum(queries for queries, _ in step.requests)
    written = rows * step.heads * step.head_dim * step.dtype.itemsize
    chunks = not step.num_decodes
    chunks &= min(queries for queries, _ in step.requests) * step.heads // step.kv_heads > 16
    wanted = ("wgmma.mma_async", *(() if step.paged else ("cp.async.bulk",)))
    return Case(
        step.title + ("" if step.paged else " contiguous"),
        run,
        expected,
        tolerance=_tolerance(step),
        bytes=2 * read * step.kv_heads * step.head_dim * step.stored.itemsize + 2 * written,
        written=written,
        flops=4 * step.pairs * step.heads * step.head_dim,
        arithmetic="fp32" if step.dtype == FP32 else "bf16",
        instructions=wanted if chunks and step.stored != FP32 else (),
        **more,
    )


def _tolerance(step: Step) -> float:
    """Weights are rounded to the type of their product with values, and the result to its own."""
    product = FP16 if step.stored.itemsize == 1 else step.stored
    return rounding(product, step.dtype, terms=max(length for _, length in step.requests))


def _paged(device: torch.device, step: Step) -> Case:
    count, longest = len(step.requests), max(length for _, length in step.requests)
    blocks = -(-longest // step.block)
    pool = _random(device, step.stored, count * blocks, 2, step.kv_heads, step.block, step.head_dim)
    table = torch.randperm(count * blocks, device=device).view(count, blocks).int()
    slots = torch.arange(count, device=device, dtype=torch.int32)
    query_start = _starts(device, step)
    lengths = torch.tensor([length for _, length in step.requests], dtype=torch.int32, device=device)
    q = _random(device, step.dtype, sum(n for n, _ in step.requests), step.heads, step.head_dim)
    out = torch.empty_like(q)
    shape = step.heads, step.kv_heads, step.head_dim
    space = workspace(count, *shape, longest, device, queries=step.decode_queries)
    features = _features(device, step)
    inputs = q, pool[:, 0], pool[:, 1], table, slots, query_start, lengths

    def run() -> Tensor:
        return paged_attention(
            *inputs,
            out,
            **features,
            num_decodes=step.num_decodes,
            decode_queries=step.decode_queries,
            max_query=max(queries for queries, _ in step.requests),
            max_length=longest,
            workspace=space,
        )

    def expected() -> Tensor:
        return reference.paged_attention(*inputs, **features)

    def rows() -> tuple[Tensor, Tensor]:
        parts = (pool[:, 0], pool[:, 1])
        k, v = ([reference.gathered(part, row, longest).to(q.dtype) for row in table] for part in parts)
        return torch.stack(k), torch.stack(v)

    return _case(step, run, expected, peers=_peers(step, q, rows))


def _contiguous(device: torch.device, step: Step) -> Case:
    tokens, group = sum(queries for queries, _ in step.requests), step.heads // step.kv_heads
    qkv = _random(device, step.dtype, tokens, step.heads + 2 * step.kv_heads, step.head_dim)
    q, k, v = torch.split(qkv, [group * step.kv_heads, step.kv_heads, step.kv_heads], 1)
    out = torch.empty(q.shape, dtype=q.dtype, device=device)
    query_start = _starts(device, step)
    features = {**_features(device, step), "causal": step.causal}

    def run() -> Tensor:
        longest = max(queries for queries, _ in step.requests)
        return contiguous_attention(
            *(q, k, v, query_start, out),
            **features,
            max_query=longest,
        )

    def expected() -> Tensor:
        counts = [queries for queries, _ in step.requests]
        parts = [torch.split(part, counts) for part in (q, k, v)]
        return torch.cat([reference.attention(*rows, **features) for rows in zip(*parts, strict=True)])

    def alike() -> tuple[Tensor, Tensor]:
        """[requests, tokens, kv_heads, head_dim]  of requests of one length"""
        shape = len(step.requests), -1, *k.shape[1:]
        return k.view(shape), v.view(shape)

    return _case(step, run, expected, peers=_peers(step, q, alike))


def _random(device: torch.device, dtype: torch.dtype, *shape: int) -> Tensor:
    if dtype.itemsize > 1:
        return torch.randn(shape, device=device, dtype=dtype)
    return torch.empty(shape, device=device, dtype=torch.uint8).random_(0, 64).view(dtype)


def _starts(device: torch.device, step: Step) -> Tensor:
    counts = torch.tensor([0, *(queries for queries, _ in step.requests)], device=device)
    return counts.cumsum(0).int()


def _features(device: torch.device, step: Step) -> dict[str, Any]:
    def numbers(wanted: bool) -> Tensor | None:
        return torch.rand(step.heads, device=device) if wanted else None

    return {
        "scale": step.head_dim**-0.5,
        "window": step.window,
        "softcap": step.softcap,
        "slopes": numbers(step.slopes),
        "sinks": numbers(step.sinks),
        **({"first": step.first} if step.paged else {}),
    }


def _peers(
    step: Step, q: Tensor, rows: Callable[[], tuple[Tensor, Tensor]]
) -> dict[str, Callable[[], object]]:
    """Torch's attention on keys that lie together, where it can compute the same: no features, one length."""
    plain = not (step.window or step.softcap or step.slopes or step.sinks) and step.dtype != FP32
    queries, length = step.requests[0]
    alike = set(step.requests) == {(queries, length)} and queries in (1, length)
    if q.device.type != "cuda" or not plain or not alike:
        return {}
    k, v = (part.transpose(1, 2) for part in rows())
    query = q.view(len(step.requests), queries, step.heads, step.head_dim).transpose(1, 2)

    def peer(backend: SDPBackend) -> Callable[[], object]:
        def call() -> object:
            with sdpa_kernel(backend):
                return torch.nn.functional.scaled_dot_product_attention(
                    query, k, v, is_causal=step.causal and queries > 1, enable_gqa=True
                )

        return call

    return {name: peer(backend) for name, backend in PEERS.items()}
