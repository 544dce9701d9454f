"""Microseconds per row, one thread, next to torch's argmax, topk and sort of the same row.

python -m slipway_kernels.sampling.bench_cpu [LIBRARY]
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from slipway_kernels.build import LIBRARY
from slipway_kernels.sampling.op import Sampler
from slipway_kernels.sampling.reference import Floats, Sampling

VOCABS = (49_152, 128_256)
HISTORY = tuple(range(0, 8000, 8))
CASES = {
    "greedy": (Sampling(temperature=0), False),
    "greedy, 5 log-probabilities": (Sampling(temperature=0), True),
    "temperature 0.8, top-p 0.95, top-k 40": (
        Sampling(temperature=0.8, top_p=0.95, top_k=40),
        False,
    ),
    "top-k 2000": (Sampling(top_k=2000), False),
    "top-p 0.95": (Sampling(top_p=0.95), False),
    "min-p 0.05": (Sampling(min_p=0.05), False),
    "typical 0.9": (Sampling(typical_p=0.9), False),
    "temperature 1": (Sampling(), False),
    "temperature 1, penalties over 1000 tokens": (
        Sampling(repetition_penalty=1.1, presence_penalty=0.5),
        False,
    ),
}


def microseconds(run: Callable[[], object], repeats: int = 200) -> float:
    """Median of `repeats` runs."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return statistics.median(times) * 1e6


def rows(vocab: int) -> dict[str, Floats]:
    """A row as a language model gives it, and the worst case."""
    noise = np.random.default_rng(0).standard_normal(vocab).astype(np.float32)
    peaked = noise * np.float32(2.5)
    peaked[noise.argsort()[-40:]] += np.linspace(0, 8, 40, dtype=np.float32)
    return {"peaked": peaked, "flat": noise * np.float32(0.01)}


def measure(library: Path, vocab: int, kind: str, logits: Floats) -> None:
    sampler = Sampler(vocab, library)
    tensor = torch.from_numpy(logits)
    print(f"\n{kind} row of {vocab} logits")
    for name, (sampling, report) in CASES.items():
        call = sampler.bind(sampling, logits, HISTORY, 10, want_logprob=report, num_top=5 * report)
        print(f"{microseconds(call):10.1f} µs  {name}")
    for name, run in {
        "torch.argmax": lambda: torch.argmax(tensor),
        "torch.topk 40": lambda: torch.topk(tensor, 40),
        "torch.sort": lambda: torch.sort(tensor),
    }.items():
        print(f"{microseconds(run, 30):10.1f} µs  {name}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("library", type=Path, nargs="?", default=LIBRARY)
    library = parser.parse_args().library
    torch.set_num_threads(1)
    for vocab in VOCABS:
        for kind, logits in rows(vocab).items():
            measure(library, vocab, kind, logits)


if __name__ == "__main__":
    main()
