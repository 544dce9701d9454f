"""The other ranks of an engine, as rank 0 has them: their processes, their answers, and why one ended."""

from __future__ import annotations

import contextlib
import itertools
import os
import queue
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from types import MappingProxyType
from typing import Protocol

import msgspec

from slipway.dist.beats import ENDED, Heartbeats
from slipway.dist.channel import Ends, ends_of_ranks, neighbours
from slipway.dist.hosts import address_of, ranks_of, senders
from slipway.dist.mesh import Mesh
from slipway.dist.rendezvous import Arrived
from slipway.dist.stages import Doorway
from slipway.engine.config import EngineConfig
from slipway.engine.link import Answer, Ask, FromRank, Link, Made, Open, Question, Reach, Step
from slipway.engine.messages import Failed
from slipway.engine.plan import StepOutput
from slipway.exits import BY_CODE, ENGINE_DIED, Exit, how_ended
from slipway.processes import start_module
from slipway.temporary import private_folder
from slipway_kernels.cpu import shared_memory

NOBODY: Mapping[int, Arrived] = MappingProxyType({})
ENDS = 2.0
"""Seconds that a rank has to say why it ends, and then to be gone."""
FINDS = 4.0
"""Seconds in which a rank that has ended is known to have."""


class Other(Protocol):
    """Another rank, however it was started."""

    name: str
    link: Link[FromRank]
    beats: socket.socket
    address: str | None
    """Of its host; None: this one."""

    def how_ended(self, lost: str) -> Exit:
        """Why it is no more, where it has not said so itself."""

    def end(self, patience: float) -> None:
        """It has so many seconds to be gone."""


class Rank:
    """Another rank, in a process that this one started."""

    address: str | None = None

    def __init__(self, config: EngineConfig, memory: int, name: str, ends: Ends) -> None:
        """ends: of what leads to the stages before and behind its own; they become the process's"""
        self.name = name
        (control, child_control), (self.beats, child_beats) = socket.socketpair(), socket.socketpair()
        given = [child_control, child_beats, *filter(None, ends)]
        first, second, *others = (one.fileno() for one in given)
        inherited = [first, second, memory, *others]
        self._process: subprocess.Popen[bytes] = start_module("slipway.engine.rank", config, inherited)
        for one in given:
            one.close()
        self.link: Link[FromRank] = Link(control, FromRank)

    @property
    def pid(self) -> int:
        return self._process.pid

    def how_ended(self, lost: str) -> Exit:
        """Why it is no more, where it has not said so itself."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            code, how = how_ended(self._process.wait(ENDS if lost == ENDED else 0))
            return Exit(code, f"{self.name} (process {self.pid}) {how}.")
        return Exit(ENGINE_DIED, f"{self.name} (process {self.pid}) {lost}.", _SILENT)

    def end(self, patience: float) -> None:
        """Kill it where it has not ended so many seconds later: it may stand still."""
        try:
            self._process.wait(patience)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


class FarRank:
    """Another rank, on another host, which has come to this one."""

    def __init__(self, connections: Arrived, name: str) -> None:
        self.address: str | None = connections.control.getpeername()[0]
        self.name = f"{name} on {self.address}"
        self.link: Link[FromRank] = Link(connections.control, FromRank)
        self.beats = connections.beats

    def how_ended(self, lost: str) -> Exit:
        return Exit(ENGINE_DIED, f"{self.name} {lost}.", _FAR)

    def end(self, patience: float) -> None:
        """Its own host sees to that."""


_FAR = "The log of its host says why it ended; where it does not, look at what cut the hosts off."
_SILENT = "Look at what stopped it, or what cut it off; the log may say more."


class Team:
    """All ranks but this one, which is the first."""

    def __init__(
        self,
        config: EngineConfig,
        arrived: Mapping[int, Arrived] = NOBODY,
        then: Callable[[], None] = lambda: None,
    ) -> None:
        """Starts those of this host; `arrived` are the others'.

        then  what is called in the end, when all ranks have been hung up on
        """
        self._then = then
        mesh = Mesh.of(config)
        self._memories = [shared_memory() for _ in range(mesh.pp)]
        self.memory = self._memories[0]
        """Of the ranks of this one's stage."""
        self._folder = private_folder("slipway-ranks-")
        self.config = config = msgspec.structs.replace(config, rank_folder=self._folder.name)
        """What the ranks are told, this one's too."""
        own = ranks_of(config, 0)
        ends = ends_of_ranks(own, mesh.tp)
        self.neighbours = neighbours(ends[0], mesh, 0)
        self._made: queue.SimpleQueue[StepOutput | None] = queue.SimpleQueue()
        """None: no more may come."""
        self._asked: dict[tuple[int, int], Future[int]] = {}
        """By rank and number."""
        self._closed = False
        self._numbers = itertools.count()
        self._cause: Exit | None = None
        self._lost = threading.Lock()
        self._found = threading.Event()
        self._told: Sequence[Callable[[], None]] = ()
        self.ranks: dict[int, Other] = {
            rank: Rank(
                msgspec.structs.replace(config, rank=rank, use_tqdm_on_load=False),
                self._memories[mesh.stage(rank)],
                mesh.name(rank).capitalize(),
                ends[rank],
            )
            for rank in own[1:]
        }
        for rank, connections in arrived.items():
            self.ranks[rank] = FarRank(connections, mesh.name(rank).capitalize())
        for rank, other in self.ranks.items():
            reads = threading.Thread(target=self._read, args=(rank, other), name=other.name, daemon=True)
            reads.start()
        beats = {rank: other.beats for rank, other in self.ranks.items()}
        self._beats = Heartbeats(beats, self._lose)

    def join_stages(self, key: bytes) -> None:
        """Connect the ranks of following stages that are on different hosts. Raises Exit."""
        config, tp = self.config, self.config.tensor_parallel_size
        far = [rank for node in range(config.nnodes) for rank in senders(config, node)]
        doorway = Doorway(config, key) if 0 in far else None
        for opened in self.ask(Open(), filter(None, far)):
            opened.result()
        own = address_of(config)
        reached = []
        for rank in far:
            address = self.ranks[rank].address if rank else None
            reached += self.ask(Reach(address or own), [rank + tp])
        for one in reached:
            one.result()
        if doorway is not None:
            self.neighbours = replace(self.neighbours, behind=doorway.wait())

    def watch(self, *told: Callable[[], None]) -> None:
        """What is called when a rank is lost: where a step waits for it, or the core for requests."""
        self._told = told

    def check(self) -> None:
        """Raises Exit where a rank has been lost, with the cause."""
        if self._cause is not None:
            raise self._cause

    def find(self) -> None:
        """A step has failed without another rank: raises Exit with the cause, where one turns up."""
        self._found.wait(FINDS)
        self.check()

    def tell(self, step: Step, ranks: Iterable[int] | None = None) -> None:
        """Have all compute it, or these. Raises Exit."""
        self.check()
        for rank in self.ranks if ranks is None else ranks:
            try:
                self.ranks[rank].link.send(step)
            except OSError:
                self._lose(rank, ENDED)
                self.check()

    def made(self) -> StepOutput | None:
        """Wait for what came of the oldest step, where another rank draws; None: `interrupt` has been called.

        Raises Exit.
        """
        output = self._made.get()
        if output is None:
            self.find()
        return output

    def interrupt(self) -> None:
        """Nobody waits for what comes of steps any more."""
        self._made.put(None)

    def ask(self, question: Question, ranks: Iterable[int] | None = None) -> list[Future[int]]:
        """Have all ranks, or these, answer. Where one is lost, the answers raise Exit."""
        futures = []
        for rank in self.ranks if ranks is None else ranks:
            number = next(self._numbers)
            future = self._asked[rank, number] = Future()
            futures.append(future)
            try:
                self.ranks[rank].link.send(Ask(number, question))
            except OSError:
                self._lose(rank, ENDED)
            if self._cause is not None:
                self._give_up()
        return futures

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._beats.close()
        with self._lost:
            self._cause = self._cause or Exit(ENGINE_DIED, "The ranks are closed.")
            self._told = ()
        for other in self.ranks.values():
            _hang_up(other)
        end = time.monotonic() + ENDS
        for other in self.ranks.values():
            other.end(max(0.0, end - time.monotonic()))
        self.neighbours.close()
        for memory in self._memories:
            os.close(memory)
        self._folder.cleanup()
        self._then()

    def _read(self, rank: int, other: Other) -> None:
        with contextlib.suppress(OSError, ValueError, msgspec.DecodeError):
            for answer in other.link:
                match answer:
                    case Made(output):
                        self._made.put(output)
                    case Answer(number) if number < 0:
                        assert answer.failure is not None, "a rank that ends says why"
                        return self._lose(rank, "", answer.failure)
                    case Answer():
                        self._answered(rank, answer)
        self._lose(rank, ENDED)

    def _answered(self, rank: int, answer: Answer) -> None:
        future = self._asked.pop((rank, answer.number), None)
        if future is None:
            return
        if answer.failure is None:
            future.set_result(answer.value)
        else:
            future.set_exception(_exit(answer.failure, self.ranks[rank].name))

    def _lose(self, rank: int, how: str, failure: Failed | None = None) -> None:
        """The first that is lost is the cause of all that comes."""
        with self._lost:
            if self._cause is None:
                other = self.ranks[rank]
                self._cause = _exit(failure, other.name) if failure else other.how_ended(how)
        self._found.set()
        self.interrupt()
        self._give_up()
        with self._lost:  # what is told of it may be gone once `close` returns
            for tell in self._told:
                tell()

    def _give_up(self) -> None:
        """Nobody waits for answers any more."""
        assert self._cause is not None
        for key in list(self._asked):
            if (future := self._asked.pop(key, None)) is not None:
                future.set_exception(self._cause)


def _hang_up(other: Other) -> None:
    """It ends by itself where its sockets do."""
    for end in (other.link.socket, other.beats):
        with contextlib.suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)


def _exit(failure: Failed, name: str) -> Exit:
    return Exit(BY_CODE[failure.code], f"{name}: {failure.message}", failure.hint, failure.argument)
