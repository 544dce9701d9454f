"""Pipeline stages in this process, a thread each: their workers, and the sockets between them."""

from __future__ import annotations

import socket
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor

import msgspec

from slipway.dist.channel import Neighbours, SocketChannel
from slipway.engine.config import EngineConfig
from slipway.engine.plan import Masks, StepOutput, StepPlan
from slipway.engine.telling import Telling
from slipway.load.checkpoint import open_checkpoint
from slipway.load.progress import Progress
from slipway.worker.cache_size import CacheMemory
from slipway.worker.cpu import CpuWorker
from slipway.worker.drafts.plan import with_draft
from slipway.worker.plan import ModelPlan
from slipway.worker.planning import plan_model
from staged_worker import StagedWorker


class Stages(StagedWorker[CpuWorker]):
    """A worker of several: the first one's plan is given, those of the others are made of their ranks."""

    takes_drafts = True
    repeats_bits = True
    num_host_pages = 0

    def __init__(self, plan: ModelPlan, config: EngineConfig, progress: Progress) -> None:
        count = config.pipeline_parallel_size
        pairs = [socket.socketpair() for _ in range(count - 1)]
        self.channels = [SocketChannel(end, "a stage") for pair in pairs for end in pair]
        ends = [None, *self.channels, None]
        self.workers = workers = list[CpuWorker]()
        for rank in range(count):
            own = msgspec.structs.replace(config, rank=rank)
            if rank:
                plan = plan_model(open_checkpoint(own, progress), own)
                plan = with_draft(plan, own, progress)
            neighbours = Neighbours(ends[2 * rank], ends[2 * rank + 1])
            workers.append(CpuWorker(plan, own, progress, neighbours=neighbours))
        self._threads = [ThreadPoolExecutor(1) for _ in range(count)]
        self._telling = Telling()
        self._plan: StepPlan | None = None
        self._steps: deque[list[Future[StepOutput]]] = deque()

    def profile(self) -> CacheMemory:
        return self.workers[0].profile()

    def launch(self, plan: StepPlan) -> None:
        self._plan = plan = self._telling.launched(plan)
        pairs = zip(self._threads[:-1], self.workers, strict=False)
        self._steps.append([thread.submit(worker.step, plan) for thread, worker in pairs])

    def draw(self, masks: Masks | None = None) -> None:
        assert self._plan is not None
        self._steps[-1].append(self._threads[-1].submit(self.workers[-1].step, self._plan, masks))

    def collect(self) -> StepOutput:
        output = [step.result() for step in self._steps.popleft()][-1]
        self._telling.collected(output)
        return output

    def close(self) -> None:
        for channel in self.channels:
            channel.leave()
        for thread in self._threads:
            thread.shutdown()
        for channel in self.channels:
            channel.close()
        super().close()
