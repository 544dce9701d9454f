"""The life of the server: loading, serving, draining, and every way in which it ends."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
from collections.abc import Coroutine, Sequence
from typing import Any

import uvicorn
import uvloop

from slipway.api import tls
from slipway.api.app import build_app
from slipway.api.configure import Arguments, Settings
from slipway.api.connections import KEEP_ALIVE_SECONDS, LINGER_SECONDS, Connection, HttpServer, Limits
from slipway.api.engine_life import mourn, opened, warnings_of, watch
from slipway.api.frontend import Frontend
from slipway.api.greeting import greeting
from slipway.api.group import Group, as_failed, show_opening
from slipway.api.listen import room_for
from slipway.api.sharing import AcceptingServer
from slipway.api.stats_log import BatchSizeLog, StatsLog, log_lines
from slipway.engine.balanced import connect
from slipway.engine.client import Client
from slipway.engine.launch import Launched
from slipway.exits import TLS_FILES_BAD, Exit
from slipway.processes import STOP_SIGNALS

SICK_SECONDS = 1.5
"""How long /live says 503 before a failed server ends, so that a probe can see it."""
STOP_SECONDS = 1
"""For connections and the engine to close at the end."""

logger = logging.getLogger("slipway.api")


def run(
    arguments: Arguments, settings: Settings, engines: Sequence[Launched], sockets: list[socket.socket]
) -> int:
    """Serve on `sockets` until a signal ends it; returns the exit code. Raises Exit for a failure."""
    addresses = [engine.address for engine in engines]
    client = connect(addresses, engines, by_prefix=arguments["enable_prefix_caching"])
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(Lifecycle(arguments, settings, client, sockets).run())


class Lifecycle:
    """One server. `run` is its whole life."""

    def __init__(
        self,
        arguments: Arguments,
        settings: Settings,
        engine: Client,
        sockets: list[socket.socket],
        group: Group | None = None,
    ) -> None:
        self._arguments = arguments
        self._settings = settings
        self._engine = engine
        self._sockets = sockets
        self._front = Frontend(settings, engine, group)
        self._signals: list[signal.Signals] = []
        self._first_signal = asyncio.Event()
        self._second_signal = asyncio.Event()
        self._background: list[asyncio.Task[Any]] = []

    async def run(self) -> int:
        self._listen_for_signals()
        try:
            http = http_server(self._front, self._arguments)
            self._refresh_tls(http)
            serving = asyncio.create_task(self._serve(http))
            try:
                return await self._live(http)
            finally:
                self._front.admission.phase = "closed"
                http.should_exit = True
                if not http.started:
                    serving.cancel()
                await asyncio.wait([serving], timeout=2 * STOP_SECONDS)
        finally:
            for task in self._background:
                task.cancel()
            await asyncio.gather(*self._background, return_exceptions=True)
            self._front.close()
            await asyncio.gather(self._engine.close(), self._front.flush())

    def _listen_for_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for number in STOP_SIGNALS:
            loop.add_signal_handler(number, self._take_signal, number)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)

    async def _serve(self, http: HttpServer) -> None:
        await http.serve(sockets=self._sockets)

    def _take_signal(self, number: signal.Signals) -> None:
        self._signals.append(number)
        (self._second_signal if self._first_signal.is_set() else self._first_signal).set()

    async def _live(self, http: HttpServer) -> int:
        """Until a signal has been obeyed. Raises Exit for a failure."""
        stats, sizes = StatsLog(), BatchSizeLog()

        def on_stats(rank: int, news: Any) -> None:
            self._front.on_stats(rank, news)
            stats.add(rank, news)
            sizes.add(news)

        self._start(self._engine.run(on_stats=on_stats))
        if not self._settings.disable_log_stats:
            self._start(log_lines(stats.line))
        if self._settings.batch_size_interval:
            self._start(log_lines(sizes.line, self._settings.batch_size_interval))
        signalled = self._start(self._first_signal.wait())
        endings = [signalled, *map(self._start, self._endings())]
        try:
            while not signalled.done():
                done, _ = await asyncio.wait(endings, return_when=asyncio.FIRST_COMPLETED)
                for task in done - {signalled}:
                    task.result()  # raises the failure
                    endings.remove(task)
            return await self._drain(http, endings[1:])
        except Exit as cause:
            await self._show_failure(cause)
            raise

    def _endings(self) -> list[Coroutine[Any, Any, Any]]:
        """What raises Exit where the server can go on no more."""
        return [self._open(), watch(self._front), mourn(self._engine)]

    def _start(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = asyncio.create_task(work)
        self._background.append(task)
        return task

    async def _open(self) -> None:
        """Begin to serve, and say so."""
        texts, ready = await opened(self._front)
        self._start(self._front.measure_memory())
        warnings = warnings_of(self._front, texts, ready)
        self._announce(warnings, greeting(self._arguments, self._settings, texts, ready))

    def _announce(self, warnings: list[str], greeting: str) -> None:
        """Say to whoever watches that the server is open."""
        show_opening(warnings, greeting)

    def _refresh_tls(self, http: HttpServer) -> None:
        if http.config.ssl is not None and self._arguments["enable_ssl_refresh"]:
            self._start(tls.refresh(http.config))

    async def _show_failure(self, cause: Exit) -> None:
        """Let probes see that the server is sick before it ends, or for as long as someone wants to look."""
        self._tell(cause)
        self._front.admission.failure = as_failed(cause)
        stays = self._settings.stay_after_death
        if stays:
            logger.critical("VLLM_KEEP_ALIVE_ON_ENGINE_DEATH keeps the process; a signal ends it.")
        next_signal = self._second_signal if self._first_signal.is_set() else self._first_signal
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(None if stays else SICK_SECONDS):
                await next_signal.wait()

    def _tell(self, cause: Exit) -> None:
        """Say to whoever started the server why it ends."""
        cause.tell()

    async def _drain(self, http: HttpServer, failures: list[asyncio.Task[Any]]) -> int:
        """Serve on for the grace, then let open requests end; a second signal cuts it short.

        Ctrl-C has no grace, and nothing at rest is waited for: no balancer stands before a terminal.
        Raises Exit where the engine fails.
        """
        admission = self._front.admission
        if not admission.loaded:
            return 0
        admission.phase = "draining"
        terminal = self._signals[0] == signal.SIGINT
        grace, linger = (0.0, 0.0) if terminal else (self._settings.drain_grace, LINGER_SECONDS)
        logger.info("Draining: %d requests are open.", admission.num_open)
        hurry = self._start(self._second_signal.wait())
        watched = [hurry, *failures]
        await asyncio.wait(watched, timeout=grace, return_when=asyncio.FIRST_COMPLETED)
        empty = self._start(self._empty(http, linger))
        await asyncio.wait(
            [empty, *watched],
            timeout=self._settings.drain_timeout,
            return_when=asyncio.FIRST_COMPLETED,
        )
        for task in (*failures, empty):
            if task.done():
                task.result()
        if hurry.done():
            return 128 + self._signals[1]
        if admission.num_open:
            logger.warning("%d requests were cut by --drain-timeout.", admission.num_open)
        return 0

    async def _empty(self, http: HttpServer, linger: float) -> None:
        """Until no connection is left, and no request either, whose work ends after its last byte."""
        await http.take_leave(linger)
        await self._front.admission.wait_idle()


def http_server(front: Frontend, arguments: Arguments) -> HttpServer:
    """Raises Exit where the TLS files or a middleware cannot be used."""
    config = uvicorn.Config(
        build_app(front, arguments),
        loop="none",
        http=Connection,
        lifespan="off",
        ws="none",
        log_config=None,
        log_level=arguments["uvicorn_log_level"],
        access_log=not arguments["disable_uvicorn_access_log"],
        server_header=False,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=STOP_SECONDS,
        ssl_keyfile=arguments["ssl_keyfile"],
        ssl_certfile=arguments["ssl_certfile"],
        ssl_ca_certs=arguments["ssl_ca_certs"],
        ssl_cert_reqs=arguments["ssl_cert_reqs"],
    )
    try:
        config.load()
    except OSError as error:  # ssl.SSLError is one
        message = f"The TLS files cannot be used: {error}."
        raise Exit(TLS_FILES_BAD, message, argument="ssl_certfile") from None
    limits = Limits(connections=room_for(Limits().connections))
    group = front.admission.group
    if group.alone and config.ssl is None:
        return HttpServer(config, limits)
    return AcceptingServer(config, limits, group)
