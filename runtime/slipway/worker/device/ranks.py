"""Ranks that share every matrix of a model, on devices: what each computes apart becomes the whole's."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from itertools import pairwise
from typing import Protocol

from torch import Tensor
from torch.nn import functional

from slipway.worker.device.meeting import Meeting, Met, lost
from slipway.worker.device.products import DeviceScheme
from slipway_kernels.collective import all_reduce, takes


class Ranks(Protocol):
    """How a rank meets the others. Each makes the same calls in the same order, of the same shapes."""

    draws: bool
    """Whether this one draws tokens: the first does, which alone has masks and processors."""
    several: bool
    """Whether there are others, which take a step with as many rows: those of its graph, captured or not."""

    def rehearsing(self) -> AbstractContextManager[None]:
        """Within, nothing is sent: of runs before a capture, which each rank makes when it has time."""

    def added_up(self, x: Tensor) -> Tensor:
        """The sum of x [rows, n] over the ranks, in the place of x."""

    def looked_up(self, table: DeviceScheme, ids: Tensor, tokens_from: Sequence[int]) -> Tensor:
        """ids [rows] → [rows, hidden], of a table whose rows the ranks share: `Sharded.tokens_from`.

        Empty: each has them all.
        """

    def joined(self, logits: Tensor, tokens_from: Sequence[int]) -> Tensor:
        """[rows, tokens of this rank] → [rows, vocab]"""

    def agreed(self, drawn: Tensor) -> None:
        """drawn becomes what the first rank has there."""


class Alone:
    """A rank that has whole matrices: nothing is launched, and nobody is waited for."""

    draws = True
    several = False

    def rehearsing(self) -> AbstractContextManager[None]:
        return nullcontext()

    def added_up(self, x: Tensor) -> Tensor:
        return x

    def looked_up(self, table: DeviceScheme, ids: Tensor, tokens_from: Sequence[int]) -> Tensor:
        return table.rows(ids)

    def joined(self, logits: Tensor, tokens_from: Sequence[int]) -> Tensor:
        return logits

    def agreed(self, drawn: Tensor) -> None:
        return


class TensorRanks:
    """Sums by our kernel where peers read each other's memory and it takes them, else by NCCL."""

    several = True

    def __init__(self, rank: int, size: int, meeting: Meeting) -> None:
        self.draws = rank == 0
        self._rank, self._size = rank, size
        self._meeting = meeting
        self._rehearses = False

    @property
    def _met(self) -> Met:
        """The others, where they are to be told."""
        silent = self._rehearses or self._meeting.left
        return (None if silent else self._meeting.met) or Met()

    @contextmanager
    def rehearsing(self) -> Iterator[None]:
        self._rehearses = True
        try:
            yield
        finally:
            self._rehearses = False

    def added_up(self, x: Tensor) -> Tensor:
        met = self._met
        if met.peers is not None and takes(x, met.peers):
            return all_reduce(x, met.peers, x)
        if met.group is not None:
            with lost():
                met.group.all_reduce(x)
        return x

    def looked_up(self, table: DeviceScheme, ids: Tensor, tokens_from: Sequence[int]) -> Tensor:
        if not tokens_from:
            return table.rows(ids)
        first, end = tokens_from[self._rank : self._rank + 2]
        own = (ids - first).masked_fill((ids < first) | (ids >= end), -1)
        # Another rank's rows are zeros here, so that the sum is the row itself.
        return self.added_up(table.rows(own))

    def joined(self, logits: Tensor, tokens_from: Sequence[int]) -> Tensor:
        if not tokens_from:
            return logits
        widths = [end - first for first, end in pairwise(tokens_from)]
        rows, widest = len(logits), max(widths)
        if logits.shape[1] < widest:  # all send as much
            logits = functional.pad(logits, (0, widest - logits.shape[1]))
        if (group := self._met.group) is None:
            found = logits.new_zeros(self._size * rows, widest)
        else:
            with lost():
                found = group.all_gather(logits.contiguous())
        parts = found.view(self._size, rows, widest)
        joined = parts.new_empty(rows, tokens_from[-1])
        for part, width, first in zip(parts, widths, tokens_from, strict=False):
            joined[:, first : first + width].copy_(part[:, :width])
        return joined

    def agreed(self, drawn: Tensor) -> None:
        if (group := self._met.group) is not None:
            with lost():
                group.broadcast(drawn)
