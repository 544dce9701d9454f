"""Where the adapters of a layer lie: each in a place, which is one run of bytes for all layers together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import prod

import torch
from torch import Tensor

ALIGNMENT = 256
"""Bytes that the address of a tensor is a multiple of, as torch's own are at least."""


@dataclass(frozen=True, slots=True)
class Pool:
    """The adapters of one layer. A fused layer has several slices, each with an A and a B of its own.

    a       [places, slices · rank, k]  bf16, fp16 or fp32; of an embedding, k are its tokens
    b       [places, n, rank]   the same type, with the scaling; n counts the columns of all slices
    ranks   [places]  int32: each at most rank, 0 where nothing is multiplied; what lies beyond is not read
    bias    [places, n]  fp32, added to the rows of an adapter; None: no adapter has one
    starts  [slices + 1]  int32: the columns at which slices begin, and n
    widest  columns of the widest slice
    """

    a: Tensor
    b: Tensor
    ranks: Tensor
    bias: Tensor | None
    starts: Tensor
    widest: int

    @property
    def rank(self) -> int:
        return self.b.shape[2]

    def put(
        self, place: int, parts: Sequence[tuple[Tensor, Tensor] | None], bias: Tensor | None = None
    ) -> None:
        """Put an adapter into a place: each slice's A [its rank, k] and B [its columns, its rank].

        None stands for a slice, or a bias [n], that the adapter leaves as it is. Raises ValueError, before
        anything is written, where the adapter does not fit.
        """
        starts = self.starts.tolist()
        if len(parts) != len(starts) - 1:
            raise ValueError(f"the adapter has {len(parts)} slices and the layer {len(starts) - 1}.")
        given = [(index, *part) for index, part in enumerate(parts) if part is not None]
        for index, a, b in given:
            k, columns = self.a.shape[2], starts[index + 1] - starts[index]
            if a.shape != (len(a), k) or b.shape != (columns, len(a)) or len(a) > self.rank:
                raise ValueError(
                    f"slice {index} of the adapter has A {list(a.shape)} and B {list(b.shape)}: here they "
                    f"are [rank, {k}] and [{columns}, rank], of a rank of at most {self.rank}."
                )
        if bias is not None and (self.bias is None or bias.shape != self.bias.shape[1:]):
            room = "none" if self.bias is None else str(list(self.bias.shape[1:]))
            raise ValueError(f"the adapter has a bias {list(bias.shape)}, and there is room for {room}.")
        self.ranks[place] = max((len(a) for _, a, _ in given), default=0)
        if given:  # slices are read up to the largest rank of them
            self.a[place].zero_()
            self.b[place].zero_()
        for index, a, b in given:
            self.a[place, index * self.rank : index * self.rank + len(a)] = a
            self.b[place, starts[index] : starts[index + 1], : len(a)] = b
        if self.bias is not None:
            self.bias[place] = 0.0 if bias is None else bias


@dataclass(frozen=True, slots=True)
class PoolShape:
    """What adapters may add to a layer.

    rank    the largest, at least 1
    k       columns of what is multiplied; of an embedding, its tokens
    slices  columns of each
    dtype   of A and B: bf16, fp16 or fp32
    bias    whether they may add one
    by_token  A is looked up by column: an embedding's columns are tokens
    """

    rank: int
    k: int
    slices: tuple[int, ...]
    dtype: torch.dtype
    bias: bool = False
    by_token: bool = False

    @property
    def nbytes(self) -> int:
        """Of one adapter."""
        return sum(aligned(prod(shape) * dtype.itemsize) for shape, dtype in self._tensors)

    def over(self, memory: Tensor, at: int = 0) -> Pool:
        """A pool in memory [places, bytes] uint8, from this byte of each place on. What is 0 is free.

        Raises ValueError where an adapter does not begin at a multiple of 256 bytes, or has no room.
        """
        if at % ALIGNMENT or memory.stride(0) % ALIGNMENT or at + self.nbytes > memory.shape[1]:
            raise ValueError(
                f"adapters of {self.nbytes} bytes have no room from byte {at} of {memory.shape[1]} on, or do "
                f"not begin at a multiple of {ALIGNMENT}."
            )
        parts = []
        for shape, dtype in self._tensors:
            part = memory[:, at : at + prod(shape) * dtype.itemsize].view(dtype)
            parts.append(part.view(len(memory), *shape))
            at += aligned(prod(shape) * dtype.itemsize)
        ranks, b, a, *bias = parts
        starts = torch.tensor([0, *accumulate(self.slices)], dtype=torch.int32, device=memory.device)
        return Pool(
            a.transpose(1, 2) if self.by_token else a,
            b,
            ranks[:, 0],
            bias[0] if bias else None,
            starts,
            max(self.slices),
        )

    def empty(self, places: int, device: torch.device) -> Pool:
        """A pool of free places in memory of its own."""
        return self.over(torch.zeros(places, self.nbytes, dtype=torch.uint8, device=device))

    @property
    def _tensors(self) -> list[tuple[tuple[int, ...], torch.dtype]]:
        n, high = sum(self.slices), len(self.slices) * self.rank
        parts: list[tuple[tuple[int, ...], torch.dtype]] = [
            ((1,), torch.int32),
            ((n, self.rank), self.dtype),
            ((self.k, high) if self.by_token else (high, self.k), self.dtype),
        ]
        return [*parts, ((n,), torch.float32)] if self.bias else parts


def aligned(size: int) -> int:
    """Bytes up to the next tensor's place."""
    return -(-size // ALIGNMENT) * ALIGNMENT
