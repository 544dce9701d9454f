"""CUDA graphs without a GPU."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext

from slipway.worker.device.graphs import GraphKey, Graphs, GraphSizes, Rehearsing
from slipway.worker.device.worker import DeviceWorker


class Repeated(Graphs):
    """What would be captured is run again, with what it was captured with; `room` for so many."""

    def __init__(self, room: int = 1000) -> None:
        super().__init__(reserved=1 << 40)
        self.eager = False
        """What a step has missed is there for the next one."""
        self.steps: dict[GraphKey, Callable[[], object]] = {}
        self.replayed = 0
        self.full = False
        self._room = room

    @classmethod
    def into(
        cls,
        worker: DeviceWorker,
        sizes: list[int],
        *lengths: int,
        room: int = 1000,
        ready: bool = True,
        eager: bool = True,
    ) -> Repeated:
        """Have the worker run its steps so, in contexts of up to these lengths.

        ready  whether all that is captured when nothing runs is there already
        eager  whether the rest is there as soon as a step has missed it
        """
        repeated = cls(room)
        old = worker.graph_sizes
        worker.graphs = repeated
        worker.graph_sizes = GraphSizes(
            sizes,
            worker.most_requests,
            lengths,
            old.most_rows,
            max(old.each) - 1,
            max(old.adapters),
            draws=old.draws,
        )
        while ready and worker.idle():
            pass
        repeated.eager = ready and eager
        return repeated

    def most_missed(self, least: int) -> GraphKey | None:
        return super().most_missed(1 if self.eager else least)

    @property
    def decodes(self) -> Sequence[GraphKey]:
        """Forward passes without prompts."""
        return [key for key in self.steps if key.features is None and not key.prompts]

    @property
    def prompts(self) -> Sequence[GraphKey]:
        """Forward passes with prompts."""
        return [key for key in self.steps if key.prompts]

    def __contains__(self, key: GraphKey) -> bool:
        return key in self.steps

    def capture(
        self, key: GraphKey, step: Callable[[], object], rehearsing: Rehearsing = nullcontext
    ) -> None:
        with rehearsing():
            step()
        if len(self.steps) == self._room:
            self.full = True
        else:
            self.steps[key] = step
            self._note(key, 0)

    def replay(self, key: GraphKey) -> None:
        self.replayed += 1
        self.steps[key]()
