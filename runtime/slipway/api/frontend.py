"""What the routes share: the engine, the model once it is there, and who may enter."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from starlette.datastructures import Headers
from starlette.requests import Request

from slipway.api.adapters import Adapters, ServedAdapter
from slipway.api.admission import LONG_BODY_BYTES, SHORT_BODY_BYTES, Admission, Bodies
from slipway.api.beam import BeamRun
from slipway.api.configure import Settings
from slipway.api.errors import ApiError
from slipway.api.generate import Order, Run
from slipway.api.grammars import GrammarChecks
from slipway.api.group import Group
from slipway.api.idle_check import IdleCheck
from slipway.api.memory import MemoryReport
from slipway.api.model import ServedModel, served_model
from slipway.api.pooled_run import PooledRun
from slipway.api.request_log import RequestLog
from slipway.api.response_store import ResponseStore
from slipway.api.seeds import Seeds
from slipway.api.structured import say_whose_work_it_is
from slipway.api.texts import Texts
from slipway.api.unknown_fields import UnknownFields
from slipway.engine.client import Client
from slipway.engine.messages import Ready, Stats
from slipway.metrics.declared import CACHE_LABELS
from slipway.metrics.registry import ServerMetrics

if TYPE_CHECKING:
    from slipway.api.tracing import Tracer

TEXT_THREADS = 2
"""Tokenizing lets go of the interpreter's lock, rendering does not; more threads gain nothing."""
MAX_REQUEST_ID = 128
NAMES_SHOWN = 16
"""Of models, in an error."""

T = TypeVar("T")
AnyRun = TypeVar("AnyRun", bound=Run)


class Frontend:
    """One per API process. `model` and `metrics` are there once it is open."""

    def __init__(self, settings: Settings, engine: Client, group: Group | None = None) -> None:
        self.settings = settings
        self.engine = engine
        self.admission = Admission(
            engine,
            max_concurrency=settings.max_concurrency,
            max_queued=settings.max_num_queued_reqs,
            group=group,
            idle_check=IdleCheck(engine, settings.idle_check_interval),
        )
        self.memory = MemoryReport(engine, processes=settings.api_server_count)
        self.bodies = Bodies()
        self.adapters = Adapters(settings, engine)
        self.seeds = Seeds(settings.seed, self.admission.group.next_arrival)
        self.created = int(time.time())
        self.responses = ResponseStore() if settings.response_store else None
        """Those of /v1/responses; None where none are stored."""
        logs_prompts = settings.enable_log_requests and not settings.disable_log_requests
        logs_outputs = logs_prompts and settings.enable_log_outputs
        self.log = RequestLog(logs_prompts, settings.max_log_len, outputs=logs_outputs)
        self.unknown_fields = UnknownFields(strict=settings.strict_requests)
        self.metrics: ServerMetrics | None = None
        self._tracer = _tracer(settings)
        self._model: ServedModel | None = None
        self._grammars: GrammarChecks | None = None
        self._threads = ThreadPoolExecutor(TEXT_THREADS, thread_name_prefix="text")
        self._long_texts = ThreadPoolExecutor(1, thread_name_prefix="long-text")

    def open(self, texts: Texts, ready: Ready) -> None:
        """Begin to admit requests."""
        self._model = served_model(texts, ready)
        self._grammars = GrammarChecks(self._model)
        say_whose_work_it_is(self.settings.guided_decoding_backend)
        self.metrics = ServerMetrics(
            self.settings.name,
            ready.max_model_len,
            self.settings.show_hidden_metrics_for_version,
            self.admission.group.metrics_folder,
            max_loras=self.settings.max_loras,
            ranks=self.engine.ranks,
        )
        for engine in self.metrics.of.values():
            engine.record_startup(ready.startup_seconds)
            engine.record_cache(_cache(self.settings, ready))
        self.bodies.make_room(max(ready.max_model_len, ready.max_stretched_len), ready.hidden_size)
        self.admission.open()

    async def measure_memory(self) -> None:
        """Once it is open: what the server takes at rest."""
        await self.memory.measure()
        shown = self.memory.shown
        if shown is not None and self.metrics is not None:
            self.metrics.of[self.engine.ranks[0]].record_memory(
                shown.at_rest, shown.estimated, shown.measured or None
            )

    def close(self) -> None:
        for threads in (self._threads, self._long_texts):
            threads.shutdown(wait=False, cancel_futures=True)
        if self._grammars is not None:
            self._grammars.close()

    async def flush(self) -> None:
        """Send what is left of traces, in a thread."""
        if self._tracer is not None:
            await asyncio.to_thread(self._tracer.close)

    def on_stats(self, rank: int, stats: Stats) -> None:
        if self.metrics is not None:
            self.metrics.of[rank].record_step(stats)

    @property
    def model(self) -> ServedModel:
        """Raises ApiError 503 while it is loading."""
        if self._model is None:
            self.admission.check()
        assert self._model is not None
        return self._model

    @property
    def grammars(self) -> GrammarChecks:
        """There with the model."""
        assert self._grammars is not None
        return self._grammars

    def check_name(self, name: str | None) -> ServedAdapter | None:
        """The adapter that it names, if any; no name means the model. Raises ApiError 404 for what is not
        served."""
        return self.check_exists(name) if name else None

    def check_exists(self, name: str) -> ServedAdapter | None:
        """The adapter of that name; None for the model itself. Raises ApiError 404 for what is neither, such
        as the empty one."""
        adapter = self.adapters.get(name)
        if adapter is None and name not in self.settings.served_names:
            names = [*self.settings.served_names, *(one.ref.name for one in self.adapters)]
            more = f" and {len(names) - NAMES_SHOWN} more" if len(names) > NAMES_SHOWN else ""
            raise ApiError(
                f"The model `{name}` does not exist. This server has {', '.join(names[:NAMES_SHOWN])}{more}.",
                status=404,
                param="model",
                code="model_not_found",
            )
        return adapter

    async def in_thread(self, work: Callable[[], T], num_bytes: int) -> T:
        """Run what would hold up the event loop, on a text of that length: long ones wait for one another,
        not the others for them."""
        threads = self._long_texts if num_bytes > LONG_BODY_BYTES else self._threads
        return await asyncio.get_running_loop().run_in_executor(threads, work)

    async def prepare(
        self, name: str | None, make: Callable[[ServedModel], Order], num_bytes: int, *, quick: bool
    ) -> Order:
        """An order to the model of that name, made and logged, of a body as long; in a thread unless that is
        short and `quick`.

        It is made again where the name has come to another adapter meanwhile, whose tokens may be others.
        Raises ApiError.
        """

        def made(model: ServedModel) -> Order:
            order = make(model)
            self.log.begun(order)
            return order

        while True:
            adapter = self.check_name(name)
            work = partial(made, self.model.named(adapter))
            short = quick and num_bytes <= SHORT_BODY_BYTES
            order = work() if short else await self.in_thread(work, num_bytes)
            if order.grammar is not None:
                await self.grammars.check(order.grammar)
            if self.adapters.get(name) is adapter:
                return order

    def submit(self, order: Order, name: str | None, arrival: float, headers: Headers) -> Run:
        """Start an order that was just prepared for the model of that name, of a request that came at
        `arrival`. Raises ApiError 503 where the engine has gone."""
        return self._started(Run if order.beams is None else BeamRun, order, name, arrival, headers)

    def pool(self, order: Order, name: str | None, arrival: float, headers: Headers) -> PooledRun:
        """The same of an order of prompts that pool."""
        return self._started(PooledRun, order, name, arrival, headers)

    def _started(
        self, kind: type[AnyRun], order: Order, name: str | None, arrival: float, headers: Headers
    ) -> AnyRun:
        assert self.metrics is not None
        served = self.check_name(name)
        adapter = served.ref if served else None
        model = adapter.name if adapter else self.settings.name
        run = kind(order, self.engine, self.metrics, arrival, model, adapter)
        run.stream_interval = self.settings.stream_interval
        self.log.follow(run)
        if self._tracer is not None:
            run.ends.append(self._tracer.recorder(headers))
        run.start()
        run.ends.append(self.log.ended)
        if adapter is not None and order.beams is not None:  # it asks for the adapter with each token
            let_go = self.adapters.hold(adapter)
            run.ends.append(lambda _: let_go())
        return run


def _tracer(settings: Settings) -> Tracer | None:
    """Where traces are asked for: only then are the packages imported that send them."""
    if not settings.otlp_traces_endpoint:
        return None
    from slipway.api.tracing import Tracer

    return Tracer(settings.otlp_traces_endpoint, settings.detailed_traces)


def _cache(settings: Settings, ready: Ready) -> dict[str, object]:
    """The labels of `vllm:cache_config_info`: as the arguments say, and as the engine made of them."""
    same = {name: settings.shown_arguments[name] for name in CACHE_LABELS if name in settings.shown_arguments}
    return same | {
        "block_size": ready.block_size,
        "cache_dtype": settings.shown_arguments["kv_cache_dtype"],
        "num_gpu_blocks": ready.num_blocks,
    }


def frontend(request: Request) -> Frontend:
    front: Frontend = request.app.state.frontend
    return front


def request_id(request: Request, prefix: str, asked: str | None = None) -> str:
    """The prefix and an id: from the body, the X-Request-Id header or drawn."""
    asked = asked or clean_id(request.headers.get("x-request-id"))
    return prefix + asked if asked else drawn_id(prefix)


def drawn_id(prefix: str) -> str:
    return prefix + uuid.uuid4().hex


def clean_id(header: str | None) -> str | None:
    """A client's request id, where it is fit for a log line and a header."""
    if header and len(header) <= MAX_REQUEST_ID and header.isascii() and header.isprintable():
        return header
    return None
