"""From a configuration to a serving core: load, size the KV cache, warm up, run."""

from __future__ import annotations

import ctypes
import gc
import logging
import signal
import socket
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from slipway.engine.config import EngineConfig
from slipway.engine.core import EngineCore
from slipway.engine.executor import InTurn, Overlapped, Worker
from slipway.engine.kv_cache import KVCache
from slipway.engine.machine import available_memory, usable_cpus
from slipway.engine.messages import Failed, Loading, Ready
from slipway.engine.page_pool import PagePool
from slipway.engine.record import RecordingWorker
from slipway.engine.scheduler import Scheduler, SchedulerLimits
from slipway.engine.wire import Hub
from slipway.exits import BY_REASON, INTERNAL_ERROR, KV_CACHE_TOO_SMALL, OUT_OF_MEMORY, Exit
from slipway.load.errors import LoadError
from slipway.load.folder import stored_bytes
from slipway_kernels.cpu import reserved

if TYPE_CHECKING:
    from slipway.model.build import ModelPlan
    from slipway.worker.cpu import CpuWorker

log = logging.getLogger("slipway.engine")

CPU_TOKEN_BUDGET = 256
"""Products reach full rate from M = 128 on; a longer step only delays running streams."""

_PR_SET_PDEATHSIG = 1


def die_with_parent() -> None:
    """Have the kernel kill this process when its parent ends, also in the middle of a long step."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def run_engine(config: EngineConfig, listener: socket.socket, parent: int) -> int:
    """Serve until `parent` ends. Returns the exit status; what went wrong has been told to the clients."""
    logging.basicConfig(level=config.log_level.upper(), format="%(levelname)s %(name)s: %(message)s")
    hub = Hub(listener, parent)
    try:
        start = Start(config, hub)
        worker = start.worker()
        core = start.core(worker)
        gc.freeze()  # what loading left lives as long as we: a full collection over it takes 100 ms
        hub.broadcast(start.ready(), greet=True)
        core.run()
    except Exception as error:
        failure = describe(error)
        if failure.code == INTERNAL_ERROR.code:
            log.exception("the engine failed")
        hub.broadcast(failure, greet=True)
        hub.wait_flushed(seconds=10)
        return failure.code
    finally:
        hub.close()
    return 0


def describe(error: Exception) -> Failed:
    """What clients are told of an exception that ends the engine."""
    if isinstance(error, LoadError):
        error = Exit(BY_REASON[error.code], error.message, error.hint, error.argument or "")
    elif isinstance(error, MemoryError):
        error = Exit(OUT_OF_MEMORY, str(error))
    elif not isinstance(error, Exit):
        error = Exit(INTERNAL_ERROR, f"{type(error).__name__}: {error}")
    code = error.exit_code
    return Failed(code.code, code.reason, error.message, error.hint, error.argument)


@dataclass(frozen=True, slots=True)
class CacheSize:
    """Pages of the pool, and the context length that they allow."""

    num_pages: int
    max_model_len: int
    warning: str = ""


@dataclass
class Start:
    """The phases of a start, each timed; `worker` and `core` build what serves."""

    config: EngineConfig
    hub: Hub | None = None
    seconds: dict[str, float] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    _told: float = 0.0

    def worker(self) -> Worker:
        """Read the model, allocate its state, compute one token. Raises LoadError and Exit."""
        config = self.config
        self.progress("load", 0, 0)
        with reserved(stored_bytes(config.model)):
            worker = self._load(config)
        self.idle = worker.idle
        begun = time.monotonic()
        self.progress("warmup", 0, 1)
        worker.warm_up()
        self._time("warmup", begun)
        for warning in self.warnings:
            log.warning("%s", warning)
        return RecordingWorker(worker, config.record, config) if config.record else worker

    def _load(self, config: EngineConfig) -> CpuWorker:
        begun = time.monotonic()
        import torch

        from slipway.load.checkpoint import open_checkpoint
        from slipway.model.build import plan_model
        from slipway.worker.cpu import CpuWorker

        torch.set_num_threads(1)  # the kernels' own threads compute; two sets would fight for the cores
        begun = self._time("import", begun)
        checkpoint = open_checkpoint(config, self.progress)
        begun = self._time("open", begun)
        self.plan: ModelPlan = plan_model(checkpoint, config)
        self.warnings += self.plan.warnings
        self.size = cache_size(config, self.plan, available_memory())
        if self.size.warning:
            self.warnings.append(self.size.warning)
        worker = CpuWorker(
            self.plan,
            num_slots=config.max_num_seqs,
            max_len=self.size.max_model_len,
            num_pages=self.size.num_pages,
            token_budget=self.token_budget,
            max_logprobs=config.max_logprobs,
            threads=config.threads or usable_cpus(),
            progress=self.progress,
        )
        checkpoint.close()
        self._time("load", begun)
        return worker

    @property
    def token_budget(self) -> int:
        budget = self.config.max_num_batched_tokens or CPU_TOKEN_BUDGET
        return budget if self.config.enable_chunked_prefill else max(budget, self.size.max_model_len)

    def core(self, worker: Worker) -> EngineCore:
        config = self.config
        kv = self.plan.kv
        cache = KVCache(
            PagePool(self.size.num_pages),
            kv.block_size,
            [group.window for group in kv.groups],
            prefix_caching=config.enable_prefix_caching,
            hash_name=config.prefix_hash,
        )
        assert self.hub is not None
        executor = Overlapped(worker) if config.overlap else InTurn(worker)
        return EngineCore(Scheduler(cache, self._limits()), executor, self.hub, self.idle)

    def ready(self) -> Ready:
        plan = self.plan
        return Ready(
            0,
            self.size.max_model_len,
            plan.vocab,
            self.size.num_pages // len(plan.kv.groups),
            plan.kv.block_size,
            plan.dtype,
            plan.architecture,
            self.seconds,
            self.warnings,
        )

    def progress(self, phase: str, done: int, total: int) -> None:
        """Tell the clients, at most ten times a second but always the first and the last."""
        now = time.monotonic()
        if self.hub is None or (0 < done < total and now - self._told < 0.1):
            return
        self._told = now
        self.hub.poll(0)  # only greetings can have come
        if self.hub.closed:
            raise Exit(INTERNAL_ERROR, "the process that started this engine has gone")
        self.hub.broadcast(Loading(phase, done, total), greet=True)

    def _limits(self) -> SchedulerLimits:
        config = self.config
        long_prompt = config.long_prefill_token_threshold
        if config.max_num_partial_prefills > 1 and not long_prompt:
            long_prompt = max(1, self.size.max_model_len // 25)  # 4 % of the context, as documented
        return SchedulerLimits(
            token_budget=self.token_budget,
            max_requests=config.max_num_seqs,
            chunked_prefill=config.enable_chunked_prefill,
            max_partial=config.max_num_partial_prefills,
            max_long_partial=config.max_long_partial_prefills,
            long_prompt=long_prompt,
            by_priority=config.scheduling_policy == "priority",
            delay_factor=config.scheduler_delay_factor,
        )

    def _time(self, phase: str, begun: float) -> float:
        now = time.monotonic()
        self.seconds[phase] = round(now - begun, 3)
        return now


def cache_size(config: EngineConfig, plan: ModelPlan, memory: int) -> CacheSize:
    """How many pages, and what they make of `--max-model-len`.

    `memory`: bytes that can still be had. By default the pool is what all requests together can use, at
    most a quarter of that memory. A length that was not asked for is reduced to what fits; one that was
    asked for and does not fit is an error.
    """
    kv, length = plan.kv, plan.max_model_len
    groups = len(kv.groups)
    one = -(-length // kv.block_size) * groups
    if config.num_blocks is not None:
        pages = config.num_blocks * groups
    elif config.kv_cache_bytes is not None:
        pages = config.kv_cache_bytes // kv.page_bytes
    else:
        pages = min(one * config.max_num_seqs, memory // 4 // kv.page_bytes)
    if pages >= one:
        return CacheSize(pages, length)
    fits = pages // groups * kv.block_size
    if config.max_model_len is not None or fits < 1:
        gib = pages * kv.page_bytes / (1 << 30)
        message = (
            f"the KV cache of {gib:.2f} GiB holds {fits} tokens, "
            f"and one request of --max-model-len {length} needs {one * kv.page_bytes / (1 << 30):.2f} GiB"
        )
        hint = (
            f"Set --max-model-len {fits} or less, VLLM_CPU_KVCACHE_SPACE to more GiB, "
            f"or --num-gpu-blocks-override {one // groups} or more."
        )
        raise Exit(KV_CACHE_TOO_SMALL, message, hint, "max_model_len")
    warning = (
        f"The model's length of {length} tokens does not fit the KV cache: serving {fits}. "
        "--kv-cache-memory-bytes or VLLM_CPU_KVCACHE_SPACE gives it more."
    )
    return CacheSize(pages, fits, warning)
