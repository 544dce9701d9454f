"""The core loop: take what has arrived, plan a step, run it, tell the clients."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

from slipway.engine.executor import Executor
from slipway.engine.messages import (
    AbortRequests,
    AddRequest,
    Call,
    Delta,
    FromClient,
    Reply,
    Stats,
    StepDone,
    TokenLogprobs,
)
from slipway.engine.plan import StepOutput, StepPlan
from slipway.engine.request import Request
from slipway.engine.scheduler import Scheduler
from slipway.engine.wire import Hub


class EngineCore:
    """Owns every live request. One thread; blocks only when there is nothing to do."""

    def __init__(
        self,
        scheduler: Scheduler,
        executor: Executor,
        hub: Hub,
        idle: Callable[[], bool] = lambda: False,
    ) -> None:
        self.scheduler = scheduler
        self.executor = executor
        self.hub = hub
        self._idle = idle
        """A few milliseconds of work that may be done while there is nothing to do; False: none is left."""
        self.num_steps = 0
        self._requests: dict[tuple[int, str], Request] = {}
        self._clients: set[int] = set()
        self._num_arrived = 0
        self._under_way: deque[tuple[StepPlan, list[Request], float]] = deque()
        self._checked = True

    def run(self) -> None:
        """Serve until the launching process has gone."""
        while not self.hub.closed:
            self.run_once(timeout=None)

    def run_once(self, timeout: float | None = 0) -> None:
        """One turn; waits for messages up to `timeout` where there is no work."""
        busy = self.scheduler.has_work or bool(self._under_way)
        if not busy and not self._checked:
            self._rest()
        arrived = self.hub.poll(0)
        if not busy and not arrived and not self._idle():
            arrived = self.hub.poll(timeout)
        for client_id, message in arrived:
            self._receive(client_id, message)
        plan, requests = self.scheduler.schedule(time.monotonic())
        if requests or plan.swap_out:  # pages are given away in the next plan: copy them before
            self._under_way.append((plan, requests, time.monotonic()))
            self.executor.submit(plan)
            self._checked = False
        if self._under_way and (not requests or len(self._under_way) == self.executor.depth):
            plan, requests, started = self._under_way.popleft()
            self._finish_step(plan, requests, self.executor.collect(), started)

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
        groups = len(self.scheduler.cache.windows)
        request = Request(client_id, message, self._num_arrived, groups)
        self._requests[client_id, request.id] = request
        self.scheduler.add(request)

    def _end(self, key: tuple[int, str]) -> None:
        request = self._requests.pop(key, None)
        if request is not None:
            self.scheduler.end(request)

    def _answer(self, method: str) -> str:
        if method == "reset_prefix_cache":
            self.scheduler.cache.pool.forget_all()
            return "ok"
        if method == "check":
            self.scheduler.cache.check(self.scheduler.running)
            return "ok"
        return f"unknown method {method!r}"

    def _finish_step(
        self, plan: StepPlan, requests: list[Request], output: StepOutput, started: float
    ) -> None:
        now = time.monotonic()
        self.num_steps += 1
        failed = set(output.failed)
        deltas: dict[int, list[Delta]] = {client_id: [] for client_id in self._clients}
        for index, request in enumerate(requests):
            token = output.tokens[index]
            drew = token >= 0 or index in failed
            request.num_in_flight -= drew
            if self._requests.get((request.client_id, request.id)) is not request:
                continue  # ended while the step ran
            request.prompt_logprobs += output.prompt_logprobs.get(index, ())
            if token >= 0:
                request.tokens.append(token)
            self.scheduler.computed(request, now)
            if drew:
                delta = self._delta(request, token, output.logprobs.get(index), now)
                deltas[request.client_id].append(delta)
        self._tell(deltas, [sum(plan.num_new)], [now - started])

    def _delta(self, request: Request, token: int, logprobs: TokenLogprobs | None, now: float) -> Delta:
        if token < 0:
            error = "the model's logits were no numbers (NaN); its weights or the dtype may be unfit"
            delta = Delta(request.id, [], "error", error=error)
        else:
            delta = Delta(request.id, [token], finish_reason(request))
            delta.stop_token_id = token if delta.finish_reason == "stop" else None
            delta.logprobs = [logprobs] if logprobs is not None else None
        if not request.first_token_time:
            request.first_token_time = now
            delta.timing = request.timing(now)
            delta.num_cached_tokens = request.num_cached
            if request.params.num_prompt_logprobs >= 0:
                delta.prompt_logprobs = request.prompt_logprobs
        if delta.finish_reason is not None:
            delta.timing = request.timing(now)
            self._end((request.client_id, request.id))
        return delta

    def _tell(
        self, deltas: dict[int, list[Delta]], num_step_tokens: list[int], step_seconds: list[float]
    ) -> None:
        """One frame for each client, with deltas or as a heartbeat."""
        scheduler = self.scheduler
        for client_id, news in deltas.items():
            stats = Stats(
                len(scheduler.running),
                len(scheduler.waiting),
                scheduler.cache.pool.usage,
                self.num_steps,
                num_step_tokens,
                step_seconds,
                num_swapped=scheduler.cache.num_swapped,
                swap_usage=scheduler.cache.host.usage,
            )
            # Totals belong to the core: the first client reports them, so that sums stay right.
            if client_id == min(deltas):
                stats.prefix_queries, scheduler.prefix_queries = scheduler.prefix_queries, 0
                stats.prefix_hits, scheduler.prefix_hits = scheduler.prefix_hits, 0
                stats.preemptions, scheduler.num_preemptions = scheduler.num_preemptions, 0
            self.hub.send(client_id, StepDone(news, stats))

    def _rest(self) -> None:
        """Nothing runs: every page must be free. Raises RuntimeError where one is not.

        Only counted, not walked: a walk takes 4 ms for 16 k pages, and the next request waits.
        """
        for pool in (self.scheduler.cache.pool, self.scheduler.cache.host):
            if pool.num_free != pool.num_pages:
                raise RuntimeError(f"{pool.num_pages - pool.num_free} pages are held and no request runs")
        self._tell({client_id: [] for client_id in self._clients}, [], [])
        self._checked = True


def finish_reason(request: Request) -> str | None:
    """Why a request that has just drawn its last token ends, or None."""
    num_output = len(request.tokens) - request.num_prompt
    if request.tokens[-1] in request.params.stop_token_ids and num_output > request.params.min_tokens:
        return "stop"
    if num_output >= request.params.max_tokens:
        return "length"
    return None
