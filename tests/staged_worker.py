"""A worker whose pipeline stages are in this process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, TypeVar

from slipway.engine.executor import Worker
from slipway.engine.messages import AdapterRef, Part

W = TypeVar("W", bound=Worker)


class StagedWorker(Generic[W]):
    """What all stages do alike, apart from steps."""

    runs_ahead = True
    workers: Sequence[W]

    @property
    def token_budget(self) -> int:
        return self.workers[0].token_budget

    def allocate(self, num_pages: int) -> int:
        return min(worker.allocate(num_pages) for worker in self.workers)

    def warm_up(self) -> None:
        for worker in self.workers:
            worker.warm_up()

    def sleep(self, *, keep_weights: bool) -> None:
        for worker in self.workers:
            worker.sleep(keep_weights=keep_weights)

    def wake(self, part: Part) -> None:
        for worker in self.workers:
            worker.wake(part)

    def read_adapter(self, adapter: AdapterRef, place: int) -> int:
        added, *_ = (worker.read_adapter(adapter, place) for worker in self.workers)
        return added

    def idle(self) -> bool:
        return max(worker.idle() for worker in self.workers)

    def close(self) -> None:
        for worker in self.workers:
            worker.close()
