"""Ranks that share every matrix of a model, on devices: what each computes apart becomes the whole's."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

from torch import Tensor
from torch.nn import functional

from slipway.dist.groups import Group
from slipway.worker.device.meeting import Meeting, lost
from slipway.worker.device.peer_memory import PeerMemory
from slipway.worker.device.products import DeviceScheme
from slipway_kernels.collective import Peers, all_reduce, takes


class Ranks(Protocol):
    """How a rank meets the others. Each makes the same calls in the same order, of the same shapes."""

    draws: bool
    """Whether this one draws tokens: the first does, which alone has masks and processors."""

    def meet(self) -> bool:
        """Wait for all ranks to come here, before which nothing is sent; whether there are any."""

    def leave(self) -> None:
        """One is lost: no step waits for the others any more. In any thread."""

    def check(self) -> None:
        """Raises RankLeft behind that."""

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

    def meet(self) -> bool:
        return False

    def leave(self) -> None:
        return

    def check(self) -> None:
        return

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


@dataclass(frozen=True, slots=True)
class Met:
    """The ranks once all of them are there; peers: None where not all read each other's memory."""

    group: Group
    peers: Peers | None = None
    memory: PeerMemory | None = None

    def leave(self) -> None:
        if self.memory is not None:
            self.memory.leave()
        self.group.leave()


class TensorRanks:
    """Sums by our kernel where peers read each other's memory and it takes them, else by NCCL."""

    def __init__(self, rank: int, size: int, meet: Callable[[], Met]) -> None:
        """meet: as of `Meeting`"""
        self.draws = rank == 0
        self._rank, self._size = rank, size
        self._meeting: Meeting[Met] = Meeting(meet)
        self._rehearses = False

    @property
    def _met(self) -> Met | None:
        """The others, where they are to be told."""
        return None if self._rehearses or self._meeting.left else self._meeting.met

    def meet(self) -> bool:
        """Raises RankLeft, and what prevents it."""
        self._meeting.wait()
        return True

    def leave(self) -> None:
        self._meeting.leave()

    def check(self) -> None:
        self._meeting.check()

    @contextmanager
    def rehearsing(self) -> Iterator[None]:
        self._rehearses = True
        try:
            yield
        finally:
            self._rehearses = False

    def added_up(self, x: Tensor) -> Tensor:
        if (met := self._met) is None:
            return x
        if met.peers is not None and takes(x, met.peers):
            return all_reduce(x, met.peers, x)
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
        if (met := self._met) is None:
            found = logits.new_zeros(self._size * rows, widest)
        else:
            with lost():
                found = met.group.all_gather(logits.contiguous())
        parts = found.view(self._size, rows, widest)
        joined = parts.new_empty(rows, tokens_from[-1])
        for part, width, first in zip(parts, widths, tokens_from, strict=False):
            joined[:, first : first + width].copy_(part[:, :width])
        return joined

    def agreed(self, drawn: Tensor) -> None:
        if (met := self._met) is not None:
            with lost():
                met.group.broadcast(drawn)
