"""CUDA graphs without a GPU."""

from __future__ import annotations

from collections.abc import Callable, Hashable

from slipway.worker.device.graphs import GraphSizes
from slipway.worker.device.worker import DeviceWorker


class Repeated:
    """What would be captured is run again, with what it was captured with; `room` for so many."""

    def __init__(self, room: int = 1000) -> None:
        self.steps: dict[Hashable, Callable[[], object]] = {}
        self.replayed = 0
        self.full = False
        self._room = room

    @classmethod
    def into(cls, worker: DeviceWorker, sizes: list[int], max_length: int, room: int = 1000) -> Repeated:
        """Have the worker run its decoding steps so."""
        repeated = cls(room)
        worker.graphs = repeated
        worker.graph_sizes = GraphSizes.of(sizes, worker.most_requests, max_length)
        return repeated

    def __contains__(self, key: Hashable) -> bool:
        return key in self.steps

    def capture(self, key: Hashable, step: Callable[[], object]) -> None:
        step()
        if len(self.steps) == self._room:
            self.full = True
        else:
            self.steps[key] = step

    def replay(self, key: Hashable) -> None:
        self.replayed += 1
        self.steps[key]()
