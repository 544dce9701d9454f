"""Ranks of an engine in threads of this process: its real members, which otherwise have one each."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from local_engine import LocalEngine
from slipway.dist.beats import Heartbeats
from slipway.dist.channel import Ends, neighbours
from slipway.dist.mesh import Mesh
from slipway.engine import team
from slipway.engine.config import EngineConfig
from slipway.engine.link import FromRank, Link, ToRank
from slipway.engine.rank import Member
from slipway.exits import ENGINE_DIED, Exit
from slipway.worker.cpu import CpuWorker


class ThreadRank:
    """Stands where a `Team` has the process of another rank."""

    pid = os.getpid()
    address: str | None = None

    def __init__(self, config: EngineConfig, memory: int, name: str, ends: Ends) -> None:
        self.name = name
        (control, theirs), (self.beats, beats) = socket.socketpair(), socket.socketpair()
        self.link: Link[FromRank] = Link(control, FromRank)
        self._neighbours = neighbours(ends, Mesh.of(config), config.rank)
        self.member = Member(config, Link(theirs, ToRank), memory, self._neighbours)
        self._heartbeats = Heartbeats({0: beats}, lambda *_: None)
        self._sockets = theirs, beats
        self._thread = threading.Thread(target=self.member.serve, name=name, daemon=True)
        self._thread.start()

    def how_ended(self, lost: str) -> Exit:
        return Exit(ENGINE_DIED, f"{self.name} {lost}.", "")

    def end(self, patience: float) -> None:
        self._thread.join()
        self._neighbours.close()
        self._heartbeats.close()
        for one in self._sockets:
            one.close()


@contextmanager
def in_threads() -> Iterator[None]:
    """Ranks that start meanwhile do so in this process: what is importable here is so there, too."""
    process, team.Rank = team.Rank, ThreadRank  # type: ignore[misc, assignment]
    try:
        yield
    finally:
        team.Rank = process  # type: ignore[misc]


class RankedEngine(LocalEngine):
    """As its base, on ranks of a thread each."""

    def __init__(self, model: Path | str, **fields: Any) -> None:
        with in_threads():
            super().__init__(model, **({"threads": 1} | fields))
        own, others = self.worker._worker, self.worker.team.ranks.values()  # type: ignore[attr-defined]
        self.ranks: list[CpuWorker] = [own, *(rank.member._worker for rank in others)]

    @property
    def drawing(self) -> CpuWorker:
        return self.ranks[Mesh.of(self.start.config).drawing]

    def finish(self) -> None:
        """In the end all ranks of a stage have the same tokens and drafts."""
        super().finish()
        self.worker.warm_up()  # which they answer behind their last step
        size = self.start.config.tensor_parallel_size
        for stage in range(0, len(self.ranks), size):
            first, *others = (rank.slots for rank in self.ranks[stage : stage + size])
            for slots in others:
                for name in ("num_tokens", "num_computed", "num_drafts", "tokens"):
                    assert np.array_equal(getattr(slots, name), getattr(first, name)), name


def engine_of(model: Path, **fields: Any) -> LocalEngine:
    """On one rank or several."""
    sizes = (fields.get(f"{kind}_parallel_size", 1) for kind in ("tensor", "pipeline"))
    return (RankedEngine if max(sizes) > 1 else LocalEngine)(model, **fields)
