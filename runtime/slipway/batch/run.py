"""The life of a batch: read it, start an engine, ask the application every line, deliver the answers."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import sys
from collections.abc import Coroutine, Mapping
from functools import partial
from typing import Any, TypeVar

import uvloop
from starlette.applications import Starlette

from slipway import envs
from slipway.api.app import build_app
from slipway.api.configure import api_settings
from slipway.api.daemon import in_daemon
from slipway.api.engine_life import mourn, opened, warnings_of, watch
from slipway.api.frontend import Frontend
from slipway.api.listen import listen
from slipway.api.server import engines_started, explained
from slipway.api.stats_log import BatchSizeLog, StatsLog, log_lines
from slipway.args import Resolved
from slipway.args.schema import ARGUMENTS
from slipway.batch.application import batch_paths, post, state_server
from slipway.batch.files import BEGIN_ANEW, Input, Output, Written
from slipway.batch.lines import Refused, answer_line
from slipway.batch.progress import Progress
from slipway.batch.questions import Open, Questions
from slipway.begin import begin
from slipway.engine.balanced import connect
from slipway.engine.client import Client
from slipway.exits import BAD_ARGUMENTS, INTERRUPTED, Exit
from slipway.processes import STOP_SIGNALS

OPEN_FOR_EACH_SEAT = 2
"""Lines under way, over --max-num-seqs: the next ones wait in the engine, with their prompts tokenized."""

T = TypeVar("T")
logger = logging.getLogger("slipway.batch")


def run_batch(resolved: Resolved) -> int:
    """Answer every line of --input-file. Returns the exit code; the cause of a failure is on standard error
    and in the termination log."""
    return explained(lambda: _run(BatchArguments(resolved), envs.read(os.environ)))


class BatchArguments:
    """The command's arguments; those that only a server on a port has, have their defaults."""

    def __init__(self, resolved: Resolved) -> None:
        self._resolved = resolved

    def __getitem__(self, name: str, /) -> Any:
        values = self._resolved.values
        return values[name] if name in values else ARGUMENTS[name].default

    @property
    def given(self) -> frozenset[str]:
        return self._resolved.given

    def redacted(self) -> Mapping[str, Any]:
        return self._resolved.redacted()


def _run(arguments: BatchArguments, environment: envs.Environment) -> int:
    begin(arguments["log_config_file"], environment)
    sockets = listen(arguments["url"], arguments["port"], "url") if arguments["enable_metrics"] else []
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(Batch(arguments, environment, sockets).run())


class Batch:
    """One run over one file. `run` is its whole life."""

    def __init__(
        self, arguments: BatchArguments, environment: envs.Environment, sockets: list[socket.socket]
    ) -> None:
        self._arguments = arguments
        self._environment = environment
        self._sockets = sockets
        self._first_signal = asyncio.Event()
        self._second_signal = asyncio.Event()
        self._background: list[asyncio.Task[Any]] = []
        self._turn = asyncio.Lock()
        self._source: Input
        self._output: Output
        self._progress: Progress
        self._app: Starlette
        self._questions: Questions | None = None

    async def run(self) -> int:
        """Returns 0 when every line is answered. Raises Exit for every other end."""
        loop = asyncio.get_running_loop()
        for number in STOP_SIGNALS:
            loop.add_signal_handler(number, self._take_signal)
        early = Exit(INTERRUPTED, "The batch was interrupted before its first line.")
        written = await self._unless_signalled(in_daemon(self._read), early)
        self._progress = Progress(self._source.num_requests, written.count)
        try:
            if self._progress.done < self._progress.total:
                await self._answer_rest(written)
            late = Exit(INTERRUPTED, f"The upload to {self._output.shown} was interrupted.")
            await self._unless_signalled(in_daemon(self._output.deliver), late)
        finally:
            self._output.close()
        print(f"All {self._progress.total:,} lines are answered in {self._output.shown}.", file=sys.stderr)
        return 0

    def _read(self) -> Written:
        """What is to be done: reads the input once, and the output as far as it is there."""
        self._source = Input(self._arguments["input_file"])
        self._output = Output(self._arguments["output_file"], self._arguments["output_tmp_dir"])
        if os.path.samestat(self._source.status, self._output.status):
            message = f"--output-file {self._output.shown} is the input itself."
            raise Exit(BAD_ARGUMENTS, message, "Name another file.", "output_file")
        self._source.read()
        return self._output.resume(self._source)

    async def _answer_rest(self, written: Written) -> None:
        """Raises Exit where that does not come to its end."""
        try:
            await self._with_engine(written)
        finally:
            if self._questions is not None:
                print(self._progress.summary(), file=sys.stderr)
        if self._progress.done < self._progress.total:
            raise self._interrupted()

    async def _with_engine(self, written: Written) -> None:
        with engines_started(self._arguments, self._environment) as engines:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)
            addresses = [engine.address for engine in engines]
            client = connect(addresses, engines, by_prefix=self._arguments["enable_prefix_caching"])
            front = Frontend(api_settings(self._arguments, self._environment), client)
            try:
                await self._live(front, client, written)
            finally:
                front.admission.phase = "closed"
                for task in self._background:
                    task.cancel()
                await asyncio.gather(*self._background, return_exceptions=True)
                front.close()
                await asyncio.gather(client.close(), front.flush())

    async def _live(self, front: Frontend, client: Client, written: Written) -> None:
        """Until all lines are answered or a signal has been obeyed. Raises Exit for a failure."""
        stats, sizes = StatsLog(), BatchSizeLog()

        def on_stats(rank: int, news: Any) -> None:
            front.on_stats(rank, news)
            stats.add(rank, news)
            sizes.add(news)

        self._start(client.run(on_stats=on_stats))
        if not front.settings.disable_log_stats:
            self._start(log_lines(stats.line))
        if front.settings.batch_size_interval:
            self._start(log_lines(sizes.line, front.settings.batch_size_interval))
        if self._sockets:
            self._start(state_server(front).serve(sockets=self._sockets))
        self._app = build_app(front, self._arguments)
        answering = self._start(self._answer_all(front, written))
        signalled = self._start(self._first_signal.wait())
        endings = [answering, self._start(watch(front)), self._start(mourn(client))]
        await asyncio.wait([signalled, *endings], return_when=asyncio.FIRST_COMPLETED)
        if signalled.done() and self._questions is not None:
            self._questions.stop()
            seconds = front.settings.drain_timeout
            logger.info("%d lines are under way and may end within %g s.", self._questions.num_open, seconds)
            hurry = self._start(self._second_signal.wait())
            await asyncio.wait([hurry, *endings], timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        for task in endings:
            if task.done():
                task.result()

    async def _answer_all(self, front: Frontend, written: Written) -> None:
        for warning in warnings_of(front, *await opened(front)):
            logger.warning("%s", warning)
        self._progress.begin()
        self._start(self._progress.show())
        self._start(self._output.keep_synced())
        self._questions = Questions(self._source, written.answered, batch_paths(self._app))
        left = self._progress.total - self._progress.done
        seats = min(left, OPEN_FOR_EACH_SEAT * self._arguments["max_num_seqs"])
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(seats):
                    group.create_task(self._answer_some(front, self._questions))
        except ExceptionGroup as failures:
            raise failures.exceptions[0] from None

    async def _answer_some(self, front: Frontend, questions: Questions) -> None:
        while (taken := await questions.take()) is not None:
            status, name, body = await self._answer(front, taken)
            await self._append(answer_line(taken.line, name, status, body))
            self._progress.add(status, body)
            questions.give_back(taken)

    async def _append(self, line: bytes) -> None:
        if self._output.resumable:
            self._output.append(line)
            return
        async with self._turn:  # who reads a pipe may take no more for long
            await in_daemon(partial(self._output.append, line))

    async def _answer(self, front: Frontend, taken: Open) -> tuple[int, str | None, dict[str, Any]]:
        asks = taken.asks
        if isinstance(asks, Refused):
            return 400, asks.custom_id, asks.body
        status, body = await post(self._app, asks.path, asks.body, taken.line.answer_id)
        if (task := asyncio.current_task()) is not None and task.cancelling():
            raise asyncio.CancelledError  # which the application may have made a 500 of
        if status >= 500 and front.admission.cause is not None:
            await asyncio.Event().wait()  # no answer: `mourn` ends the run, and the next one asks again
        return status, asks.custom_id, body

    def _start(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = asyncio.create_task(work)
        self._background.append(task)
        return task

    def _take_signal(self) -> None:
        (self._second_signal if self._first_signal.is_set() else self._first_signal).set()

    async def _unless_signalled(self, work: Coroutine[Any, Any, T], otherwise: Exit) -> T:
        working = asyncio.create_task(work)
        signalled = asyncio.create_task(self._first_signal.wait())
        await asyncio.wait([working, signalled], return_when=asyncio.FIRST_COMPLETED)
        signalled.cancel()
        if working.done():
            return working.result()
        working.cancel()
        raise otherwise

    def _interrupted(self) -> Exit:
        progress = self._progress
        message = f"The batch was interrupted: {progress.done:,} of {progress.total:,} lines are answered"
        if self._output.resumable:
            return Exit(INTERRUPTED, f"{message} in {self._output.path}.")
        return Exit(INTERRUPTED, f"{message}.", BEGIN_ANEW)
