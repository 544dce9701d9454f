"""One of several API processes in front of one engine: a server's life, led by its parent's word."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Coroutine
from concurrent.futures import Future
from itertools import repeat
from socket import socket
from typing import Any

import uvloop

from slipway import envs
from slipway.api.configure import api_settings
from slipway.api.connections import HttpServer
from slipway.api.group import Group, Membership, Obey, Opened, as_exit, as_failed, hear, say
from slipway.api.lifecycle import Lifecycle
from slipway.begin import begin
from slipway.engine.balanced import connect
from slipway.engine.messages import Failed
from slipway.exits import BY_CODE, ENGINE_DIED, INTERNAL_ERROR, Exit, ExitCode
from slipway.metrics.registry import share

PATIENCE_SECONDS = 10
"""For the parent to say how the engine ended."""
SECONDS_BETWEEN_ENTRIES = 1.0
"""How old what another process counts may be in a scrape of this one."""


def run(told: Membership, line: socket, memory: int, sockets: list[socket]) -> int:
    """Serve on `sockets` until the parent ends it; returns the exit code. Raises Exit for a failure."""
    environment = envs.read(os.environ)
    begin(told.arguments["log_config_file"], environment, f"[api {told.index}] ")
    share(told.metrics_folder, told.index)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        life = ProcessLife(told, Parent(line), memory, sockets, environment)
        return runner.run(life.run())


class Parent:
    """What started this process and the engine, and knows how that ended."""

    def __init__(self, line: socket) -> None:
        line.setblocking(False)
        self.line = line
        self.failure: Future[Failed] = Future()
        """Why the server ends, once the parent has said it."""

    def post_mortem(self) -> tuple[str, ExitCode]:
        try:
            failure = self.failure.result(PATIENCE_SECONDS)
        except TimeoutError:
            return ENGINE_DIED.message, ENGINE_DIED
        return failure.message, BY_CODE.get(failure.code, INTERNAL_ERROR)

    def stop(self, patience: float) -> None:
        """It is not ours to end."""


class ProcessLife(Lifecycle):
    """`run` is the whole life of this process."""

    def __init__(
        self,
        told: Membership,
        parent: Parent,
        memory: int,
        sockets: list[socket],
        environment: envs.Environment,
    ) -> None:
        super().__init__(
            told.arguments,
            api_settings(told.arguments, environment),
            connect(
                told.engines,
                repeat(parent, len(told.engines)),
                client_id=told.client_id,
                by_prefix=told.arguments["enable_prefix_caching"],
            ),
            sockets,
            Group.shared(memory, told.index, told.metrics_folder),
        )
        self._told = told
        self._parent = parent
        self._opened = asyncio.Event()

    def _listen_for_signals(self) -> None:
        """From the parent alone: a terminal and systemd send theirs to every process."""
        asyncio.get_running_loop().add_reader(self._parent.line, self._hear)

    def _hear(self) -> None:
        with contextlib.suppress(BlockingIOError):
            match hear(self._parent.line):
                case Obey(number):
                    self._take_signal(signal.Signals(number))
                case Failed() as failure if not self._parent.failure.done():
                    self._parent.failure.set_result(failure)
                case None:
                    signal.raise_signal(signal.SIGKILL)  # as the kernel does where it is faster

    async def _serve(self, http: HttpServer) -> None:
        if self._told.replaces:
            await self._opened.wait()
        await super()._serve(http)

    def _endings(self) -> list[Coroutine[Any, Any, Any]]:
        return [*super()._endings(), self._end_with_the_others()]

    async def _end_with_the_others(self) -> None:
        """Raises Exit when the server ends for a cause that this process need not know of."""
        raise as_exit(await asyncio.wrap_future(self._parent.failure))

    def _announce(self, warnings: list[str], greeting: str) -> None:
        self._opened.set()
        self._start(self._share_metrics())
        say(self._parent.line, Opened(warnings, greeting))

    async def _share_metrics(self) -> None:
        """Never returns."""
        assert self._front.metrics is not None
        while True:
            await asyncio.sleep(SECONDS_BETWEEN_ENTRIES)
            self._front.metrics.enter()

    def _tell(self, cause: Exit) -> None:
        say(self._parent.line, as_failed(cause))
