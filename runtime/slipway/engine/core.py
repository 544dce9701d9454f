"""The core loop: take what has arrived, plan a step, run it, tell the clients."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import nullcontext

import msgspec

from slipway.engine.executor import Executor
from slipway.engine.grammar import Grammars, MakeMatcher, no_grammar
from slipway.engine.grants import Grant, Step
from slipway.engine.messages import (
    AbortRequests,
    AddRequest,
    Call,
    Delta,
    FromClient,
    Reply,
    Stats,
    StepDone,
    Work,
)
from slipway.engine.plan import Masks, StepOutput
from slipway.engine.profile import ProfileError, Profiler
from slipway.engine.request import Request
from slipway.engine.scheduler import Scheduler
from slipway.engine.wire import FrameTooLarge, Hub
from slipway.text.errors import GrammarError

log = logging.getLogger("slipway.engine")

NOT_NUMBERS = "the model's logits were no numbers (NaN); its weights or the dtype may be unfit"
NOTHING_LEFT = "no token was left to draw within its grammar, allowed_token_ids, bad_words and min_tokens"


class EngineCore:
    """Owns every live request. One thread; blocks only when there is nothing to do."""

    def __init__(
        self,
        scheduler: Scheduler,
        executor: Executor,
        hub: Hub,
        idle: Callable[[], bool] = lambda: False,
        make_matcher: MakeMatcher = no_grammar,
        adapters: Sequence[str] = (),
        profiler: Profiler | None = None,
        *,
        timed: bool = False,
    ) -> None:
        """timed  each Delta tells the time of the steps that its request was part of"""
        self.scheduler = scheduler
        self.executor = executor
        self.hub = hub
        self._idle = idle
        """A few milliseconds of work that may be done while there is nothing to do; False: none is left."""
        self._profiler = profiler
        self.grammars = Grammars(make_matcher, hub.wake)
        self.num_steps = 0
        self._num_generated = 0
        """Tokens that no Stats has told of yet."""
        self._adapters = {name: index for index, name in enumerate(adapters)} | {"": -1}
        self._requests: dict[tuple[int, str], Request] = {}
        self._clients: set[int] = set()
        self._num_arrived = 0
        self._timed = timed
        self._under_way: deque[tuple[Step, float, float]] = deque()
        """Steps, and when planning them and computing them began."""
        self._collected = 0.0
        """When the last step had ended."""
        self._checked = True

    @property
    def has_work(self) -> bool:
        """Requests are live."""
        return self._busy or self.grammars.num_waiting > 0

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
        if not busy and not arrived and not self.grammars.has_prepared and not self._idle():
            arrived = self.hub.poll(timeout)
        for client_id, message in arrived:
            self._receive(client_id, message)
        if self.grammars.has_prepared:
            self._add_prepared()
        planned = time.monotonic()
        with self._profiler.span("schedule") if self._profiler else nullcontext():
            plan, grants = self.scheduler.schedule(planned)
        if self.scheduler.failures:
            self._end_failed(self.scheduler.failures)
            self.scheduler.failures = []
        if grants or plan.swap_out:  # pages are given away in the next plan: copy them before
            self._under_way.append((grants, planned, time.monotonic()))
            self.executor.launch(plan)
            self.executor.draw(self._masks(grants))
            self._checked = False
        if self._under_way and (not grants or len(self._under_way) == self.executor.depth):
            self._collect()

    def _masks(self, grants: Step) -> Masks | None:
        """What the step just launched may draw, where grammars say that: they need all tokens before it."""
        masked = self.grammars.masked(grants) if self.grammars else {}
        if not masked:
            return None
        while len(self._under_way) > 1:
            self._collect()
        masks, failed = self.grammars.masks(masked)
        if failed:
            self._end_failed(failed)
        return masks

    def _receive(self, client_id: int, message: FromClient | None) -> None:
        self._clients.add(client_id)
        match message:
            case AddRequest():
                self._add(client_id, message)
            case AbortRequests(request_ids):
                for request_id in request_ids:
                    self._end((client_id, request_id))
            case Call(call_id, method):
                self.hub.send(client_id, Reply(call_id, self._answer(method)))
            case None:
                for key in [key for key in self._requests if key[0] == client_id]:
                    self._end(key)
                self._clients.discard(client_id)

    def _add(self, client_id: int, message: AddRequest) -> None:
        self._checked = False
        self._num_arrived += 1
        try:
            request = Request(client_id, message, self._num_arrived)
            if message.adapter not in self._adapters:
                raise ValueError(f"there is no adapter {message.adapter!r}")
            request.adapter = self._adapters[message.adapter]
            if request.masked:
                self.grammars.prepare(request, message)
            else:
                self.scheduler.add(request)
        except Exception as error:
            self._send({client_id: [failure(message.request_id, error)]}, [], [])
            return
        self._requests[client_id, request.id] = request

    def _add_prepared(self) -> None:
        """Schedule the requests whose matchers have been made."""
        for request, error in self.grammars.prepared():
            if error is None:
                self.scheduler.add(request)
            else:
                del self._requests[request.client_id, request.id]
                request.ended = True
                self._checked = False
                self._send({request.client_id: [failure(request.id, error)]}, [], [])

    def _end(self, key: tuple[int, str], *, failed: bool = False) -> None:
        request = self._requests.pop(key, None)
        if request is not None:
            request.ended = True
            self._checked = False  # clients were told that it waits or runs
            if not self.grammars.end(request):
                self.scheduler.end(request, failed=failed)

    def _end_failed(self, failed: list[tuple[Request, Exception]]) -> None:
        """End the requests that could not be planned or masked; the others go on."""
        deltas: dict[int, list[Delta]] = {}
        for request, error in failed:
            deltas.setdefault(request.client_id, []).append(failure(request.id, error))
            self._end((request.client_id, request.id), failed=True)
        self._send(deltas, [], [])

    def _answer(self, method: str) -> str:
        if method == "reset_prefix_cache":
            self.scheduler.cache.pool.forget_all()
            return "ok"
        if method == "check":
            self.scheduler.cache.check()
            return "ok"
        if self._profiler and method in ("start_profile", "stop_profile"):
            return profiled(self._profiler, method)
        return f"unknown method {method!r}"

    def _collect(self) -> None:
        """Wait for the oldest step under way, and send what came of it."""
        grants, planned, started = self._under_way.popleft()
        output = self.executor.collect()
        now = time.monotonic()
        self.num_steps += 1
        if self._timed:
            took = Work(started - planned, output.forward_seconds, now - max(started, self._collected))
            for request in grants:
                request.work = took if request.work is None else request.work + took
        self._collected = now
        special = {*output.failed, *output.logprobs, *output.prompt_logprobs}
        deltas: dict[int, list[Delta]] = {client_id: [] for client_id in self._clients}
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
                self._num_generated += len(delta.token_ids)
                delta.work = request.work
                deltas[request.client_id].append(delta)
                if delta.finish_reason is not None:
                    self._end((request.client_id, request.id), failed=delta.finish_reason == "error")
        num_tokens = sum(grant.num_new for grant in grants.values())
        self._send(deltas, [num_tokens], [now - started])
        if self._profiler:
            self._profiler.step(started, now, len(grants), num_tokens)

    def _answered(
        self, request: Request, grant: Grant, index: int, output: StepOutput, now: float
    ) -> Delta | None:
        """Enter in the ledger what a step made of a request; the news of it, if there is any."""
        tokens, failed = output.tokens[index], index in output.failed
        if output.prompt_logprobs:
            request.prompt_logprobs += output.prompt_logprobs.get(index, ())
        request.tokens.extend(tokens)
        if not failed:
            self.scheduler.commit(request, grant, len(tokens), now)
            if not tokens:
                return None
        delta = Delta(request.id, tokens)
        if output.logprobs:
            delta.logprobs = output.logprobs.get(index)
        complete = None
        if request.masked:
            drafts, forced = output.drafts.get(index, []), self.scheduler.limits.forced
            complete = self.grammars.advance(request, tokens, drafts, forced=forced)
        end(request, delta, complete)
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

    def _send(
        self, deltas: dict[int, list[Delta]], num_step_tokens: list[int], step_seconds: list[float]
    ) -> None:
        """One frame for each client, with deltas or as a heartbeat."""
        scheduler = self.scheduler
        for client_id in sorted(deltas):
            stats = Stats(
                len(scheduler.running),
                len(scheduler.waiting) + self.grammars.num_waiting,
                scheduler.cache.pool.usage,
                self.num_steps,
                num_step_tokens,
                step_seconds,
                scheduler.prefix_queries,
                scheduler.prefix_hits,
                scheduler.num_preemptions,
                num_deferred=scheduler.num_deferred + self.grammars.num_waiting,
                num_swapped=len(scheduler.cache.swapped),
                swap_usage=scheduler.cache.host.usage,
                prompt_tokens=scheduler.prompt_tokens,
                generation_tokens=self._num_generated,
            )
            # What is counted belongs to the core: the first client reports it, so that sums stay right.
            scheduler.prefix_queries = scheduler.prefix_hits = scheduler.num_preemptions = 0
            scheduler.prompt_tokens = self._num_generated = 0
            num_step_tokens, step_seconds = [], []
            try:
                self.hub.send(client_id, StepDone(deltas[client_id], stats))
            except FrameTooLarge:
                self.hub.send(client_id, StepDone([], stats))
                self._send_apart(client_id, deltas[client_id], stats)

    def _send_apart(self, client_id: int, deltas: list[Delta], told: Stats) -> None:
        """News in a frame each; a request whose own fill no frame ends."""
        stats = msgspec.structs.replace(
            told,
            num_step_tokens=[],
            step_seconds=[],
            prefix_queries=0,
            prefix_hits=0,
            preemptions=0,
            prompt_tokens=0,
            generation_tokens=0,
        )
        for delta in deltas:
            try:
                self.hub.send(client_id, StepDone([delta], stats))
            except FrameTooLarge as error:
                self._end((client_id, delta.request_id), failed=True)
                ended = Delta(delta.request_id, [], "error", error=str(error), unfit=True)
                self.hub.send(client_id, StepDone([ended], stats))

    def _check_idle(self) -> None:
        """Nothing runs: every page must be free or accounted for. Raises RuntimeError where one is not."""
        self.scheduler.cache.count()
        self._send({client_id: [] for client_id in self._clients}, [], [])
        self._checked = True


def end(request: Request, delta: Delta, complete: int | None) -> None:
    """Say in the news why the request ends, if its newest tokens end it, and drop those that follow.

    complete  how many of them complete the text that its grammar asks for
    """
    params, tokens = request.params, delta.token_ids
    num_before = len(request.tokens) - request.num_prompt - len(tokens)
    for count, token in enumerate(tokens, 1):
        if token in request.stop_tokens and num_before + count > params.min_tokens:
            delta.finish_reason, delta.stop_token_id = "stop", token
        elif count == complete:
            delta.finish_reason = "stop"
        elif num_before + count >= params.max_tokens:
            delta.finish_reason = "length"
        else:
            continue
        delta.token_ids = tokens[:count]
        delta.logprobs = delta.logprobs and delta.logprobs[:count]
        return


def profiled(profiler: Profiler, method: str) -> str:
    """The answer to a call that starts or stops a trace: `ok`, with the trace's file, or what prevents it."""
    try:
        if method == "start_profile":
            profiler.start()
            return "ok"
        return f"ok {profiler.stop()}"
    except ProfileError as error:
        return str(error)
    except Exception as error:  # the disk's or torch's; steps go on
        log.exception("no trace was made")
        return f"failed: no trace was made: {error}"


def failure(request_id: str, error: Exception) -> Delta:
    """The end of a request that could not go on; the log has the traceback, where the engine is at fault."""
    if isinstance(error, GrammarError):
        return Delta(request_id, [], "error", error=f"its grammar cannot be followed: {error}", unfit=True)
    log.error("request %s failed", request_id, exc_info=error)
    return Delta(request_id, [], "error", error=f"{type(error).__name__}: {error}")
