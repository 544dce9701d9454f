"""The pipeline stages before and behind one, on devices: rows go from each to the next.

A step takes its rows before its graph is replayed and gives them behind it, as many as the plan has: so two
stages may differ in what they have captured.
"""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from slipway.dist.groups import Group
from slipway.worker.device.meeting import Meeting, Met, lost


class Neighbours(Protocol):
    """How a stage gets and passes on rows. Every stage makes its calls in the order of steps."""

    def take(self, into: Tensor) -> None:
        """into [rows, hidden] becomes what the stage before gives of as many rows."""

    def give(self, rows: Tensor) -> None:
        """[rows, hidden]  for the stage behind."""


class OnlyStage:
    """One that has all layers."""

    def take(self, into: Tensor) -> None:
        return

    def give(self, rows: Tensor) -> None:
        return


class StageNeighbours:
    """Rows go as torch's group sends them: by NCCL between devices, which the host does not wait for. Nothing
    is sent before the ranks have met.
    """

    def __init__(self, meeting: Meeting) -> None:
        self._meeting = meeting

    def take(self, into: Tensor) -> None:
        self._share(self._met.before, into)

    def give(self, rows: Tensor) -> None:
        self._share(self._met.behind, rows)

    @property
    def _met(self) -> Met:
        return self._meeting.met or Met()

    def _share(self, group: Group | None, rows: Tensor) -> None:
        self._meeting.check()
        if group is not None:
            with lost():
                group.broadcast(rows)
