"""From a configuration to a serving core: load, size the KV cache, warm up, run."""

from __future__ import annotations

import gc
import logging
import os
import socket
import sys
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from slipway.dist.hosts import ranks_of
from slipway.dist.mesh import Mesh
from slipway.dist.trust import read_key
from slipway.engine.adapter_kinds import AdapterKinds
from slipway.engine.adapters import Adapters
from slipway.engine.config import EngineConfig
from slipway.engine.core import EngineCore
from slipway.engine.executor import Executor, Steps, Worker
from slipway.engine.grammar import ModelMatchers
from slipway.engine.guesses import Guessing
from slipway.engine.kv_cache import KVCache, block_hash
from slipway.engine.messages import Failed, Memory, Part, Ready
from slipway.engine.page_pool import PagePool
from slipway.engine.pipelined import PipelinedWorker
from slipway.engine.placed import placed
from slipway.engine.planned import StartProgress, loader, on_host, planned, read_libraries, to_be_read
from slipway.engine.profile import ProfiledWorker, Profiler, Recorder, StepRecorder
from slipway.engine.prompt_adapters import PromptAdapters
from slipway.engine.ranked import RankedWorker, load_in_turn
from slipway.engine.record import RecordingWorker
from slipway.engine.scheduler import Scheduler, SchedulerLimits
from slipway.engine.several import keep_own_devices
from slipway.engine.sleeper import Sleeper
from slipway.engine.team import Team
from slipway.engine.tokens import token_ids_of
from slipway.engine.wire import Hub
from slipway.exits import (
    BY_REASON,
    INTERNAL_ERROR,
    OUT_OF_MEMORY,
    Exit,
)
from slipway.load.errors import LoadError
from slipway.load.prompt_adapter import read_prompt_adapter
from slipway.worker.cache_size import CacheSize, cache_size, wanted_pages
from slipway.worker.placement import settle
from slipway_kernels.cpu import reserved

if TYPE_CHECKING:
    from slipway.worker.plan import ModelPlan

log = logging.getLogger("slipway.engine")

BESIDE_DECODES = 2048
"""Most prompt tokens of a step that also decodes, if --max-num-batched-tokens is not given. Larger steps gain
little throughput. An 8B model takes about 35 ms for 2048 prompt tokens on an H200."""


def run_engine(
    config: EngineConfig,
    listener: socket.socket,
    parent: int,
    begin: Callable[[], None] = lambda: None,
    beat: Callable[[], None] = lambda: None,
) -> int:
    """Serve until `parent` ends. Returns the exit status; what went wrong has been told to the clients.

    begin  what is due first, in a process of the engine's own
    beat   what has it heard by others from then on
    """
    hub = Hub(listener, parent)
    try:
        begin()
        keep_own_devices(config, os.environ)
        read_libraries(config.device)
        beat()
        start = Start.of(config, hub)
        core = start.core(hub)
        gc.freeze()  # what loading left lives as long as we: a full collection over it takes 100 ms
        hub.broadcast(start.ready())
        with closing(core.executor):
            core.run()
    except Exception as error:
        failure = describe(error)
        if config.is_one_of_several:
            message = f"{config.name[:1].upper()}{config.name[1:]}: {failure.message}"
            failure = msgspec.structs.replace(failure, message=message)
        if failure.code == INTERNAL_ERROR.code:
            log.exception("the engine failed")
        hub.broadcast(failure)
        hub.wait_flushed(seconds=10)
        return failure.code
    finally:
        hub.close()
    return 0


def describe(error: Exception) -> Failed:
    """What clients are told of an exception that ends the engine."""
    torch = sys.modules.get("torch")  # only torch raises its errors: it need not be imported for others
    if isinstance(error, LoadError):
        error = Exit(BY_REASON[error.code], error.message, error.hint, error.argument)
    elif isinstance(error, MemoryError):
        error = Exit(OUT_OF_MEMORY, str(error))
    elif torch is not None and isinstance(error, torch.OutOfMemoryError):
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


@dataclass(frozen=True, slots=True)
class Start:
    """A worker that can compute, and what was found out on the way to it."""

    config: EngineConfig
    plan: ModelPlan
    size: CacheSize
    worker: Worker
    warnings: list[str]
    seconds: dict[str, float]
    memory: Memory | None

    @classmethod
    def of(cls, config: EngineConfig, hub: Hub | None = None) -> Start:
        """The first half of a worker's life. Raises LoadError and Exit."""
        mesh = Mesh.of(config)
        if mesh.size == 1:
            return cls._of(config, hub)
        config, arrived, end = placed(config, StartProgress(hub))
        parts = config.machine_parts * len(ranks_of(config, 0))
        team = Team(msgspec.structs.replace(config, machine_parts=parts), arrived, end)
        try:
            if config.nnodes > 1:
                team.join_stages(read_key(config.cluster_key_file))
            return cls._of(team.config, hub, team)
        except BaseException:
            team.close()
            raise

    @classmethod
    def _of(cls, config: EngineConfig, hub: Hub | None, team: Team | None = None) -> Start:
        from slipway.fit import at_start  # which imports the planning of models

        progress = StartProgress(hub)
        if team is not None:
            progress.check = team.check
        progress("load", 0, 0)
        warnings = settle(config) if on_host(config) else []
        with reserved(to_be_read(config)):
            config, plan = planned(config, progress)
            progress.memory = at_start.estimated(config, plan, token_ids_of(config))
            if team is None:
                worker = loader(config.device)(plan, config, progress)
                pages = wanted_pages(config, plan, worker.profile())
            else:
                new = loader(config.device, team.memory, team.neighbours)
                load = partial(new, plan, config, progress)
                worker, most = load_in_turn(
                    team, load, Mesh.of(config).size, config.max_parallel_loading_workers
                )
                pages = min(wanted_pages(config, plan, worker.profile()), most)
                team.watch(worker.leave, *([hub.wake] if hub is not None else ()))
                mesh = Mesh.of(config)
                pipelined = mesh.pp > 1
                worker = PipelinedWorker(worker, team, mesh) if pipelined else RankedWorker(worker, team)
            more = worker.profile().more
            size = cache_size(config, plan, pages, more)
            warnings += plan.warnings
            pages = worker.allocate(size.num_pages)
            if pages < size.num_pages:
                warnings.append(
                    f"There was room for {pages} of the {size.num_pages} planned KV pages: something "
                    f"else took its memory meanwhile. Serving with less; {more} asks for less at once."
                )
                size = cache_size(config, plan, pages, more)
            plan.close()
            progress.ended("load")
        progress("warmup", 0, 1)
        if not config.skip_warmup:
            worker.warm_up()
        progress.ended("warmup")
        progress.over()
        warnings += filter(None, [size.warning])
        for warning in warnings:
            log.warning("%s", warning)
        memory = progress.memory and msgspec.structs.replace(progress.memory, taken=at_start.taken(config))
        return cls(config, plan, size, worker, warnings, progress.seconds, memory)

    @property
    def depth(self) -> int:
        """Steps under way."""
        if self.config.pipeline_parallel_size > 1:
            return self.config.pipeline_parallel_size
        overlap = self.worker.runs_ahead if self.config.overlap is None else self.config.overlap
        return 2 if overlap else 1

    def core(self, hub: Hub) -> EngineCore:
        config, worker = self.config, self.worker
        cache = KVCache(
            PagePool(self.size.num_pages),
            self.plan.kv.groups,
            prefix_caching=config.enable_prefix_caching and not self._reads_every_row,
            hash_block=block_hash(config.prefix_hash, config.prefix_hash_secret.encode()),
            rewrites_blocks=worker.repeats_bits,
            num_recomputed=self.plan.draft.num_recomputed if self.plan.draft else 0,
            num_host_pages=worker.num_host_pages,
        )
        steps: Steps = RecordingWorker(worker, config.record, config) if config.record else worker
        sleeper = Sleeper(
            worker, lambda asleep: hub.broadcast(self.ready(asleep)), warm_up=not config.skip_warmup
        )
        profiler = self._profiler()
        if profiler is not None:
            steps = ProfiledWorker(steps, profiler, in_turn=not worker.runs_ahead)
        scheduler = Scheduler(cache, self._limits())
        scheduler.guessing = Guessing() if config.num_drafts else None
        executor = Executor(steps, self.depth, thread=self.depth > 1 and not worker.runs_ahead)
        return EngineCore(
            scheduler,
            executor,
            hub,
            sleeper.idle,
            ModelMatchers(config, self.plan.route.vocab),
            self._adapters(hub),
            profiler,
            sleeper,
            timed=config.timed,
            pools=self.plan.pooler is not None,
            processes=config.processors,
            hidden_size=self._hidden_size,
        )

    @property
    def _reads_every_row(self) -> bool:
        pooler = self.plan.pooler
        return pooler is not None and pooler.pooling.reads_every_row

    def _adapters(self, hub: Hub) -> AdapterKinds:
        plan, low_rank, prompts = self.plan, None, None
        if plan.adapters is not None:
            low_rank = Adapters(self.worker.read_adapter, plan.adapters.places, hub.wake)
        if (limits := plan.prompt_adapters) is not None:
            read = partial(read_prompt_adapter, limits=limits, hidden=plan.hidden_size, dtype=plan.element)
            prompts = PromptAdapters(read, limits.places, hub.wake)
        return AdapterKinds(low_rank, prompts)

    def _profiler(self) -> Profiler | None:
        """By torch where torch computes."""
        folder = self.config.profile_folder
        if folder is None:
            return None
        recorder: Recorder = StepRecorder()
        if self.config.device == "cuda":
            from slipway.worker.device.profile import TorchRecorder

            recorder = TorchRecorder()
        return Profiler(Path(folder).expanduser(), recorder)

    def ready(self, asleep: tuple[Part, ...] = ()) -> Ready:
        plan = self.plan
        return Ready(
            min(self.size.max_model_len, plan.own_len),
            plan.route.vocab,
            plan.kv.tokens_in(self.size.num_pages) // self.config.block_size,
            self.config.block_size,
            str(plan.element),
            plan.route.architecture,
            self.seconds,
            self.warnings,
            asleep,
            None if plan.pooler is None else plan.pooler.offer,
            self._hidden_size,
            self.size.max_model_len,
            self.memory,
        )

    @property
    def _hidden_size(self) -> int:
        """Of prompts that are embeddings; 0 where there may be none."""
        return self.plan.hidden_size if self.config.enable_prompt_embeds else 0

    def _limits(self) -> SchedulerLimits:
        config = self.config
        unbounded = config.max_num_batched_tokens is None
        long_prompt = config.long_prefill_token_threshold
        if config.max_num_partial_prefills > 1 and not long_prompt:
            long_prompt = max(1, self.size.max_model_len // 25)  # 4 % of the context, as documented
        return SchedulerLimits(
            token_budget=self.worker.token_budget,
            max_requests=config.max_num_seqs,
            depth=self.depth,
            in_turn=config.pipeline_parallel_size > 1,
            num_drafts=config.num_drafts,
            lookahead=config.num_drafts if self.plan.draft else 0,
            max_guessing=config.max_guessing,
            adapters=config.max_loras,
            forced=self.worker.takes_drafts,
            chunked_prefill=config.enable_chunked_prefill,
            max_partial=config.max_num_partial_prefills,
            max_long_partial=config.max_long_partial_prefills,
            long_prompt=long_prompt,
            by_priority=config.scheduling_policy == "priority",
            delay_factor=config.scheduler_delay_factor,
            beside_decodes=BESIDE_DECODES if unbounded and config.enable_chunked_prefill else 0,
        )
