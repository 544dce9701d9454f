"""A core over a worker that knows its tokens, with every plan that it made."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from local_engine import LocalHub
from reading_worker import ReadingWorker
from slipway.engine.core import EngineCore
from slipway.engine.executor import Executor
from slipway.engine.kv_cache import KVCache, block_hash
from slipway.engine.messages import AbortRequests, AddRequest
from slipway.engine.page_pool import PagePool
from slipway.engine.params import SamplingParams
from slipway.engine.plan import Masks, StepOutput, StepPlan
from slipway.engine.scheduler import Scheduler, SchedulerLimits
from slipway.engine.wire import Inbound
from slipway.model.kv import KVGroup
from slipway.worker.in_turn import InTurn


class Bench(InTurn):
    """A core, its parts, and every plan it made, with its masks."""

    def __init__(
        self,
        *,
        num_pages: int = 64,
        num_host_pages: int = 0,
        block_size: int | tuple[int, ...] = 4,
        windows: tuple[int, ...] = (0,),
        overlap: bool = False,
        prefix_caching: bool = True,
        rewrites_blocks: bool = True,
        num_recomputed: int = 0,
        **limits: object,
    ) -> None:
        super().__init__()
        depth = int(limits.get("depth", 2 if overlap else 1))  # type: ignore[call-overload]
        bounds = SchedulerLimits(**{"token_budget": 16, "max_requests": 8, "depth": depth} | limits)  # type: ignore[arg-type]
        self.plans: list[StepPlan] = []
        self.masks: list[Masks | None] = []
        sizes = (block_size,) * len(windows) if isinstance(block_size, int) else block_size
        groups = [KVGroup(size, window) for size, window in zip(sizes, windows, strict=True)]
        self.worker = ReadingWorker(bounds.max_requests, groups)
        self.executor = Executor(self, depth, thread=overlap)
        cache = KVCache(
            PagePool(num_pages),
            groups,
            prefix_caching=prefix_caching,
            hash_block=block_hash("builtin"),
            rewrites_blocks=rewrites_blocks,
            num_recomputed=num_recomputed,
            num_host_pages=num_host_pages,
        )
        self.scheduler = Scheduler(cache, bounds)
        self.hub = LocalHub()
        self.core = EngineCore(self.scheduler, self.executor, self.hub)  # type: ignore[arg-type]

    def step(self, plan: StepPlan, masks: Masks | None = None) -> StepOutput:
        self.plans.append(plan)
        self.masks.append(masks)
        return self.worker.step(plan)

    def add(self, name: str, prompt: int | list[int], max_tokens: int, **fields: object) -> None:
        tokens = list(range(prompt)) if isinstance(prompt, int) else list(prompt)
        seed = int(fields.pop("seed", 0))  # type: ignore[call-overload]
        params = SamplingParams(max_tokens, seed=seed)
        self.hub.inbox.append(Inbound(0, AddRequest(name, tokens, params, **fields)))  # type: ignore[arg-type]

    def abort(self, name: str) -> None:
        self.hub.inbox.append(Inbound(0, AbortRequests([name])))

    def turn(self) -> None:
        self.core.run_once()
        cache = self.scheduler.cache
        cache.check()
        assert len(cache.swapped) <= len(self.scheduler.waiting)

    def run(self, limit: int = 10_000) -> None:
        for _ in range(limit):
            self.turn()
            if not self.hub.inbox and not self.core.has_work:
                self.core.run_once()  # at rest it counts the pages
                return
        raise AssertionError(f"work was left after {limit} turns")

    @property
    def num_computed(self) -> int:
        return sum(sum(plan.num_new) for plan in self.plans)

    def tokens(self, name: str) -> list[int]:
        return [token for delta in self.hub.deltas[name] for token in delta.token_ids]


@contextmanager
def bench(**options: object) -> Iterator[Bench]:
    made = Bench(**options)  # type: ignore[arg-type]
    try:
        yield made
    finally:
        made.executor.close()


def expected(prompt: int, max_tokens: int, seed: int = 0) -> list[int]:
    return [(seed + prompt + i) % 1000 for i in range(max_tokens)]
