"""What an operation is tried on: one list serves the compiler, the interpreter and the stopwatch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from slipway_kernels.cuda.compare import rounding

Size = Literal["small", "full"]
"""Full is what models do; small takes the interpreter well under a second."""

Arithmetic = Literal["bf16", "fp32", "int8", "fp8_fast", "fp8_exact"]
"""How products are multiplied and summed, which decides what the device can reach.

bf16       multiplied in 16 bits, fp16 included, and summed in fp32
fp8_fast   summed in the tensor cores throughout, which Hopper does in fewer bits than fp32
fp8_exact  added up in fp32, as `torch._scaled_mm` does without `use_fast_accum`
"""


@dataclass(frozen=True, slots=True)
class Case:
    """One call of an operation.

    run           ours; on meta tensors it only notes what it would launch
    expected      the reference's result, or None where `run` gives nothing to compare
    tolerance     largest `compare.row_error` that rounding explains; by default that of a bf16 result
    bytes         that the call must move, at least: those that it reads and those that it writes
    written       of these, those that it writes
    flops         that it must compute, at least
    arithmetic    how it computes them
    peers         the same by other libraries, by name: what the table shows beside ours
    instructions  that its kernel must contain on sm_90, as PTX spells them
    always        the same, on every architecture
    arch          smallest architecture that computes it
    """

    name: str
    run: Callable[[], Tensor]
    expected: Callable[[], Tensor] | None = None
    tolerance: float = rounding(torch.bfloat16)
    bytes: int = 0
    written: int = 0
    flops: int = 0
    arithmetic: Arithmetic = "bf16"
    peers: Mapping[str, Callable[[], object]] = field(default_factory=dict)
    instructions: tuple[str, ...] = ()
    always: tuple[str, ...] = ()
    arch: int = 80


Cases = Callable[[torch.device, Size], Iterator[Case]]
"""`cases(device, size)` of an operation's bench.py."""
