"""`python -m slipway.engine.rank CONFIG CONTROL BEATS MEMORY ROWS…`: a rank that is not its engine's first.

All are inherited descriptors, see `team.Rank`. It does what the first one asks, and plans nothing.
"""

from __future__ import annotations

import logging
import os
import socket
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from slipway.begin import begin
from slipway.dist.beats import ENDED, Heartbeats
from slipway.dist.channel import NeighbourGone, Neighbours, neighbours
from slipway.dist.hosts import ranks_of
from slipway.dist.mesh import Mesh
from slipway.dist.stages import Doorway, reach
from slipway.dist.trust import read_key
from slipway.engine.config import EngineConfig
from slipway.engine.executor import Worker
from slipway.engine.link import (
    Allocate,
    Answer,
    Ask,
    CountHostPages,
    Link,
    Load,
    Made,
    Open,
    Question,
    Reach,
    ReadAdapter,
    Sleep,
    Step,
    ToRank,
    Wake,
    WarmUp,
)
from slipway.engine.plan import StepPlan, read_masks
from slipway.engine.planned import StartProgress, loader, on_host, planned, read_libraries
from slipway.engine.start import describe
from slipway.envs import read
from slipway.exits import ENGINE_DIED, INTERNAL_ERROR
from slipway.processes import die_with_parent, told
from slipway.worker.cache_size import wanted_pages
from slipway.worker.placement import settle
from slipway.worker.plan import ModelPlan
from slipway_kernels.cpu import RankLeft

log = logging.getLogger("slipway.engine")

LINGER = 1e-3
"""Seconds for which it looks for the next step before it sleeps: waking takes 0.1 to 0.4 ms."""


def main() -> int:
    config_fd, control, beats, memory, *rows = map(int, sys.argv[1:])
    die_with_parent()
    config = told(config_fd, EngineConfig)
    mesh = Mesh.of(config)
    name = mesh.name(config.rank)
    here = ranks_of(config, config.node_rank)
    before = socket.socket(fileno=rows.pop(0)) if config.rank - mesh.tp in here else None
    behind = socket.socket(fileno=rows.pop(0)) if config.rank + mesh.tp in here else None
    of = f"{config.name}, " if config.is_one_of_several else ""
    begin(config.log_config_file, read(os.environ), f"[{of}{name}] ")
    read_libraries(config.device)
    if on_host(config):
        settle(config)
    Heartbeats({0: socket.socket(fileno=beats)}, _alone)
    link: Link[ToRank] = Link(socket.socket(fileno=control), ToRank)
    return Member(config, link, memory, neighbours((before, behind), mesh, config.rank)).serve()


def _alone(_: int, how: str) -> None:
    """The first rank has gone: nothing that this one computes is wanted any more, and it may wait for it."""
    if how != ENDED:
        log.error("rank 0 %s: this rank ends", how)
    os._exit(ENGINE_DIED.code)


class Member:
    """A rank's worker, and what it is asked."""

    _plan: ModelPlan
    _worker: Worker

    def __init__(self, config: EngineConfig, link: Link[ToRank], memory: int, neighbours: Neighbours) -> None:
        self._config = config
        self._link = link
        self._memory = memory
        self._neighbours = neighbours
        self._doorway: Doorway | None = None
        """Through which the rank comes that its rows go to, from another host."""
        self._draws = config.rank == Mesh.of(config).drawing > 0
        """What its steps make is told."""
        self._under_way = 0
        """Steps that have not been collected."""
        self._beside = ThreadPoolExecutor(1, thread_name_prefix="adapters")
        self._link.linger = LINGER

    def serve(self) -> int:
        """Until the first rank has gone, or a step fails here. Returns the exit status."""
        try:
            for message in self._link:
                match message:
                    case Step(plan, masks):
                        self._step(plan, masks or {})
                    case Ask(number, ReadAdapter() as question):
                        self._beside.submit(self._answer, number, question)
                    case Ask(number, question):
                        self._answer(number, question)
        except (RankLeft, NeighbourGone):
            for _ in self._link:  # the first one knows who, and ends us
                pass
        except OSError:
            pass
        except Exception as error:
            log.exception("a step failed")
            failure = describe(error)
            self._link.send(Answer(-1, failure=failure))
            return failure.code
        return 0

    def _step(self, plan: StepPlan, masks: dict[int, bytes]) -> None:
        self._worker.launch(plan)
        self._worker.draw(read_masks(masks, plan) or None)
        self._under_way += 1
        # Nobody wants what this one makes: the next step is launched before it waits for that.
        ahead = self._worker.runs_ahead and not self._draws
        while self._under_way > ahead:
            output = self._worker.collect()
            self._under_way -= 1
            if self._draws:
                self._link.send(Made(output))

    def _answer(self, number: int, question: Question) -> None:
        try:
            answer = Answer(number, self._carried_out(question))
        except Exception as error:
            failure = describe(error)
            if failure.code == INTERNAL_ERROR.code:
                log.exception("the rank failed")
            answer = Answer(number, failure=failure)
        self._link.send(answer)

    def _carried_out(self, question: Question) -> int:
        match question:
            case Open():
                self._doorway = Doorway(self._config, read_key(self._config.cluster_key_file))
            case Reach(address):
                before = reach(self._config, read_key(self._config.cluster_key_file), address)
                self._neighbours = replace(self._neighbours, before=before)
            case Load():
                return self._load()
            case CountHostPages():
                return self._worker.num_host_pages
            case Allocate(num_pages):
                pages = self._worker.allocate(num_pages)
                self._plan.close()
                self._link.idle = self._worker.idle
                return pages
            case WarmUp():
                self._worker.warm_up()
            case Sleep(keep_weights):
                self._link.idle = lambda: False
                self._worker.sleep(keep_weights=keep_weights)
            case Wake(part):
                self._worker.wake(part)
                if part == "kv_cache":
                    self._link.idle = self._worker.idle
            case ReadAdapter(adapter, place):
                return self._worker.read_adapter(adapter, place)
        return 0

    def _load(self) -> int:
        if self._doorway is not None:
            self._neighbours = replace(self._neighbours, behind=self._doorway.wait())
        progress = StartProgress(None)
        config, self._plan = planned(self._config, progress)
        self._worker = loader(config.device, self._memory, self._neighbours)(self._plan, config, progress)
        return wanted_pages(config, self._plan, self._worker.profile())


if __name__ == "__main__":
    sys.exit(main())
