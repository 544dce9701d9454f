"""Where the adapters of a layer lie: each in a place, which is one run of bytes for all layers together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from math import prod

import torch
from torch import Tensor

from slipway_kernels.cuda.lasting import lasting

ALIGNMENT = 256
"""Bytes that the address of a tensor is a multiple of, as torch's own are at least."""


@lasting
@dataclass(frozen=True, slots=True, weakref_slot=True)
class Pool:
    """The adapters of one layer. A fused layer has several slices, each with an A and a B of its own.

    a       [places, slices · rank, k]  bf16, fp16 or fp32; of an embedding, k are its tokens; of a rank to
            which its rows are dealt, slices · the most that it gets
    b       [places, n, rank]   the same type, with the scaling; n counts the columns of all slices; or the
            rows of `run`
    ranks   [places]  int32: each at most rank, 0 where nothing is multiplied; what lies beyond is not read
    bias    [places, n]  fp32, added to the rows of an adapter; None: no adapter has one
    starts  [slices + 1]  int32: the columns at which slices begin, and where the last one ends; where nothing
            but B is added, those of `run`
    widest  columns of the widest slice
    shape   what it was made of
    """

    a: Tensor
    b: Tensor
    ranks: Tensor
    bias: Tensor | None
    starts: Tensor
    widest: int
    shape: PoolShape

    def put(
        self, place: int, parts: Sequence[tuple[Tensor, Tensor] | None], bias: Tensor | None = None
    ) -> None:
        """Put an adapter into a place: each slice's A [its rank, k] and B [its columns, its rank].

        None stands for a slice, or a bias [n], that the adapter leaves as it is. Raises ValueError, before
        anything is written, where the adapter does not fit.
        """
        shape = self.shape
        if len(parts) != len(shape.slices):
            raise ValueError(f"the adapter has {len(parts)} slices and the layer {len(shape.slices)}.")
        given = [(index, *part) for index, part in enumerate(parts) if part is not None]
        for index, a, b in given:
            columns, rank = shape.rows_of_b[index], b.shape[1]
            if a.shape != (shape.dealt(rank), shape.k) or len(b) != columns or rank > shape.rank:
                raise ValueError(
                    f"slice {index} of the adapter has A {list(a.shape)} and B {list(b.shape)}: here they "
                    f"are [rank, {shape.k}] and [{columns}, rank], of a rank of at most {shape.rank}"
                    f"{f', whose A goes to {shape.turns} ranks by rows' if shape.turns > 1 else ''}."
                )
        if bias is not None and (self.bias is None or bias.shape != self.bias.shape[1:]):
            room = "none" if self.bias is None else str(list(self.bias.shape[1:]))
            raise ValueError(f"the adapter has a bias {list(bias.shape)}, and there is room for {room}.")
        self.ranks[place] = max((b.shape[1] for *_, b in given), default=0)
        if given:  # slices are read up to the largest rank of them
            self.a[place].zero_()
            self.b[place].zero_()
        starts = [0, *accumulate(shape.rows_of_b)]
        for index, a, b in given:
            first = index * shape.part_rank
            self.a[place, first : first + len(a)] = a
            self.b[place, starts[index] : starts[index + 1], : b.shape[1]] = b
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
    turn, turns  the rows of A that are here, of each slice: `turn`, and every `turns`th behind it
    run     the columns, of the only slice, of which B has the rows; None: of all
    """

    rank: int
    k: int
    slices: tuple[int, ...]
    dtype: torch.dtype
    bias: bool = False
    by_token: bool = False
    turn: int = 0
    turns: int = 1
    run: range | None = None

    @property
    def n(self) -> int:
        return sum(self.slices)

    @property
    def rows_of_b(self) -> tuple[int, ...]:
        """By slice."""
        return self.slices if self.run is None else (len(self.run),)

    @property
    def part_rank(self) -> int:
        """Rows of A in a slice, at most: as many whatever the turn."""
        return -(-self.rank // self.turns)

    @property
    def is_part(self) -> bool:
        """Whether ranks share A and B alike, and each makes a part of x · Aᵀ."""
        return self.turns > 1 or self.run is not None

    def dealt(self, rank: int) -> int:
        """Of so many rows of A, those that are here."""
        return len(range(self.turn, rank, self.turns))

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
        starts = [0, *accumulate(self.slices)]
        if self.run is not None and not self.bias:
            starts = [self.run.start, self.run.stop]
        return Pool(
            a.transpose(1, 2) if self.by_token else a,
            b,
            ranks[:, 0],
            bias[0] if bias else None,
            torch.tensor(starts, dtype=torch.int32, device=memory.device),
            max(end - start for start, end in pairwise(starts)),
            self,
        )

    def empty(self, places: int, device: torch.device) -> Pool:
        """A pool of free places in memory of its own."""
        return self.over(torch.zeros(places, self.nbytes, dtype=torch.uint8, device=device))

    @property
    def _tensors(self) -> list[tuple[tuple[int, ...], torch.dtype]]:
        high, rows = len(self.slices) * self.part_rank, sum(self.rows_of_b)
        parts: list[tuple[tuple[int, ...], torch.dtype]] = [
            ((1,), torch.int32),
            ((rows, self.rank), self.dtype),
            ((self.k, high) if self.by_token else (high, self.k), self.dtype),
        ]
        return [*parts, ((self.n,), torch.float32)] if self.bias else parts


def aligned(size: int) -> int:
    """Bytes up to the next tensor's place."""
    return -(-size // ALIGNMENT) * ALIGNMENT
