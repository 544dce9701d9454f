"""The core loop: take what has arrived, plan a step, run it, tell the clients."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from functools import partial

import msgspec

from slipway.engine.adapter_kinds import AdapterKinds
from slipway.engine.ending import NOT_NUMBERS, NOTHING_LEFT, end, failure
from slipway.engine.executor import QUIET_SECONDS, Executor
from slipway.engine.explained import log_step
from slipway.engine.grammar import Grammars, MakeMatcher, no_grammar
from slipway.engine.grants import Grant, Step
from slipway.engine.messages import (
    PARTS,
    AbortRequests,
    AddRequest,
    Call,
    Delta,
    FromClient,
    LoadAdapter,
    Reply,
    UnloadAdapter,
    Work,
)
from slipway.engine.news import News
from slipway.engine.plan import Masks, StepOutput
from slipway.engine.profile import Profiler, profiled
from slipway.engine.request import Request
from slipway.engine.scheduler import Scheduler
from slipway.engine.sleeper import Sleeper
from slipway.engine.wire import Hub, Inbound


class EngineCore:
    """Owns every live request. One thread; blocks only when there is nothing to do."""

    def __init__(
        self,
        scheduler: Scheduler,
        executor: Executor,
        hub: Hub,
        idle: Callable[[], bool] = lambda: False,
        make_matcher: MakeMatcher = no_grammar,
        adapters: AdapterKinds | None = None,
        profiler: Profiler | None = None,
        sleeper: Sleeper | None = None,
        *,
        timed: bool = False,
        pools: bool = False,
        processes: bool = False,
        hidden_size: int = 0,
    ) -> None:
        """timed        each Delta tells the time of the steps that its request was part of
        pools        requests are answered with what their rows are pooled to, and none generates
        processes    requests may bring logits processors
        hidden_size  numbers in each embedding of a prompt that has no tokens; 0: there may be none
        """
        self.scheduler = scheduler
        self.executor = executor
        self.hub = hub
        self._idle = idle
        """Some milliseconds of work that may be done while there is nothing to do; False: none is left."""
        self._profiler = profiler
        self._sleeper = sleeper
        self.grammars = Grammars(make_matcher, hub.wake)
        self.adapters = adapters or AdapterKinds()
        self.news = News(hub, self)
        self._requests: dict[tuple[int, str], Request] = {}
        self._num_arrived = 0
        self._timed = timed
        self._pools, self._processes = pools, processes
        self._hidden_size = hidden_size
        self._under_way: deque[tuple[Step, float, float]] = deque()
        """Steps, and when planning them and computing them began."""
        self._collected = 0.0
        """When the last step had ended."""
        self._checked = True

    @property
    def has_work(self) -> bool:
        """Requests are live."""
        return self._busy or self.grammars.num_waiting > 0 or self.adapters.num_waiting > 0

    @property
    def _busy(self) -> bool:
        """There is a step to plan, or one under way."""
        return self.scheduler.has_work or bool(self._under_way)

    def run(self) -> None:
        """Serve until the launching process has gone."""
        while not self.hub.closed:
            self.run_once(timeout=None)

    def run_once(self, timeout: float | None = 0) -> None:
        """One turn; waits for messages up to `timeout` where there is no work."""
        busy = self._busy
        if not busy and not self._checked:
            self._check_idle()
        arrived = self.hub.poll(0)
        prepared = self.grammars.has_prepared or self.adapters.has_prepared
        if not busy and not arrived and not prepared:
            arrived = self._waited(timeout)
        for client_id, message in arrived:
            self._receive(client_id, message)
        if self.grammars.has_prepared:
            for request in self._prepared(self.grammars.prepared()):
                if self.adapters.prepare(request):
                    self.scheduler.add(request)
        if self.adapters.has_prepared:
            for request in self._prepared(self.adapters.prepared()):
                self.scheduler.add(request)
        planned = time.monotonic()
        with self._profiler.span("schedule") if self._profiler else nullcontext():
            plan, grants = self.scheduler.schedule(planned)
        if grants:
            log_step(self.scheduler)
        if self.scheduler.failures:
            self._end_failed(self.scheduler.failures)
            self.scheduler.failures = []
        changes = self.adapters.changes
        if changes:
            plan = msgspec.structs.replace(plan, adapters=list(changes.values()))
            changes.clear()
        # Pages that are swapped out are given away in the next plan: they are copied before.
        if grants or plan.swap_out or plan.adapters:
            self._under_way.append((grants, planned, time.monotonic()))
            self.executor.launch(plan)
            self.executor.draw(self._masks(grants))
            self._checked = False
        if self._under_way and (not grants or len(self._under_way) == self.executor.depth):
            self._collect()

    def _waited(self, timeout: float | None) -> list[Inbound]:
        """What arrives while there is nothing to do, or nothing where something useful was done."""
        quiet = self._collected + QUIET_SECONDS - time.monotonic()
        if quiet > 0:  # a wake ends this wait: whatever it is about is looked for in the next turn
            return self.hub.poll(quiet if timeout is None else min(quiet, timeout))
        return [] if self._idle() else self.hub.poll(timeout)

    def _masks(self, grants: Step) -> Masks | None:
        """What the step just launched may draw, where grammars say that: they need all tokens before it."""
        masked = self.grammars.masked(grants) if self.grammars else {}
        if not masked and not self._asks_processors(grants):
            return None
        while len(self._under_way) > 1 and not self.scheduler.limits.in_turn:
            self._collect()
        if not masked:
            return None
        masks, failed = self.grammars.masks(masked)
        if failed:
            self._end_failed(failed)
        return masks

    def _asks_processors(self, step: Step) -> bool:
        """Whether the draw waits for processors: what came of the steps before is told first."""
        grants = step.items() if self._processes else ()
        return any(grant.draws and request.params.processors for request, grant in grants)

    def _receive(self, client_id: int, message: FromClient | None) -> None:
        self.news.clients.add(client_id)
        match message:
            case AddRequest():
                self._add(client_id, message)
            case AbortRequests(request_ids):
                for request_id in request_ids:
                    self._end((client_id, request_id))
            case Call(call_id, method, arguments):
                self._reply(client_id, call_id, self._answer(method, arguments))
            case LoadAdapter(call_id, adapter):
                answer = partial(self._reply, client_id, call_id)
                if self._sleeper is not None and self._sleeper.asleep:
                    answer("The engine sleeps, and reads no adapter before it is woken.")
                else:
                    self.adapters.load(adapter, answer)
            case UnloadAdapter(call_id, number):
                self.adapters.unload(number)
                self._reply(client_id, call_id, "ok")
            case None:
                for key in [key for key in self._requests if key[0] == client_id]:
                    self._end(key)
                self.news.clients.discard(client_id)

    def _add(self, client_id: int, message: AddRequest) -> None:
        self._checked = False
        self._num_arrived += 1
        try:
            if self._sleeper is not None:
                self._sleeper.check()
            request = Request(client_id, message, self._num_arrived)
            if (request.pooling is not None) != self._pools:
                does = "pools" if self._pools else "generates"
                raise ValueError(f"this engine {does}, and does nothing else")
            request.check_given(self._hidden_size)
            if request.named is not None:
                self.adapters.check(request.named)
            if request.masked:
                self.grammars.prepare(request, message)
            elif self.adapters.prepare(request):
                self.scheduler.add(request)
        except Exception as error:
            self._tell({client_id: [failure(message.request_id, error)]})
            return
        self._requests[client_id, request.id] = request

    def _prepared(self, prepared: Iterable[tuple[Request, Exception | None]]) -> Iterator[Request]:
        """Those that need not wait any more for their matchers or their adapters; the others have failed."""
        for request, error in prepared:
            if error is None:
                yield request
            else:
                del self._requests[request.client_id, request.id]
                request.ended = True
                self.grammars.end(request)  # made before its adapter was found to be unfit
                self._checked = False
                self._tell({request.client_id: [failure(request.id, error)]})

    def _end(self, key: tuple[int, str], *, failed: bool = False) -> None:
        request = self._requests.pop(key, None)
        if request is not None:
            request.ended = True
            self._checked = False  # clients were told that it waits or runs
            waited = self.grammars.end(request)
            if not self.adapters.end(request) and not waited:
                self.scheduler.end(request, failed=failed)

    def _end_failed(self, failed: list[tuple[Request, Exception]]) -> None:
        """End the requests that could not be planned or masked; the others go on."""
        deltas: dict[int, list[Delta]] = {}
        for request, error in failed:
            deltas.setdefault(request.client_id, []).append(failure(request.id, error))
            self._end((request.client_id, request.id), failed=True)
        self._tell(deltas)

    def _tell(
        self,
        deltas: dict[int, list[Delta]],
        num_step_tokens: Sequence[int] = (),
        step_seconds: Sequence[float] = (),
    ) -> None:
        for key in self.news.send(deltas, num_step_tokens, step_seconds):
            self._end(key, failed=True)

    def _reply(self, client_id: int, call_id: int, result: str) -> None:
        self.hub.send(client_id, Reply(call_id, result))

    def _answer(self, method: str, arguments: list[str]) -> str:
        if method == "reset_prefix_cache":
            self.scheduler.cache.forget_prefixes({int(number) for number in arguments})
            return "ok"
        if method == "check":
            self.scheduler.cache.check()
            return "ok"
        if self._profiler and method in ("start_profile", "stop_profile"):
            return profiled(self._profiler, method)
        if self._sleeper and method == "sleep":
            return self._fall_asleep(self._sleeper, int(arguments[0]))
        if self._sleeper and method == "wake_up":
            return self._sleeper.wake([part for part in PARTS if part in arguments])
        return f"unknown method {method!r}"

    def _fall_asleep(self, sleeper: Sleeper, level: int) -> str:
        """While no request is live: who waits for one is not let down."""
        if count := len(self._requests):
            return (
                f"{count} {'request is' if count == 1 else 'requests are'} live: the engine falls asleep "
                "when none is. Wait for them to end, or abort them."
            )
        if self.adapters.busy:
            return "An adapter is being read: ask again when it is there."
        while self._under_way:  # steps of requests that have ended
            self._collect()
        self.scheduler.cache.forget_prefixes()
        answer = sleeper.sleep(level)
        if answer == "ok" and level == 2:
            self.adapters.forget()
        return answer

    def _collect(self) -> None:
        """Wait for the oldest step under way, and send what came of it."""
        grants, planned, started = self._under_way.popleft()
        output = self.executor.collect()
        now = time.monotonic()
        self.news.num_steps += 1
        seconds = now - max(started, self._collected)  # it was computed when the step before had ended
        if self._timed:
            took = Work(started - planned, output.forward_seconds, seconds)
            for request in grants:
                request.work = took if request.work is None else request.work + took
        self._collected = now
        special = {*output.failed, *output.errors, *output.logprobs, *output.prompt_logprobs, *output.pooled}
        deltas: dict[int, list[Delta]] = {client_id: [] for client_id in self.news.clients}
        for index, ((request, grant), tokens) in enumerate(zip(grants.items(), output.tokens, strict=True)):
            if request.ended:  # while the step ran
                continue
            delta: Delta | None
            try:
                if grant.num_new == 1 and grant.draws and index not in special and request.take(tokens[0]):
                    delta = Delta(request.id, tokens)  # nearly always
                else:
                    delta = self._answered(request, grant, index, output, now)
            except Exception as error:
                delta = failure(request.id, error)
            if delta is not None:
                delta.work = request.work
                deltas[request.client_id].append(delta)
                if delta.finish_reason is not None:
                    self._end((request.client_id, request.id), failed=delta.finish_reason == "error")
        num_tokens = sum(grant.num_new for grant in grants.values())
        if (guessing := self.scheduler.guessing) is not None:
            num_tokens -= sum(grant.num_drafts for grant in grants.values() if not grant.forced)
            plain = 0 < num_tokens == len(grants)  # no prompts, nothing forced, and not adapters alone
            verified = sum(output.verified.values())
            num_tokens += verified
            if plain:
                guessing.took(num_tokens, seconds, verified, output.proposing_seconds)
        if any(request.counted for request in grants):
            self._tell(deltas, [num_tokens], [now - started])
        else:
            self._tell(deltas)
        if self._profiler:
            self._profiler.step(started, now, len(grants), num_tokens)

    def _answered(
        self, request: Request, grant: Grant, index: int, output: StepOutput, now: float
    ) -> Delta | None:
        """Enter in the ledger what a step made of a request; the news of it, if there is any."""
        if (error := output.errors.get(index)) is not None:
            return Delta(request.id, [], "error", error=error, unfit=True)
        tokens, failed, pooled = output.tokens[index], index in output.failed, output.pooled.get(index)
        if output.prompt_logprobs:
            request.prompt_logprobs += output.prompt_logprobs.get(index, ())
        request.tokens.extend(tokens)
        if not failed:
            self.scheduler.commit(request, grant, len(tokens), now)
            if not tokens and pooled is None:
                return None
            if output.verified and index in output.verified and self.scheduler.guessing:
                self.scheduler.guessing.judge(request, output.verified[index], len(tokens))
        delta = Delta(request.id, tokens)
        if output.logprobs:
            delta.logprobs = output.logprobs.get(index)
        if pooled is not None:
            delta.pooled, delta.finish_reason = pooled, "stop"
        complete = None
        if request.masked:
            drafts, forced = output.drafts.get(index, []), self.scheduler.limits.forced
            complete = self.grammars.advance(request, tokens, drafts, forced=forced)
        end(request, delta, complete)
        if not request.counted:
            delta.token_ids = []
        if failed and delta.finish_reason is None:  # else it had ended before that
            delta.finish_reason, delta.unfit = "error", request.masked
            delta.error = NOTHING_LEFT if request.masked else NOT_NUMBERS
        if not request.first_token_time:
            request.first_token_time = now
            delta.timing = request.timing(now)
            delta.num_cached_tokens = request.num_cached
            if request.params.num_prompt_logprobs >= 0:
                delta.prompt_logprobs = request.prompt_logprobs
        elif delta.finish_reason is not None:
            delta.timing = request.timing(now)
        return delta

    def _check_idle(self) -> None:
        """Nothing runs: every page must be free or accounted for. Raises RuntimeError where one is not."""
        self.scheduler.cache.count()
        self.news.heartbeat()
        self._checked = True
