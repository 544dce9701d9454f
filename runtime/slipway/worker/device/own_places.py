"""Rows of tokens that adapters have for themselves, on a device: memory that is there once one has some."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from slipway.load.torch_arrays import tensor
from slipway.model.own_rows import Own
from slipway_kernels.lora import OwnShape, OwnTables

LEAST = 16
"""Rows of each matrix that a place has room for, at least."""


@dataclass(frozen=True, slots=True)
class _Room:
    """Memory [places, bytes] uint8, for so many rows of each matrix in a place."""

    rows: int
    memory: Tensor
    tables: OwnTables


class OwnPlaces:
    """Places for the rows of a step's adapters, each with room for those of the adapter that has the most.

    How many these are nobody knows before, and room for all tokens would be that of two matrices a place. So
    the memory grows as adapters are read, while steps run: they have the new one from `adopt` on. Graphs know
    its addresses, and so have `rows` in their key, which never falls.
    """

    def __init__(
        self, vocab: int, added: int, hidden: int, num_places: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        """added: tokens behind the vocabulary, at most. dtype: of the rows"""
        self.columns = vocab + added
        self._hidden = hidden
        self._num_places = num_places
        self._dtype = dtype
        self._device = device
        self._room: _Room | None = None
        self._next: _Room | None = None
        """What `adopt` makes of it."""

    @property
    def rows(self) -> int:
        """Of each matrix that a place has room for; 0 where no adapter has had any."""
        return 0 if self._room is None else self._room.rows

    @property
    def tables(self) -> OwnTables:
        assert self._room is not None, "an adapter with rows has been read"
        return self._room.tables

    def place_bytes(self, rows: int) -> int:
        """What a place takes with so many rows."""
        return self._shape(rows).nbytes

    def room_for(self, rows: int) -> int:
        """Rows that a place gets room for where an adapter has so many."""
        return min(1 << (max(rows, LEAST) - 1).bit_length(), self.columns)

    def reserve(self, rows: int) -> None:
        """Have room for so many rows, in any thread. Raises torch.OutOfMemoryError."""
        if self._next is None or rows > self._next.rows:
            shape = self._shape(self.room_for(rows))
            # A place of zeros has no rows.
            memory = torch.zeros((self._num_places, shape.nbytes), dtype=torch.uint8, device=self._device)
            self._next = _Room(shape.most, memory, shape.over(memory))

    def adopt(self) -> bool:
        """Between steps: whether there is new memory now, which has nothing of any adapter."""
        found, self._room = self._room, self._next
        return found is not self._room

    def sleep(self) -> None:
        self.adopt()
        if self._room is not None:
            self._room.memory.untyped_storage().resize_(0)

    def wake(self) -> None:
        """Raises torch.OutOfMemoryError."""
        if self._room is not None:
            self._room.memory.untyped_storage().resize_(self._room.memory.nbytes)
            self._room.memory.zero_()

    def fill(self, own: Own, memory: Tensor) -> None:
        """Make memory on the host, of as many bytes as its rows take, what a place is to have."""
        tables = self._shape(rows_of(own)).over(memory.zero_()[None])
        if own.embedding is not None:
            rows, count = own.embedding, len(own.embedding.tokens)
            tables.row_of[0, tensor(rows.tokens).long()] = torch.arange(1, count + 1, dtype=torch.int32)
            tables.embedding[0, :count] = tensor(rows.numbers)
        if own.head is not None:
            rows, count = own.head, len(own.head.tokens)
            tables.counts[0] = count
            tables.tokens[0, :count] = tensor(rows.tokens)
            tables.head[0, :count] = tensor(rows.numbers)
            if rows.bias is not None:
                tables.bias[0, :count] = tensor(rows.bias)

    def copies(self, memory: Tensor, rows: int, place: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Where in the place each part of what `fill` made of so many rows goes, and that part."""
        held = self._shape(rows).over(memory[None])
        for to, part in zip(self.tables.parts, held.parts, strict=True):
            yield (to[place, : part.shape[1]] if part.dim() > 1 else to[place]), part[0]

    def clear(self, place: int) -> None:
        """Nothing is in the place any more."""
        tables = self.tables
        tables.row_of[place].zero_()
        tables.counts[place].zero_()

    def _shape(self, rows: int) -> OwnShape:
        return OwnShape(self.columns, rows, self._hidden, self._dtype)


def rows_of(own: Own) -> int:
    """Of each matrix, as many as the one with more of them has; 0: it has none."""
    return max((len(rows.tokens) for rows in (own.embedding, own.head) if rows is not None), default=0)
