"""Rates of the packed products beside torch's: `python -m slipway_kernels.linear.bench [threads]`.

Weights are many times larger than the caches and taken in turn, as the layers of a model are. GB/s is what is
read of them in their own form; GFLOP/s counts a product and a sum for each weight and row, whatever the form.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch

from slipway_kernels.cpu import Packed, PackedCodes, Threads, Weight, isa, linear
from slipway_kernels.cpu.arrays import BF16, FP32, DType

N, K, COPIES = 4096, 2048, 12
ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
FORMS = {
    "int4 of 32 with minimums (Q4_1)": {"bits": 4, "group": 32, "minimums": True},
    "int4 of 32 (Q4_0)": {"bits": 4, "group": 32},
    "int4 of 128 with minimums (AWQ, GPTQ)": {"bits": 4, "group": 128, "minimums": True},
    "int8 of 32 (Q8_0)": {"bits": 8, "group": 32},
    "int8 of rows": {"bits": 8, "group": K},
}
"""Arguments of `PackedCodes`."""


def clock() -> float:
    """Seconds of the calling thread's own time: a neighbour on the processor does not count."""
    return time.thread_time()


def best_seconds(call: Callable[[int], object], rounds: int) -> float:
    """Of one call, when all copies are used in turn; the best of `rounds`."""
    best = float("inf")
    for _ in range(rounds):
        start = clock()
        for copy in range(COPIES):
            call(copy)
        best = min(best, (clock() - start) / COPIES)
    return best


def product(
    multiply: Callable[..., object], x: object, weights: Sequence[object], threads: Threads
) -> Callable[[int], object]:
    return lambda copy: multiply(x, weights[copy], threads=threads)


def torch_linear(x: torch.Tensor, weight: torch.Tensor, threads: Threads) -> torch.Tensor:
    return torch.nn.functional.linear(x, weight)


def codes(bits: int, group: int, minimums: bool = False) -> PackedCodes:
    """Random integers; rates do not depend on their values."""
    weight = PackedCodes(N, K, bits, group, minimums=minimums)
    drawn = np.random.default_rng(0).integers(0, 16, (N, K), np.uint8 if bits == 4 else np.int8)
    scales = np.full((N, K // group), 0.01, np.float32)
    weight.load_rows(drawn, scales, scales if minimums else None)
    return weight


def rates(weights: Sequence[Weight], element: DType, pool: Threads) -> Iterator[tuple[int, str]]:
    """For each number of rows: GB/s and GFLOP/s."""
    for rows in ROWS:
        rounds = 8 if rows <= 32 else 3
        x = np.random.default_rng(0).standard_normal((rows, K), np.float32).astype(element)
        seconds = best_seconds(product(linear, x, weights, pool), rounds)
        yield rows, rate(weights[0].nbytes, rows, seconds)


def rate(size: int, rows: int, seconds: float) -> str:
    return f"{size / seconds / 1e9:6.1f} GB/s {2 * rows * N * K / seconds / 1e9:6.0f} GFLOP/s"


def main(threads: int) -> None:
    torch.set_num_threads(threads)
    pool = Threads(threads)
    print(f"{isa()}, {threads} threads, [{N}, {K}]")
    flat = torch.ones(COPIES, N * K // 2)
    seconds = best_seconds(lambda copy: flat[copy].sum(), 5)
    print(f"plain read (torch sum) {N * K * 2 / seconds / 1e9:6.1f} GB/s")
    for dtype, element, own in (("bf16", torch.bfloat16, BF16), ("fp32", torch.float32, FP32)):
        matrices = [torch.randn(N, K).to(element) for _ in range(COPIES)]
        packed = [Packed(N, K, dtype) for _ in range(COPIES)]
        for source, target in zip(matrices, packed, strict=True):
            target.load_rows(source.float().numpy())
        for rows, ours in rates(packed, own, pool):
            x = torch.randn(rows, K).to(element)
            theirs = best_seconds(product(torch_linear, x, matrices, pool), 8 if rows <= 32 else 3)
            print(f"{dtype} M={rows:3}  {ours}   torch {rate(matrices[0].nbytes, rows, theirs)}")
    for name, form in FORMS.items():
        integers = [codes(**form) for _ in range(COPIES)]  # type: ignore[arg-type]
        for rows, ours in rates(integers, BF16, pool):
            print(f"{name} M={rows:3}  {ours}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 1)
