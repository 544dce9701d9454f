"""What an H200 is expected to reach, so that a table shows at a glance where it does not."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

BASE = {"ceiling_read_TB_s": 4.4, "ceiling_bf16_TFLOP_s": 799.0, "ceiling_fp8_exact_TFLOP_s": 1478.0}
"""What an H200 reached, by the field of the row that has it."""
BANDWIDTH, BF16, FP8_RATE = BASE
Row = dict[str, object]
"""One line of a run: `stage`, what was measured, and the figures."""

READ_FLUSH = "read-flush"
"""What `timed` says in the rows of kernels that are compared: `slipway_kernels.cuda.measure`, in a graph."""

SUMS_ALIKE = {"bf16": "torch exact", "fp8_exact": "torch exact", "fp8_fast": "torch fast"}
"""The peer that sums fp8 products as ours does, by our arithmetic: in fp32, or in the tensor cores alone."""

PEERS = (
    *("torch", "torch fast", "torch exact", "torch int8 sums", "torch bf16", "torch int4"),
    *("torch flash", "torch cudnn", "torch._grouped_mm", "torch._scaled_grouped_mm"),
    *("torch.argmax", "torch.multinomial", "torch.sort", "torch.topk", "torch.log_softmax"),
)
"""What kernels are timed beside. A row has `PEER us`."""


@dataclass(frozen=True, slots=True)
class Target:
    """A bound on one figure of some rows.

    fields  what a row must have, each by a pattern for all of it
    figure  of the row, by the rows before it; None where it was not measured
    least, most  bounds of the figure on an H200
    limited  by which of BASE's ceilings; the bounds are scaled by what another device reaches of it
    """

    name: str
    fields: Mapping[str, str]
    figure: Callable[[Row, Sequence[Row]], float | None]
    least: float | None = None
    most: float | None = None
    limited: str | None = None

    def on(self, before: Sequence[Row]) -> Target:
        """The target on the device of these rows: as it is on an H200 and where no ceiling is known."""
        if self.limited is None or any("H200" in str(row.get("device")) for row in before):
            return self
        reached = [found for row in before if (found := _number(row, self.limited))]
        if not reached:
            return self
        ratio = reached[-1] / BASE[self.limited]
        least = None if self.least is None else self.least * ratio
        return replace(self, least=least, most=None if self.most is None else self.most / ratio)

    def is_of(self, row: Row) -> bool:
        return all(re.fullmatch(pattern, str(row.get(name))) for name, pattern in self.fields.items())

    def met(self, row: Row, before: Sequence[Row]) -> bool | None:
        found = self.figure(row, before)
        if found is None:
            return None
        return (self.least is None or found >= self.least) and (self.most is None or found <= self.most)

    @property
    def text(self) -> str:
        return f"{self.name} ≥ {self.least:g}" if self.least is not None else f"{self.name} ≤ {self.most:g}"


def compared(row: Row, before: Sequence[Row]) -> Row:
    """`target` and `met`, for a row that has a target."""
    for target in TARGETS:
        if target.is_of(row):
            target = target.on(before)
            return {"target": target.text, "met": target.met(row, before)}
    return {}


def _number(row: Row, name: str) -> float | None:
    value = row.get(name)
    return float(value) if isinstance(value, int | float) else None


def _own(name: str) -> Callable[[Row, Sequence[Row]], float | None]:
    return lambda row, before: _number(row, name)


def _against_torch(row: Row, before: Sequence[Row]) -> float | None:
    """The speed as a multiple of that of the peer that sums alike, where both were timed alike."""
    peer = SUMS_ALIKE.get(str(row.get("arithmetic")))
    if peer is None or f"{peer} timed" in row:
        return None
    ours, theirs = _number(row, "us"), _number(row, f"{peer} us")
    return theirs / ours if ours and theirs else None


def _against_bf16(row: Row, before: Sequence[Row]) -> float | None:
    """The rate as a multiple of the latest that the same model had in bf16."""
    wanted = {"stage": "engine", "model": "llama-8b", "what": "decode", "batch": row.get("batch")}
    base = [other for other in before if all(other.get(name) == value for name, value in wanted.items())]
    ours, theirs = _number(row, "tok_s"), _number(base[-1], "tok_s") if base else None
    return ours / theirs if ours and theirs else None


def _kernel(op: str, case: str) -> dict[str, str]:
    return {"stage": "kernels", "op": op, "case": case, "timed": READ_FLUSH}


def _engine(model: str, what: str, **more: str) -> dict[str, str]:
    return {"stage": "engine", "model": model, "what": what, **more}


def _http(what: str, **more: str) -> dict[str, str]:
    return {"stage": "http", "model": "llama-8b", "what": what, **more}


FP8 = "llama-8b-fp8"
AWQ = "llama-8b-awq"
TARGETS = (
    Target(
        "share of the bandwidth",
        _kernel("attention", r"decode (16|64|256) after (4096|16384) 32/8x128 (bf16|e4m3)"),
        _own("of ceiling"),
        0.8,
    ),
    Target(
        "TFLOP/s",
        _kernel("attention", r"prompt 8192 32/8x128 bf16( contiguous)?"),
        _own("TFLOP/s"),
        450,
    ),
    Target(
        "share of the bandwidth",
        _kernel("linear_w4a16", r"(1|8|16)x(4096x28672|14336x4096), 4 bits by 128, bfloat16"),
        _own("of ceiling"),
        0.7,
    ),
    Target(
        "speed of torch._scaled_mm that sums alike",
        _kernel("linear_w8a8", r"fp8 \d+x\d+x\d+"),
        _against_torch,
        0.8,
    ),
    Target("tok/s", _engine("llama-8b", "decode", batch="1"), _own("tok_s"), 225, limited=BANDWIDTH),
    Target("tok/s", _engine("llama-8b", "prefill"), _own("tok_s"), 42_000, limited=BF16),
    Target("tok/s", _engine(FP8, "prefill"), _own("tok_s"), 60_000, limited=FP8_RATE),
    Target("tok/s", _engine("llama-8b", "1000/1000"), _own("tok_s"), 11_000, limited=BANDWIDTH),
    Target("tok/s", _engine(FP8, "1000/1000"), _own("tok_s"), 15_500, limited=BANDWIDTH),
    Target("ms", _engine(FP8, "first token", input="512"), _own("ttft_ms"), most=20, limited=FP8_RATE),
    Target("rate of bf16", _engine(FP8, "decode", batch="1"), _against_bf16, 1.7),
    Target("rate of bf16", _engine(AWQ, "decode", batch="1"), _against_bf16, 1.6),
    Target("seconds", _http("ready"), _own("seconds"), most=10),
    Target("seconds", _http("first request", cache="empty"), _own("ttft_s p50"), most=0.06, limited=BF16),
    Target("seconds", _http("one stream"), _own("ttft_s p50"), most=0.02, limited=BF16),
    Target(
        "seconds between tokens",
        _http("10 requests a second"),
        _own("itl_s p99"),
        most=0.064,
        limited=BANDWIDTH,
    ),
)
