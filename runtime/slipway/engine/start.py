"""From a configuration to a serving core: load, size the KV cache, warm up, run."""

from __future__ import annotations

import ctypes
import gc
import logging
import os
import signal
import socket
import sys
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec

from slipway import driver
from slipway.engine.config import EngineConfig
from slipway.engine.core import EngineCore
from slipway.engine.executor import Executor, Worker
from slipway.engine.kv_cache import KVCache, block_hash
from slipway.engine.messages import Failed, Loading, Ready
from slipway.engine.page_pool import PagePool
from slipway.engine.record import RecordingWorker
from slipway.engine.scheduler import Scheduler, SchedulerLimits
from slipway.engine.wire import Hub
from slipway.exits import BY_REASON, DEVICE_UNAVAILABLE, INTERNAL_ERROR, OUT_OF_MEMORY, Exit
from slipway.load.errors import LoadError
from slipway.load.extras import require_torch
from slipway.load.folder import stored_bytes
from slipway.machine import usable_cpus, whole_memory
from slipway.worker.cache_size import CacheSize, cache_size, num_host_pages
from slipway_kernels.cpu import reserved

if TYPE_CHECKING:
    from slipway.worker.cpu import CpuWorker
    from slipway.worker.device.worker import DeviceWorker
    from slipway.worker.plan import ModelPlan

log = logging.getLogger("slipway.engine")

CUDA_TOKEN_BUDGET = 2048
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


def chosen_device(asked: str) -> str:
    """cpu or cuda; `auto` takes CUDA where there is one. Raises Exit where CUDA is asked for and missing."""
    if asked == "cpu" or (asked == "auto" and not driver.loaded()):
        return "cpu"
    require_torch(
        "--device cuda computes with torch and Triton",
        "use --device cpu",
        "triton",
        extra="cuda",
        argument="device",
    )
    import torch

    if torch.cuda.is_available():
        return "cuda"
    if asked == "auto":
        return "cpu"
    if os.environ.get("TRITON_INTERPRET") == "1":
        return "cuda"
    raise Exit(
        DEVICE_UNAVAILABLE,
        "--device cuda, and torch finds no CUDA device here.",
        "Check that the driver is loaded, that the pod asks for a GPU and that CUDA_VISIBLE_DEVICES names "
        "one; or use --device cpu.",
        "device",
    )


def describe(error: Exception) -> Failed:
    """What clients are told of an exception that ends the engine."""
    if isinstance(error, LoadError):
        error = Exit(BY_REASON[error.code], error.message, error.hint, error.argument or "")
    elif isinstance(error, MemoryError):
        error = Exit(OUT_OF_MEMORY, str(error))
    elif _is_out_of_device_memory(error):
        error = Exit(
            OUT_OF_MEMORY,
            f"The device's memory is not enough: {error}",
            "Quantize the model (--quantization), keep some of its weights on the host (--cpu-offload-gb) or "
            "take a larger device; where the server ran before, lower --gpu-memory-utilization.",
        )
    elif not isinstance(error, Exit):
        error = Exit(INTERNAL_ERROR, f"{type(error).__name__}: {error}")
    code = error.exit_code
    return Failed(code.code, code.reason, error.message, error.hint, error.argument)


def _is_out_of_device_memory(error: Exception) -> bool:
    """Only torch raises that, so it need not be imported for what happened without it."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(error, torch.OutOfMemoryError)


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
        on_cpu = config.device == "cpu" or not driver.loaded()
        with reserved(stored_bytes(config.model) if on_cpu else 0):
            worker = self._load(config)
        self.idle = worker.idle
        begun = time.monotonic()
        self.progress("warmup", 0, 1)
        worker.warm_up()
        self._time("warmup", begun)
        for warning in self.warnings:
            log.warning("%s", warning)
        return RecordingWorker(worker, config.record, config) if config.record else worker

    def _load(self, config: EngineConfig) -> CpuWorker | DeviceWorker:
        begun = time.monotonic()
        from slipway.load.checkpoint import open_checkpoint
        from slipway.worker.plan import plan_model

        device = chosen_device(config.device)
        config = self.config = msgspec.structs.replace(config, device=device)
        if device == "cpu" and config.attention_backend not in ("auto", "CPU"):
            asked = f"--attention-backend {config.attention_backend}"
            self.warnings.append(f"{asked} has no effect on CPU: it acts on CUDA only.")
        begun = self._time("import", begun)
        checkpoint = open_checkpoint(config, self.progress)
        begun = self._time("open", begun)
        self.plan: ModelPlan = plan_model(checkpoint, config)
        self.warnings += self.plan.warnings
        worker, self.size = self._on_device() if device == "cuda" else self._on_cpu()
        if self.size.warning:
            self.warnings.append(self.size.warning)
        checkpoint.close()
        self._time("load", begun)
        return worker

    def _on_cpu(self) -> tuple[CpuWorker, CacheSize]:
        from slipway.worker.cpu import CpuWorker
        from slipway.worker.proposer import proposer_for

        config = self.config
        left = max(0, whole_memory() - self.plan.checkpoint.total_bytes)
        size = cache_size(config, self.plan, left // 4, "VLLM_CPU_KVCACHE_SPACE")
        worker = CpuWorker(
            self.plan,
            num_slots=config.max_num_seqs,
            max_len=size.max_model_len,
            num_pages=size.num_pages,
            token_budget=self._token_budget(size.max_model_len),
            max_logprobs=config.max_logprobs,
            threads=config.threads or usable_cpus(),
            progress=self.progress,
            proposer=proposer_for(config),
        )
        return worker, size

    def _on_device(self) -> tuple[DeviceWorker, CacheSize]:
        from slipway.worker.device.load import load

        budget = self._token_budget(self.plan.max_model_len)
        return load(self.plan, self.config, budget, self.progress)

    def _token_budget(self, max_model_len: int) -> int:
        config = self.config
        default = CUDA_TOKEN_BUDGET if config.device == "cuda" else CPU_TOKEN_BUDGET
        budget = config.max_num_batched_tokens or default
        if config.enable_chunked_prefill:
            return budget
        return max(budget, max_model_len + config.max_num_seqs - 1)  # the longest prompt beside all others

    @property
    def _depth(self) -> int:
        """Steps under way: a device runs ahead of the host; on CPU the step needs every core."""
        overlap = self.config.device == "cuda" if self.config.overlap is None else self.config.overlap
        return 2 if overlap else 1

    def core(self, worker: Worker) -> EngineCore:
        config = self.config
        kv = self.plan.kv
        cache = KVCache(
            PagePool(self.size.num_pages),
            kv.groups,
            prefix_caching=config.enable_prefix_caching,
            hash_block=block_hash(config.prefix_hash, config.prefix_hash_secret.encode()),
            rewrites_blocks=config.device == "cpu",
            num_host_pages=num_host_pages(config, self.plan),
        )
        assert self.hub is not None
        executor = Executor(worker, self._depth, thread=config.device == "cpu" and self._depth > 1)
        return EngineCore(
            Scheduler(cache, self._limits()), executor, self.hub, self.idle, adapters=tuple(config.adapters)
        )

    def ready(self) -> Ready:
        plan = self.plan
        return Ready(
            0,
            self.size.max_model_len,
            plan.vocab,
            plan.kv.tokens_in(self.size.num_pages) // self.config.block_size,
            self.config.block_size,
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
            token_budget=self._token_budget(self.size.max_model_len),
            max_requests=config.max_num_seqs,
            depth=self._depth,
            num_drafts=config.num_drafts,
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
