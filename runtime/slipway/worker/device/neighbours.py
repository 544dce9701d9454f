"""The pipeline stages before and behind one, on devices: rows go from each to the next.

Two ranks of one place in neighbouring stages are a group, whose first rank's rows become the other's. A step
takes its rows before its graph is replayed and gives them behind it, as many as the plan has: so the two may
differ in what they have captured.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from slipway.dist.groups import Group
from slipway.worker.device.meeting import Meeting, lost


class Neighbours(Protocol):
    """How a stage gets and passes on rows. Every stage makes its calls in the order of steps."""

    def meet(self) -> bool:
        """Wait for both neighbours to come here, before which nothing is sent; whether there are any."""

    def leave(self) -> None:
        """One is lost: no step waits for it any more. In any thread."""

    def check(self) -> None:
        """Raises RankLeft behind that."""

    def take(self, into: Tensor) -> None:
        """into [rows, hidden] becomes what the stage before gives of as many rows."""

    def give(self, rows: Tensor) -> None:
        """[rows, hidden]  for the stage behind."""


class OnlyStage:
    """A stage that has all layers."""

    def meet(self) -> bool:
        return False

    def leave(self) -> None:
        return

    def check(self) -> None:
        return

    def take(self, into: Tensor) -> None:
        return

    def give(self, rows: Tensor) -> None:
        return


@dataclass(frozen=True, slots=True)
class Pairs:
    """The groups that a rank has with the stages before and behind its own, where there are some."""

    before: Group | None = None
    behind: Group | None = None

    def leave(self) -> None:
        for group in filter(None, (self.before, self.behind)):
            group.leave()


class StageNeighbours:
    """Rows go as torch's group sends them: by NCCL between devices, which the host does not wait for."""

    def __init__(self, meet: Callable[[], Pairs]) -> None:
        """meet: as of `Meeting`"""
        self._meeting: Meeting[Pairs] = Meeting(meet)

    def meet(self) -> bool:
        self._meeting.wait()
        return True

    def leave(self) -> None:
        self._meeting.leave()

    def check(self) -> None:
        self._meeting.check()

    def take(self, into: Tensor) -> None:
        self._share(self._pairs.before, into)

    def give(self, rows: Tensor) -> None:
        self._share(self._pairs.behind, rows)

    @property
    def _pairs(self) -> Pairs:
        return self._meeting.met or Pairs()

    def _share(self, group: Group | None, rows: Tensor) -> None:
        self.check()
        if group is not None:
            with lost():
                group.broadcast(rows)
