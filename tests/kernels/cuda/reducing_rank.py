"""One rank of an all-reduce: `reducing_rank.py FOLDER RANK SIZE ROUNDS`, a process of its own.

Memory that the ranks map stands in for what devices map of each other's: the interpreter takes addresses for
pointers, as a device does, and ranks meet by the kernel's own flags alone.
"""

from __future__ import annotations

import os
import random
import sys
from pathlib import Path

os.environ["TRITON_INTERPRET"] = "1"

import torch
from torch import Tensor

from slipway_kernels.collective import Peers, all_reduce, memory_bytes, reference
from slipway_kernels.cuda.interpret import repair

ROOM = 1 << 20
DTYPES = (torch.bfloat16, torch.float16, torch.float32)


def message(seed: int, rank: int, count: int, dtype: torch.dtype) -> Tensor:
    """Numbers of all sizes: sums in another order are other sums."""
    drawn = torch.Generator().manual_seed(seed * 16 + rank)
    numbers = torch.randn(count, generator=drawn) * torch.rand(count, generator=drawn).mul(4).exp()
    return numbers.to(dtype)


def mapped(folder: Path, rank: int, size: int) -> Tensor:
    place = folder / f"rank{rank}"
    return torch.from_file(str(place), shared=True, size=memory_bytes(size, ROOM), dtype=torch.uint8)


def main(folder: Path, rank: int, size: int, rounds: int) -> None:
    repair()
    memory = [mapped(folder, one, size) for one in range(size)]
    peers = Peers.of(rank, [one.data_ptr() for one in memory], torch.device("cpu"), ROOM)
    alike = random.Random(size)
    for number in range(rounds):
        count = alike.choice((1, 7, 4096, 4097, 12_289, 20_000, alike.randrange(1, 40_000)))
        dtype, shots, in_place = alike.choice(DTYPES), alike.choice((0, 1, 2)), alike.random() < 0.5
        parts = [message(number, one, count, dtype) for one in range(size)]
        expected = reference.all_reduce(parts)
        x = parts[rank].clone()
        found = all_reduce(x, peers, x if in_place else torch.empty_like(x), shots=shots)
        if not torch.equal(found, expected):
            where = (found != expected).nonzero()[:, 0].tolist()
            raise SystemExit(
                f"rank {rank}, round {number}: {count} of {dtype} in {shots} shots differ at {where[:9]}"
            )
        if not in_place and not torch.equal(x, parts[rank]):
            raise SystemExit(f"rank {rank}, round {number}: the message itself has changed")
    if not (peers.rounds == rounds).all():  # also those of programs that small messages do not launch
        raise SystemExit(f"rank {rank} has counted {peers.rounds.tolist()} rounds of {rounds}")
    print(rounds, "rounds")


if __name__ == "__main__":
    main(Path(sys.argv[1]), *map(int, sys.argv[2:5]))
