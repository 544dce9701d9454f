"""The parent of several API processes: starts them and the engine, passes signals on, ends with one cause.

It takes no connection and imports little. The processes serve on the sockets that it opened, so that one of
them can be killed while the others take what comes.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import subprocess
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from slipway.api.configure import Settings
from slipway.api.group import (
    Group,
    Membership,
    Obey,
    Opened,
    Word,
    as_exit,
    group_memory,
    hear,
    say,
    show_opening,
)
from slipway.args import Resolved
from slipway.engine.balanced import connect
from slipway.engine.launch import Launched
from slipway.engine.messages import Failed
from slipway.exits import INTERNAL_ERROR, WORKER_KILLED, Exit, signal_name
from slipway.processes import STOP_SIGNALS, start_module

MAX_LOST = 5
SECONDS_OF_LOSSES = 60.0
"""A server that loses more processes than that in this time ends."""
PATIENCE_SECONDS = 5.0
"""For a process to end after the time that it was given."""

logger = logging.getLogger("slipway.api")


def run(
    arguments: Resolved, settings: Settings, engines: Sequence[Launched], sockets: list[socket.socket]
) -> int:
    """Serve on `sockets` until a signal ends it; returns the exit code. Raises Exit for a failure."""
    with asyncio.Runner() as runner:
        return runner.run(Supervisor(arguments, settings, engines, sockets).run())


@dataclass(eq=False, slots=True)
class ApiProcess:
    """One child."""

    told: Membership
    process: subprocess.Popen[bytes]
    line: socket.socket
    """Ends when it does."""
    opened: bool = False
    failure: Failed | None = None
    """Why it ends, where it said so."""


class Supervisor:
    """One server. `run` is its whole life."""

    def __init__(
        self,
        arguments: Resolved,
        settings: Settings,
        engines: Sequence[Launched],
        sockets: list[socket.socket],
    ) -> None:
        self._arguments = arguments
        self._settings = settings
        self._sockets = sockets
        self._engines = [engine.address for engine in engines]
        self._client = connect(self._engines, engines)
        """For the engines' last words alone."""
        self._count: int = arguments["api_server_count"]
        self._memory = group_memory(self._count)
        self._metrics_folder = os.path.join(engines[0].folder, "metrics")
        os.mkdir(self._metrics_folder)
        self._group = Group.shared(self._memory, 0, self._metrics_folder)
        self._processes: list[ApiProcess] = []
        self._num_started = 0
        self._greeted = False
        self._lost: deque[float] = deque(maxlen=MAX_LOST + 1)
        self._leaving = False
        self._cause: Exit | None = None
        self._status = 0
        self._all_ended = asyncio.Event()

    async def run(self) -> int:
        loop = asyncio.get_running_loop()
        for number in STOP_SIGNALS:
            loop.add_signal_handler(number, self._take_signal, number)
        watching = [
            asyncio.create_task(self._client.run(on_stats=lambda rank, stats: None)),
            asyncio.create_task(self._mourn()),
        ]
        try:
            for index in range(self._count):
                self._begin(index)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)
            await self._all_ended.wait()
        finally:
            self._kill_the_rest()
            for task in watching:
                task.cancel()
            await asyncio.gather(*watching, return_exceptions=True)
            await self._client.close()
        if self._cause is not None:
            raise self._cause
        return self._status

    def _begin(self, index: int, *, replaces: bool = False) -> None:
        self._num_started += 1
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        told = Membership(
            arguments=self._arguments,
            index=index,
            client_id=self._num_started,
            replaces=replaces,
            engines=self._engines,
            metrics_folder=self._metrics_folder,
        )
        listening = [opened.fileno() for opened in self._sockets]
        with theirs:
            process = start_module("slipway.api", told, (theirs.fileno(), self._memory, *listening))
        child = ApiProcess(told, process, ours)
        self._processes.append(child)
        asyncio.get_running_loop().add_reader(ours, self._hear, child)

    def _hear(self, child: ApiProcess) -> None:
        with contextlib.suppress(BlockingIOError):
            match hear(child.line):
                case Opened(warnings, greeting):
                    child.opened = True
                    if not self._greeted and all(process.opened for process in self._processes):
                        self._greeted = True
                        show_opening(warnings, greeting)
                case Failed() as failure:
                    child.failure = failure
                    if child.opened or not child.told.replaces:
                        self._fail(failure)
                case None:
                    self._bury(child)

    def _bury(self, child: ApiProcess) -> None:
        asyncio.get_running_loop().remove_reader(child.line)
        child.line.close()
        status = child.process.wait()
        self._processes.remove(child)
        self._group.clear(child.told.index)
        if self._leaving or self._cause is not None:
            self._status = max(self._status, status if status >= 0 else 128 - status)
        else:
            self._replace(child, status)
        if not self._processes:
            self._all_ended.set()

    def _replace(self, child: ApiProcess, status: int) -> None:
        """Start another in its place, unless too many have been lost lately."""
        how = f"was killed by {signal_name(-status)}" if status < 0 else f"ended with status {status}"
        lost = f"API process {child.told.index} {how}"
        self._lost.append(time.monotonic())
        if len(self._lost) <= MAX_LOST or self._lost[-1] - self._lost[0] > SECONDS_OF_LOSSES:
            logger.error("%s; its requests are lost, and another takes its place.", lost)
            self._begin(child.told.index, replaces=True)
            return
        code = WORKER_KILLED if status < 0 else INTERNAL_ERROR
        message = f"{lost}, the {len(self._lost)}th that was lost within {SECONDS_OF_LOSSES:.0f} s."
        self._fail(child.failure or Failed(code.code, code.reason, message, code.hint))

    async def _mourn(self) -> None:
        self._fail(await self._client.wait_dead())

    def _take_signal(self, number: signal.Signals) -> None:
        again, self._leaving = self._leaving, True
        settings = self._settings
        time_given = 0.0 if again else settings.drain_grace + settings.drain_timeout
        self._end(Obey(number), time_given + PATIENCE_SECONDS)

    def _fail(self, failure: Failed) -> None:
        """End with this cause; the first one counts."""
        if self._cause is None:
            self._cause = as_exit(failure)
            self._cause.tell()
            self._end(failure, None if self._settings.stay_after_death else PATIENCE_SECONDS)

    def _end(self, word: Word, seconds: float | None) -> None:
        """Have all processes end, and see to it after `seconds`. Nobody takes the place of one any more, and
        who of them listens last is the last to listen."""
        for opened in self._sockets:
            opened.close()
        for child in self._processes:
            say(child.line, word)
        if seconds is not None:
            asyncio.get_running_loop().call_later(seconds, self._kill_the_rest)

    def _kill_the_rest(self) -> None:
        for child in self._processes:
            child.process.kill()
