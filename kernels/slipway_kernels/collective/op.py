"""An all-reduce between devices that read each other's memory, for messages that NCCL is slow with."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from slipway_kernels.collective.kernel import one_shot_kernel, two_shot_kernel
from slipway_kernels.cuda.launch import arch_of, launch
from slipway_kernels.cuda.prepared import prepared
from slipway_kernels.cuda.tiles import Tile, pick

PROGRAMS = 32
"""Of one launch, at most: all of them run at once, whatever else the device does. A power of two."""
SIZES = (2, 4, 6, 8)
"""Ranks that an all-reduce is compiled for."""
ROOM = 8 << 20
"""Bytes of the largest message: beyond, NCCL's rings and trees are as fast."""
_ALIGNED = 16

# A vector of bf16 a thread; few programs, since each of them waits for its peers.
TILES = (
    Tile(
        80,
        {"WIDTH": 4096, "PROGRAMS": PROGRAMS},
        num_warps=16,
        spills="an address or two of 8 bytes, outside of the loops over the message",
    ),
)


@dataclass(frozen=True, slots=True)
class Peers:
    """Ranks whose memory this one has mapped, `memory_bytes` of each, all zeros before the first round.

    addresses  [size] int64, where each rank's memory begins, its own among them
    rounds     [PROGRAMS] int64, zeros at first; of this rank alone
    room       bytes of the largest message
    Every rank makes the same calls with messages of the same size, on one stream.
    """

    rank: int
    addresses: Tensor
    rounds: Tensor
    room: int = ROOM

    @classmethod
    def of(cls, rank: int, addresses: list[int], device: torch.device, room: int = ROOM) -> Peers:
        return cls(
            rank,
            torch.tensor(addresses, dtype=torch.int64, device=device),
            torch.zeros(PROGRAMS, dtype=torch.int64, device=device),
            room,
        )

    @property
    def size(self) -> int:
        return len(self.addresses)


def memory_bytes(size: int, room: int = ROOM) -> int:
    """Of each of so many ranks."""
    return 2 * PROGRAMS * size * 8 + 2 * room


def takes(x: Tensor, peers: Peers) -> bool:
    """Whether `all_reduce` adds x up: NCCL does what it does not."""
    return (
        x.dtype in (torch.bfloat16, torch.float16, torch.float32)
        and x.is_contiguous()
        and 0 < x.nbytes <= peers.room
        and x.data_ptr() % _ALIGNED == 0
    )


def two_shots(nbytes: int, size: int) -> bool:
    """Whether so large a message goes over the links in parts: two ranks send as much either way."""
    return size > 2 and nbytes > (512 << 10 if size <= 4 else 256 << 10)


@prepared
def all_reduce(x: Tensor, peers: Peers, out: Tensor, *, shots: int = 0) -> Tensor:
    """out = x₀ + x₁ + …, each rank's x: in fp32 and in the order of ranks, rounded once.

    x, out  of one shape and type, bf16, fp16 or fp32, contiguous; out may be x
    shots   1: every rank reads all of every other's; 2: its part, then sums; 0: by size
    Returns out. Waits, on the device, for all ranks to come with theirs. Raises ValueError for an x that does
    not fit, and for a number of ranks that it is not compiled for.
    """
    if peers.size not in SIZES:
        fit = ", ".join(map(str, SIZES))
        raise ValueError(f"{peers.size} ranks add up by NCCL: this kernel is for {fit}.")
    if not takes(x, peers) or out.shape != x.shape or out.dtype != x.dtype or not out.is_contiguous():
        raise ValueError(
            f"x is {list(x.shape)} {x.dtype} by strides of {x.stride()}, out {list(out.shape)} {out.dtype}: "
            f"an all-reduce takes two contiguous tensors of one shape and type, at most {peers.room} bytes."
        )
    two = shots == 2 if shots else two_shots(x.nbytes, peers.size)
    tile = pick(TILES, arch_of(x.device))
    pieces = -(-x.numel() // (tile.constants["WIDTH"] * (peers.size if two else 1)))
    launch(
        two_shot_kernel if two else one_shot_kernel,
        (min(pieces, PROGRAMS),),
        tile=tile,
        x_ptr=x,
        out_ptr=out,
        peers_ptr=peers.addresses,
        rounds_ptr=peers.rounds,
        rank=peers.rank,
        count=x.numel(),
        room=peers.room,
        SIZE=peers.size,
        LANES=1 << (peers.size - 1).bit_length(),
    )
    return out
