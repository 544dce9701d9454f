"""The scheduler: one rule and no phases."""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from dataclasses import dataclass, field

from slipway.engine.grants import Grant, PlanInMaking, Step
from slipway.engine.guesses import Guessing
from slipway.engine.kv_cache import KVCache, PrefixHit
from slipway.engine.lookahead import look_ahead
from slipway.engine.plan import PageGrant, SlotStart, StepPlan
from slipway.engine.request import Request

OVERTAKEN_STEPS = 16
"""Steps in which others may be admitted before a request that waits for pages; then they are kept for it."""
LOOKED_PAST = 8
"""Waiting requests that one step looks past."""
LIGHTLY_LOOKED_PAST = 256
"""More that wait for a step under way, or for an adapter's room: both cost little to see."""
MASK_SECONDS = 0.1
"""Of the processor, for the masks of a step: those of running requests, and those of requests that start."""
DRAFT_MASK_SECONDS = 0.02
"""Of these, for masks behind drafts."""
MAX_FORCED = 32
"""Forced tokens that a step verifies for a request."""


@dataclass(frozen=True, slots=True)
class SchedulerLimits:
    """Bounds of a step. Token counts; 0 for `long_prompt` means that no prompt counts as long.

    depth         steps that may be under way
    in_turn       a request waits for what a step draws of it before it is part of the next one: steps under
                  way compute different requests, each its share of them
    num_drafts    most drafts that a step verifies for a request, of those that slots hold
    lookahead     most that a model guesses behind a draw, and wants pages for
    max_guessing  running requests from which on there are no such drafts
    adapters      different ones in a step
    forced        tokens that grammars force are drafts too
    max_partial   prompts that are computed in chunks at once, and `max_long_partial` long ones among them;
                  1: as many as a step holds
    beside_decodes  tokens of prompts in a step while requests wait for their next token; 0: as many as fit
    """

    token_budget: int
    max_requests: int
    depth: int = 1
    in_turn: bool = False
    num_drafts: int = 0
    lookahead: int = 0
    max_guessing: int | None = None
    adapters: int = 0
    forced: bool = False
    chunked_prefill: bool = True
    max_partial: int = 1
    max_long_partial: int = 1
    long_prompt: int = 0
    by_priority: bool = False
    delay_factor: float = 0.0
    beside_decodes: int = 0


@dataclass(slots=True)
class Admission:
    """How far a step has come in starting waiting requests, and what it has left for them.

    spare    free pages that no prompt under way needs, once they have been counted
    partial, long  prompts under way that the step does not complete, and the long ones among them
    """

    place: int = 0
    partial: int = 0
    long: int = 0
    spare: int | None = None
    mask_seconds: float = MASK_SECONDS
    others_only: bool = False
    """A request has waited long for an adapter: no younger one takes any."""
    started: bool = False
    num_deferred: int = 0
    short_of_pages: list[Request] = field(default_factory=list)
    short_of_adapters: list[Request] = field(default_factory=list)

    @property
    def farthest(self) -> int:
        """The place in the queue at which the step stops to look."""
        light = self.num_deferred + len(self.short_of_adapters)
        return LOOKED_PAST + min(light, LIGHTLY_LOOKED_PAST)


class Scheduler:
    """Decides what each step computes.

    Every request has tokens that are known and positions that are granted; a step grants it some of the
    difference under a token budget and a page budget. Prefill chunks, prefix hits, drafts to verify and
    resumption after preemption are that one case.

    Requests that need only their next token go first, then prompts by promise: priority where the policy says
    so, then age. The victim, where pages are short, is always the last by promise, and what the plan under
    construction has granted it is withdrawn: so the oldest always advances.

    Invariants: `running` and `waiting` are sorted, the oldest promise first; a request is in one of them
    until it ends; only running requests have a slot and pages; only waiting ones are kept in host memory.
    """

    def __init__(self, cache: KVCache, limits: SchedulerLimits) -> None:
        self.cache = cache
        self.limits = limits
        self.made, self.admission = PlanInMaking(0), Admission()
        """Of the last step, for the log."""
        self.guessing: Guessing | None = None
        """Judges drafts; without it every request verifies as many as `limits` says."""
        self.running: list[Request] = []
        self.waiting: list[Request] = []
        self.num_deferred = 0
        """Waiting requests that something under way holds up; the others wait for capacity."""
        self.failures: list[tuple[Request, Exception]] = []
        """Requests that could not be planned, since the core last looked."""
        self.num_preemptions = 0
        self.prefix_queries = 0
        self.prefix_hits = 0
        self.prompt_tokens = 0
        """Of all requests, as far as they are computed, since the core last looked."""
        self.running_adapters: dict[int, int] = {}
        """How many running requests have the adapter in a place."""
        self._num_masked = 0
        self._free_slots = list(range(limits.max_requests - 1, -1, -1))
        self._last_prompt_seconds = 0.0
        self._turn = 0
        """Where granting begins when a step has no room for all that need their next token."""
        self._masked_turn = 0
        """The same of requests whose masks take long, when a step has no time for all of them."""

    @property
    def has_work(self) -> bool:
        return bool(self.running or self.waiting)

    def add(self, request: Request) -> None:
        self._num_masked += request.masked
        self._wait(request)

    def _wait(self, request: Request) -> None:
        bisect.insort(self.waiting, request, key=self._order)

    def schedule(self, now: float) -> tuple[StepPlan, Step]:
        """The next step. `now` is `time.monotonic()`."""
        decodes: list[Request] = []
        prompts: list[Request] = []
        for request in self.running:
            left = request.num_left
            if left == 1:
                decodes.append(request)
            elif left:
                prompts.append(request)
        plan = self.made = PlanInMaking(self._tokens_of_step(len(decodes)))
        if self.limits.in_turn:
            decodes = self._share(decodes)
        if self._num_masked:
            decodes = self._in_time(decodes)
        late = self._grant_decodes(plan, decodes, bool(prompts))
        self._grant_prompts(plan, prompts, now)
        if not plan.preempted:
            self._grant_spare(plan, late)
            if self.limits.lookahead:
                look_ahead(plan, self.cache, min(self.limits.lookahead, self._most_drafts), self.guessing)
        return plan.build(), plan.grants

    def commit(self, request: Request, grant: Grant, num_drawn: int, now: float) -> None:
        """A step has computed this grant, and drawn so many tokens, which the request already has."""
        request.num_steps -= 1
        request.num_drawing -= grant.draws
        if not request.granted:  # preempted since, and nothing of it is kept
            return
        request.committed += grant.num_new
        if grant.num_drafts:
            rejected = grant.num_drafts + 1 - num_drawn
            request.granted -= rejected
            request.committed -= rejected
        if (computed := min(request.committed, request.num_prompt)) > request.num_counted:
            self.prompt_tokens += computed - request.num_counted
            request.num_counted = computed
        if not request.first_token_time and request.committed >= request.num_prompt:
            self._last_prompt_seconds = now - request.scheduled_time
        if request.slot >= 0:
            self.cache.register(request)
            if request.committed >= request.num_prompt:
                request.quiet_until = min(self.cache.next_block(request), request.max_computed) - 1

    def end(self, request: Request, *, failed: bool = False) -> None:
        """The request has finished, failed or been aborted: nothing of it stays.

        Where it failed the prefix index forgets what it held, too.
        """
        self._num_masked -= request.masked
        if request.slot >= 0:
            self._vacate(request, failed=failed)
        else:
            del self.waiting[self._place(self.waiting, request)]
            self.cache.forget(request)

    def _share(self, decodes: list[Request]) -> list[Request]:
        """Those whose tokens so far are known, and of these no more than belong in one of the steps under
        way: were all in one, every stage but one would wait."""
        ready = [request for request in decodes if not request.num_drawing]
        return ready[: -(-len(decodes) // self.limits.depth)]

    def _in_time(self, decodes: list[Request]) -> list[Request]:
        """Those for whose masks a step has time. Where it has not for all, none waits that takes no more
        than its share; the others take turns, one at least."""
        if sum(request.mask_seconds for request in decodes) <= MASK_SECONDS:
            return decodes
        share = MASK_SECONDS / len(decodes)
        found = [request for request in decodes if request.mask_seconds <= share]
        slow = [request for request in decodes if request.mask_seconds > share]
        left = MASK_SECONDS - sum(request.mask_seconds for request in found)
        turn = self._masked_turn % len(slow)
        for self._masked_turn, request in enumerate(slow[turn:] + slow[:turn], turn + 1):
            found.append(request)
            left -= request.mask_seconds
            if left <= 0:
                break
        return found

    def _grant_decodes(self, plan: PlanInMaking, decodes: list[Request], prompts: bool) -> list[Request]:
        """Give each its next token; returns those for which a step has no room beside a chunk of a prompt.

        Where a step cannot hold all of them they take turns.
        """
        budget = plan.tokens_left
        if prompts or (self.waiting and self._free_slots):
            budget -= min(self.cache.hash_block_size, budget // 2)
        late: list[Request] = []
        if len(decodes) > budget:
            turn = self._turn % len(decodes)
            self._turn = turn + budget
            decodes = decodes[turn:] + decodes[:turn]
            decodes, late = decodes[:budget], decodes[budget:]
        covered, others = self.cache.covered(decodes)
        plan.add_next(covered)
        for request in others:
            self._grant(request, 1, plan)
        return late

    def _grant(
        self, request: Request, left: int, plan: PlanInMaking, found: Sequence[PageGrant] = ()
    ) -> None:
        """A chunk of what is left; where pages are short those of the last by promise are taken.

        found  pages of a prefix hit, of a request that starts
        """
        num_new = left if left <= plan.tokens_left else plan.tokens_left
        if num_new > 1:
            num_new = min(num_new, self._chunk(request))
        if request.slot < 0 or num_new <= 0:  # preempted in this step, or the step is full
            return
        try:
            pages = self.cache.extend(request, num_new)
            while pages is None:
                victim = self.running[-1]
                self._preempt(victim, plan)
                if victim is request:
                    return
                pages = self.cache.extend(request, num_new)
            plan.add(request, Grant(num_new, num_new == left, [*found, *pages]))
            if num_new > 1:
                self.cache.promise(request)
        except Exception as error:
            self._fail(request, plan, error)

    def _grant_spare(self, plan: PlanInMaking, late: list[Request]) -> None:
        """What is left of the step: next tokens that had to wait for prompts, then drafts. Nobody pays."""
        for request in late:
            pages = self.cache.extend(request, 1) if plan.tokens_left else None
            if pages is not None:
                plan.add(request, Grant(1, True, pages))
        limits, num_drafts, guessing = self.limits, self._most_drafts, self.guessing
        if guessing and num_drafts:
            guessing.begin(len(self.running))
        has_drafts = num_drafts or (limits.forced and self._num_masked)
        mask_seconds = DRAFT_MASK_SECONDS
        for request, grant in list(plan.grants.items()) if has_drafts else ():
            if grant.num_new == 1 and grant.draws and not request.params.processors:
                forced: Sequence[int] = ()
                if limits.forced and request.forced:  # of which steps under way draw the first
                    first = request.granted - len(request.tokens)
                    forced = request.forced[first : first + MAX_FORCED]
                wanted = len(forced) or num_drafts
                if guessing and wanted and not forced:
                    wanted = min(wanted, guessing.most(request))
                most = min(wanted, plan.tokens_left, request.max_computed - request.granted)
                if most * request.mask_seconds > mask_seconds:
                    most = int(mask_seconds / request.mask_seconds)
                pages = self.cache.extend(request, most) if most > 0 else None
                if pages is not None:
                    mask_seconds -= most * request.mask_seconds
                    plan.add_drafts(request, most, pages, forced[:most])

    @property
    def _most_drafts(self) -> int:
        """Of a proposer, that a request may verify in so much company."""
        limits = self.limits
        crowded = limits.max_guessing is not None and len(self.running) >= limits.max_guessing
        return 0 if crowded else limits.num_drafts

    def _grant_prompts(self, plan: PlanInMaking, prompts: list[Request], now: float) -> None:
        """Chunks of the prompts under way, and of waiting ones behind them, or by priority between them."""
        admission = self.admission = Admission()
        admits = not self._delayed(now)
        for request in prompts:
            if admits and self.limits.by_priority:
                self._admit(plan, admission, prompts, now, before=request)
            self._grant(request, request.num_left, plan)
            self._count(admission, request)
        if admits:
            self._admit(plan, admission, prompts, now)
        short_of_adapters = admission.short_of_adapters
        self.num_deferred = admission.num_deferred + len(short_of_adapters)
        for request in (*admission.short_of_pages, *short_of_adapters) if admission.started else ():
            request.num_overtaken += 1

    def _admit(
        self,
        plan: PlanInMaking,
        admission: Admission,
        prompts: list[Request],
        now: float,
        before: Request | None = None,
    ) -> None:
        """Start waiting requests, the oldest promise first, as long as there are slots, tokens and pages.

        What waits for something that is under way is overtaken; what waits for pages only for a while. Where
        pages were short in this step nothing starts: that would only preempt again.

        before  whose promise is older than this one's
        """
        limits = self.limits
        bounded = limits.max_partial > 1
        while admission.place < min(len(self.waiting), admission.farthest):
            if bounded and admission.partial >= limits.max_partial:
                break
            if plan.preempted or plan.tokens_left <= 0 or admission.mask_seconds <= 0 or not self._free_slots:
                break
            request = self.waiting[admission.place]
            if before is not None and self._order(request) > self._order(before):
                break
            if request.adapter >= 0 and (admission.others_only or not self._has_room_for(request.adapter)):
                admission.others_only |= self._has_waited(request)
                admission.short_of_adapters.append(request)
                admission.place += 1
                continue
            try:
                hit = self._startable(request)
                if hit is None:
                    admission.num_deferred += 1
                    admission.place += 1
                elif bounded and self._is_long(request) and admission.long >= limits.max_long_partial:
                    admission.place += 1  # shorter prompts may overtake
                elif not limits.chunked_prefill and plan.tokens_left < len(request.tokens) - hit.num_tokens:
                    break
                elif self._has_pages(request, hit, admission, prompts):
                    self._start(request, hit, plan, now)
                    self._count(admission, request)
                    admission.mask_seconds -= request.mask_seconds
                    admission.started = True
                elif self._has_waited(request):
                    break  # what is freed from now on is for this one
                else:
                    admission.short_of_pages.append(request)
                    admission.place += 1
            except Exception as error:
                self._fail(request, plan, error)
                admission.place += request.slot < 0  # else it has left those who wait

    def _count(self, admission: Admission, request: Request) -> None:
        """One more prompt that the step has had its turn with."""
        admission.partial += request.in_prompt
        admission.long += request.in_prompt and self._is_long(request)

    def _has_waited(self, request: Request) -> bool:
        """So long that nobody takes any more what it waits for."""
        return bool(request.num_preemptions) or request.num_overtaken >= OVERTAKEN_STEPS

    def _has_pages(
        self, request: Request, hit: PrefixHit, admission: Admission, prompts: list[Request]
    ) -> bool:
        """Whether all its known tokens have pages beside what prompts under way still need: else one of them
        would be preempted. They are its own from now on."""
        cache, chunk = self.cache, self.limits.token_budget * self.limits.depth
        if admission.spare is None:
            needs = sum(cache.pages_to_come(one, chunk) for one in prompts if one.slot >= 0)
            admission.spare = cache.pool.num_free - needs
        needed = cache.pages_needed(request, hit, chunk, admission.spare)
        if needed > admission.spare:
            return False
        admission.spare -= needed
        return True

    def _has_room_for(self, adapter: int) -> bool:
        """A step can have the adapter in this place beside those of running requests."""
        running = self.running_adapters
        return adapter in running or len(running) < self.limits.adapters

    def _startable(self, request: Request) -> PrefixHit | None:
        """What the prefix index holds of it; None while something under way has to end first."""
        if request.num_steps:
            return None
        hit = self.cache.find_prefix(request)
        return None if self.cache.is_promised(request, hit) else hit

    def _delayed(self, now: float) -> bool:
        """Whether admission waits for more prompts to gather (`--scheduler-delay-factor`)."""
        if not self.limits.delay_factor or not self.waiting or not self.running:
            return False
        oldest = min(request.arrival for request in self.waiting)
        return now - oldest < self.limits.delay_factor * self._last_prompt_seconds

    def _start(self, request: Request, hit: PrefixHit, plan: PlanInMaking, now: float) -> None:
        del self.waiting[self._place(self.waiting, request)]
        bisect.insort(self.running, request, key=self._order)
        request.slot = self._free_slots.pop()
        if request.adapter >= 0:
            self.running_adapters[request.adapter] = self.running_adapters.get(request.adapter, 0) + 1
        request.scheduled_time = request.scheduled_time or now
        pages, copies = self.cache.admit(request, hit)
        plan.swap_in += copies
        if request.num_preemptions == 0:
            request.num_cached = max(0, hit.num_tokens - request.num_virtual)
            self.prefix_queries += request.num_prompt - request.num_virtual if request.counted else 0
            self.prefix_hits += request.num_cached
        plan.starts[request] = SlotStart(
            request.slot,
            list(request.tokens),
            request.num_prompt,
            request.granted,
            request.params,
            request.prompt_logprobs_from,
            request.masked,
            request.adapter,
            request.pooling,
            request.given,
        )
        self._grant(request, request.num_left, plan, pages)

    def _fail(self, request: Request, plan: PlanInMaking, error: Exception) -> None:
        """Leave the request out of the plan; the core ends it."""
        plan.withdraw(request)
        self.failures.append((request, error))

    def _preempt(self, request: Request, plan: PlanInMaking) -> None:
        plan.withdraw(request)
        copies = self.cache.swap_out(request)
        plan.swap_out += copies
        if not copies:
            request.granted = request.committed = 0
        request.quiet_until = 0
        self._vacate(request)
        self._wait(request)
        request.num_preemptions += 1
        self.num_preemptions += 1
        plan.preempted.append(request)

    def _vacate(self, request: Request, *, failed: bool = False) -> None:
        del self.running[self._place(self.running, request)]
        self.cache.release(request, failed=failed)
        self._free_slots.append(request.slot)
        request.slot = -1
        if request.adapter >= 0:
            self.running_adapters[request.adapter] -= 1
            if not self.running_adapters[request.adapter]:
                del self.running_adapters[request.adapter]

    def _tokens_of_step(self, num_decodes: int) -> int:
        """Most tokens of a step: while requests wait for their next token, it must not take long."""
        limits = self.limits
        if not num_decodes or not limits.beside_decodes:
            return limits.token_budget
        return min(limits.token_budget, limits.beside_decodes + num_decodes * (1 + limits.num_drafts))

    def _chunk(self, request: Request) -> int:
        """Most tokens to grant at once: a long prompt must not take the whole step from others."""
        limits = self.limits
        if limits.chunked_prefill and self._is_long(request):
            return limits.long_prompt
        return limits.token_budget

    def _is_long(self, request: Request) -> bool:
        return 0 < self.limits.long_prompt < request.num_prompt

    def _place(self, requests: list[Request], request: Request) -> int:
        return bisect.bisect_left(requests, self._order(request), key=self._order)

    def _order(self, request: Request) -> tuple[int, int]:
        return (request.priority if self.limits.by_priority else 0, request.sequence)
