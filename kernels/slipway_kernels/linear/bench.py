"""Rates of the packed product beside torch's: `python -m slipway_kernels.linear.bench [threads]`.

Weights are many times larger than the caches and taken in turn, as the layers of a model are.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence

import torch

from slipway_kernels.cpu import Packed, Threads, isa, linear

N, K, COPIES = 4096, 2048, 12
ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)


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
    multiply: Callable[..., object], x: torch.Tensor, weights: Sequence[object], threads: Threads
) -> Callable[[int], object]:
    return lambda copy: multiply(x, weights[copy], threads=threads)


def torch_linear(x: torch.Tensor, weight: torch.Tensor, threads: Threads) -> torch.Tensor:
    return torch.nn.functional.linear(x, weight)


def main(threads: int) -> None:
    torch.set_num_threads(threads)
    pool = Threads(threads)
    print(f"{isa()}, {threads} threads, [{N}, {K}]")
    flat = torch.ones(COPIES, N * K // 2)
    seconds = best_seconds(lambda copy: flat[copy].sum(), 5)
    print(f"plain read (torch sum) {N * K * 2 / seconds / 1e9:6.1f} GB/s")
    for dtype, element in (("bf16", torch.bfloat16), ("fp32", torch.float32)):
        weights = [torch.randn(N, K).to(element) for _ in range(COPIES)]
        packed = [Packed(N, K, dtype) for _ in range(COPIES)]
        for source, target in zip(weights, packed, strict=True):
            target.load_rows(source)
        for rows in ROWS:
            rounds = 8 if rows <= 32 else 3
            ours = best_seconds(product(linear, torch.randn(rows, K).to(element), packed, pool), rounds)
            theirs = best_seconds(
                product(torch_linear, torch.randn(rows, K).to(element), weights, pool), rounds
            )
            size, work = weights[0].nbytes, 2 * rows * N * K
            print(
                f"{dtype} M={rows:3}  {size / ours / 1e9:6.1f} GB/s {work / ours / 1e9:6.0f} GFLOP/s   "
                f"torch {size / theirs / 1e9:6.1f} GB/s {work / theirs / 1e9:6.0f} GFLOP/s"
            )


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 1)
