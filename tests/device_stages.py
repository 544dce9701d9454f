"""Pipeline stages on devices, in this process, one after another: their workers and the rows between them."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec
import pytest
import torch
from torch import Tensor

from slipway.dist.stores import RankStore
from slipway.engine import start
from slipway.engine.config import EngineConfig
from slipway.engine.plan import Masks, StepOutput, StepPlan
from slipway.engine.planned import StartProgress, planned
from slipway.engine.telling import Telling
from slipway.load.progress import Progress
from slipway.worker.cache_size import CacheMemory
from slipway.worker.device import load
from slipway.worker.device.meeting import Met
from slipway.worker.device.worker import DeviceWorker
from slipway.worker.plan import ModelPlan
from staged_worker import StagedWorker


class Way:
    """A group of two whose rows lie here until the other takes them."""

    def __init__(self) -> None:
        self._rows: deque[Tensor] = deque()

    def end(self, *, gives: bool) -> WayEnd:
        return WayEnd(self, gives=gives)

    def give(self, rows: Tensor) -> None:
        self._rows.append(rows.clone())

    def take(self, into: Tensor) -> None:
        into.copy_(self._rows.popleft())


class WayEnd:
    def __init__(self, way: Way, *, gives: bool) -> None:
        self.broadcast = way.give if gives else way.take

    def leave(self) -> None:
        return


class DeviceStages(StagedWorker[DeviceWorker]):
    """A worker of several: the first one's plan is given, those of the others are made of their ranks."""

    takes_drafts = False
    repeats_bits = False

    def __init__(self, plan: ModelPlan, config: EngineConfig, progress: Progress) -> None:
        self.workers = workers = list[DeviceWorker]()
        for rank in range(config.pipeline_parallel_size):
            own = msgspec.structs.replace(config, rank=rank)
            if rank:
                own, plan = planned(own, StartProgress(None))
            workers.append(load.load(plan, own, progress))
        self.num_host_pages = min(worker.num_host_pages for worker in self.workers)
        self._telling = Telling()

    def profile(self) -> CacheMemory:
        return min((worker.profile() for worker in self.workers), key=lambda memory: memory.num_bytes)

    def launch(self, plan: StepPlan) -> None:
        plan = self._telling.launched(plan)
        for worker in self.workers:
            worker.launch(plan)

    def draw(self, masks: Masks | None = None) -> None:
        for worker in self.workers:
            worker.draw(masks if worker.plan.draws else None)

    def collect(self) -> StepOutput:
        *_, output = [worker.collect() for worker in self.workers]
        self._telling.collected(output)
        return output

    def leave(self) -> None:
        for worker in self.workers:
            worker.leave()


@contextmanager
def stages_here(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Within, engines of several stages have all of them in this process."""
    ways: dict[int, Way] = {}

    def met(config: EngineConfig, device: torch.device, store: RankStore) -> Met:
        rank, last = config.rank, config.pipeline_parallel_size - 1
        if rank < last:
            ways[rank] = Way()
        before = ways[rank - 1].end(gives=False) if rank else None
        behind = ways[rank].end(gives=True) if rank < last else None
        return Met(before=before, behind=behind)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(load, "met", met)
        patch.setattr(start, "loader", lambda device: DeviceStages)
        patch.setattr(start.Start, "of", start.Start._of)
        yield
