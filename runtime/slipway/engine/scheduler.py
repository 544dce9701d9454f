"""The scheduler: one rule and no phases."""

from __future__ import annotations

import bisect
from dataclasses import dataclass

from slipway.engine.kv_cache import KVCache
from slipway.engine.plan import PageCopy, PageGrant, SlotStart, StepPlan
from slipway.engine.request import Request


@dataclass(frozen=True, slots=True)
class SchedulerLimits:
    """Bounds of a step. Token counts; 0 for `long_prompt` means that no prompt counts as long."""

    token_budget: int
    max_requests: int
    chunked_prefill: bool = True
    max_partial: int = 1
    max_long_partial: int = 1
    long_prompt: int = 0
    by_priority: bool = False
    delay_factor: float = 0.0


class _PlanBuilder:
    def __init__(self, token_budget: int) -> None:
        self.tokens_left = token_budget
        self.starts: list[SlotStart] = []
        self.pages: list[PageGrant] = []
        self.granted: list[tuple[Request, int]] = []
        self.swap_out: list[PageCopy] = []
        self.swap_in: list[PageCopy] = []
        self.preempted = False

    def add(self, request: Request, grant: int, pages: list[PageGrant]) -> None:
        self.granted.append((request, grant))
        self.pages += pages
        self.tokens_left -= grant
        request.num_computed += grant
        if request.num_computed == request.num_tokens:
            request.num_in_flight += 1

    def build(self) -> StepPlan:
        slots = [request.slot for request, _ in self.granted]
        grants = [grant for _, grant in self.granted]
        return StepPlan(self.starts, self.pages, slots, grants, self.swap_out, self.swap_in)


class Scheduler:
    """Decides what each step computes.

    Every request has `num_tokens` known and `num_computed` done; a step grants it some of the difference
    under a token budget and a page budget. Prefill chunks, prefix hits, drafts to verify and resumption
    after preemption are that one case.

    Invariants: `running` and `waiting` are sorted, the oldest promise first; a request is in one of them
    until it ends; only running requests have a slot and pages; only waiting ones are kept in host memory.
    """

    def __init__(self, cache: KVCache, limits: SchedulerLimits) -> None:
        self.cache = cache
        self.limits = limits
        self.running: list[Request] = []
        self.waiting: list[Request] = []
        self.num_preemptions = 0
        self.prefix_queries = 0
        self.prefix_hits = 0
        self._free_slots = list(range(limits.max_requests - 1, -1, -1))
        self._last_prompt_seconds = 0.0

    @property
    def has_work(self) -> bool:
        return bool(self.running or self.waiting)

    def add(self, request: Request) -> None:
        bisect.insort(self.waiting, request, key=self._order)

    def schedule(self, now: float) -> tuple[StepPlan, list[Request]]:
        """Grant every request some of the tokens it still has to compute, oldest promise first.

        Returns the plan and its requests in the plan's order. `now` is `time.monotonic()`.
        """
        plan = _PlanBuilder(self.limits.token_budget)
        for request in list(self.running):
            grant = min(request.num_left, self._chunk(request), plan.tokens_left)
            if request.slot < 0 or grant <= 0:  # preempted in this step, or caught up
                continue
            self.cache.trim(request)
            while not self.cache.can_hold(request, grant):
                victim = self.running[-1]
                self._preempt(victim, plan)
                if victim is request:
                    break
            else:
                plan.add(request, grant, self.cache.extend(request, grant))
        if not plan.preempted:  # pages are short: admitting now would only preempt again
            self._admit(plan, now)
        return plan.build(), [request for request, _ in plan.granted]

    def end(self, request: Request) -> None:
        """The request has finished, failed or been aborted: nothing of it stays."""
        if request.slot >= 0:
            self._vacate(request)
        else:
            self.waiting.remove(request)
            self.cache.forget(request)

    def computed(self, request: Request, now: float) -> None:
        """A step has computed the tokens granted to this request."""
        if not request.first_token_time and not request.in_prompt:
            self._last_prompt_seconds = now - request.scheduled_time
        self.cache.register(request)

    def _admit(self, plan: _PlanBuilder, now: float) -> None:
        limits = self.limits
        if self._delayed(now):
            return
        partial = sum(request.in_prompt for request in self.running)
        partial_long = sum(request.in_prompt and self._is_long(request) for request in self.running)
        for request in list(self.waiting):
            if plan.tokens_left <= 0 or not self._free_slots or partial >= limits.max_partial:
                return
            if request.num_in_flight:  # its newest token is still to come
                continue
            if self._is_long(request) and partial_long >= limits.max_long_partial:
                continue  # shorter prompts may overtake
            hit = self.cache.find_prefix(request)
            left = request.num_tokens - hit.num_tokens
            grant = min(left, self._chunk(request), plan.tokens_left)
            if grant < left and not limits.chunked_prefill:
                return
            if not self.cache.can_admit(request, hit, limits.token_budget):
                return
            self._start(request, now)
            pages, copies = self.cache.admit(request, hit)
            plan.swap_in += copies
            self._count_prefix(request, hit.num_tokens)
            plan.starts.append(self._slot_start(request))
            plan.add(request, grant, pages + self.cache.extend(request, grant))
            partial += request.in_prompt
            partial_long += request.in_prompt and self._is_long(request)

    def _delayed(self, now: float) -> bool:
        """Whether admission waits for more prompts to gather (`--scheduler-delay-factor`)."""
        if not self.limits.delay_factor or not self.waiting or not self.running:
            return False
        oldest = min(request.arrival for request in self.waiting)
        return now - oldest < self.limits.delay_factor * self._last_prompt_seconds

    def _start(self, request: Request, now: float) -> None:
        self.waiting.remove(request)
        bisect.insort(self.running, request, key=self._order)
        request.slot = self._free_slots.pop()
        request.scheduled_time = request.scheduled_time or now

    def _slot_start(self, request: Request) -> SlotStart:
        return SlotStart(
            request.slot,
            list(request.tokens),
            request.num_prompt,
            request.num_computed,
            request.params,
            len(request.prompt_logprobs),
        )

    def _count_prefix(self, request: Request, hit: int) -> None:
        if request.num_preemptions == 0:
            request.num_cached = hit
            self.prefix_queries += request.num_prompt
            self.prefix_hits += hit

    def _preempt(self, request: Request, plan: _PlanBuilder) -> None:
        plan.swap_out += self.cache.swap_out(request)
        self._vacate(request)
        self.add(request)
        request.num_preemptions += 1
        self.num_preemptions += 1
        plan.preempted = True

    def _vacate(self, request: Request) -> None:
        self.running.remove(request)
        self.cache.release(request)
        self._free_slots.append(request.slot)
        request.slot = -1

    def _chunk(self, request: Request) -> int:
        """Most tokens to grant at once: a long prompt must not take the whole step from others."""
        if self.limits.long_prompt and self._is_long(request):
            return self.limits.long_prompt
        return self.limits.token_budget

    def _is_long(self, request: Request) -> bool:
        return 0 < self.limits.long_prompt < request.num_prompt

    def _order(self, request: Request) -> tuple[int, int]:
        return (request.priority if self.limits.by_priority else 0, request.sequence)
