"""What this machine can do at most: memory bandwidth and matrix products. Prints JSON.

    python bench/limits.py [--threads 2]

Reads are over a buffer far larger than the caches; products are y[M, N] = x[M, K] · W[N, K]ᵀ in bf16 over a
ring of weights that no cache holds, by our packed kernel and by torch's `F.linear`.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable

import torch

from slipway_kernels.cpu import Packed, Threads, linear
from slipway_kernels.cpu.arrays import BF16

K, N, RING = 2048, 8192, 8


def median_seconds(call: Callable[[int], object], least: float = 0.3) -> float:
    """Median over calls that take `least` seconds together, after one that does not count."""
    call(0)
    times: list[float] = []
    while sum(times) < least or len(times) < 5:
        started = time.perf_counter()
        call(len(times))
        times.append(time.perf_counter() - started)
    return statistics.median(times)


def main() -> None:
    plain = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=plain)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    count = parser.parse_args().threads
    torch.set_num_threads(count)
    threads = Threads(count)
    large = torch.ones(1 << 28)  # 1 GiB
    read = large.nbytes / median_seconds(lambda _: large.sum()) / 1e9
    weights = [torch.randn(N, K).mul_(0.02).bfloat16() for _ in range(RING)]
    packed = []
    for weight in weights:
        packed.append(Packed(N, K, "bf16"))
        packed[-1].load_rows(weight.float().numpy())
    rows = []
    for m in (1, 4, 8, 16, 32, 64, 128, 256):
        x = torch.randn(m, K).bfloat16()
        own = x.float().numpy().astype(BF16)
        ours = median_seconds(lambda i, x=own: linear(x, packed[i % RING], threads=threads))
        theirs = median_seconds(lambda i, x=x: torch.nn.functional.linear(x, weights[i % RING]))
        rows.append(
            {
                "M": m,
                "GB_s": round(2 * N * K / ours / 1e9, 1),
                "GFLOP_s": round(2 * m * N * K / ours / 1e9, 1),
                "torch_GB_s": round(2 * N * K / theirs / 1e9, 1),
                "torch_GFLOP_s": round(2 * m * N * K / theirs / 1e9, 1),
            }
        )
    print(json.dumps({"threads": count, "read_GB_s": round(read, 1), "bf16": rows}, indent=1))


if __name__ == "__main__":
    main()
