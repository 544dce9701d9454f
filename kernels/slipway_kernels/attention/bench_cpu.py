"""Rates on a CPU beside torch's on gathered keys: `python -m slipway_kernels.attention.bench_cpu`."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import torch

from slipway_kernels.cpu import ExternalProgram, PageMemory, Slots, isa, page_bytes
from slipway_kernels.cpu.arrays import BF16, Array

HEADS, KV_HEADS, HEAD_DIM, LENGTH, BLOCK = 9, 3, 64, 4096, 16


def best_seconds(call: Callable[[], object], rounds: int) -> float:
    """Of the calling thread's own time, the best of `rounds`."""
    best = float("inf")
    for _ in range(rounds):
        start = time.thread_time()
        call()
        best = min(best, time.thread_time() - start)
    return best


def main() -> None:
    torch.set_num_threads(1)
    blocks = LENGTH // BLOCK
    slots = Slots(1, LENGTH, 1, blocks)
    pool = PageMemory(blocks, page_bytes(1, KV_HEADS, HEAD_DIM, BLOCK, "bf16"))
    slots.block_table[0, 0] = np.random.default_rng(0).permutation(blocks)
    slots.num_tokens[0] = slots.prompt_len[0] = LENGTH
    program = ExternalProgram(slots, LENGTH, "bf16", 1, 8, 1, pool, BLOCK)
    drawn = np.random.default_rng(1)
    keys, values = drawn.standard_normal((2, LENGTH, KV_HEADS * HEAD_DIM), np.float32).astype(BF16)
    k, v = (torch.from_numpy(part.astype(np.float32)).bfloat16() for part in (keys, values))
    program.prepare(np.array([0]), np.array([LENGTH]))
    program.store_kv((0, 0), keys, values, KV_HEADS, HEAD_DIM)
    print(f"{isa()}, 1 thread, {HEADS} heads over {KV_HEADS} of {HEAD_DIM}, bf16")
    for rows, before in ((1, 511), (1, 4095), (256, 0), (512, 0), (256, 3840)):
        slots.num_computed[0] = before
        program.prepare(np.array([0]), np.array([rows]))
        queries = drawn.standard_normal((rows, HEADS * HEAD_DIM), np.float32).astype(BF16)
        q = torch.from_numpy(queries.astype(np.float32)).bfloat16()

        def ours(q: Array = queries) -> Array:
            return program.attention((0, 0), q, HEADS, KV_HEADS, HEAD_DIM, 0.125)

        shape = (before + rows, KV_HEADS, HEAD_DIM)
        heads = [part[: before + rows].view(shape).transpose(0, 1)[None] for part in (k, v)]
        mask = torch.ones(rows, before + rows, dtype=torch.bool).tril(before)

        def theirs(q: torch.Tensor = q, kv: list[torch.Tensor] = heads, mask: torch.Tensor = mask) -> object:
            query = q.view(-1, HEADS, HEAD_DIM).transpose(0, 1)[None]
            return torch.nn.functional.scaled_dot_product_attention(
                query, kv[0], kv[1], mask, enable_gqa=True
            )

        seconds, reference = best_seconds(ours, 20), best_seconds(theirs, 20)
        work = 4 * HEADS * HEAD_DIM * sum(range(before + 1, before + rows + 1))
        size = 4 * KV_HEADS * HEAD_DIM * (before + rows)
        print(
            f"{rows:3} rows after {before:4}: {seconds * 1e6:8.0f} µs {size / seconds / 1e9:6.1f} GB/s "
            f"{work / seconds / 1e9:6.0f} GFLOP/s   torch {reference * 1e6:8.0f} µs"
        )


if __name__ == "__main__":
    main()
