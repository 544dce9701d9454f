"""An engine that says what a test wants, over the real wire; for what a real one cannot be made to do."""

from __future__ import annotations

import socket
import threading
import time
from array import array
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec
from e2e.ground.patience import scaled

from slipway.engine.messages import (
    PARTS,
    AbortRequests,
    AdapterRef,
    AddRequest,
    Call,
    Delta,
    Failed,
    Hello,
    LoadAdapter,
    Loading,
    Pooled,
    Pools,
    Ready,
    Reply,
    RequestTiming,
    Stats,
    StepDone,
    TokenLogprobs,
    UnloadAdapter,
)
from slipway.engine.wire import Hub

VOCABULARY = 512
Answer = Callable[[AddRequest], list[int]]


@dataclass
class _Live:
    client: int
    request: AddRequest
    left: deque[int]
    given: int = 0
    first_token: float = 0.0


def _vectors(tokens: list[int]) -> list[list[float]]:
    """[rows, columns]"""
    return [[len(tokens), tokens[0], tokens[-1], 0.1]]


class ScriptedEngine:
    """Answers each request with the tokens of `answer`, `together` of them a step, until its `max_tokens`.

    `gate` is open at first; while it is closed each request gets `held` tokens and no more.
    `failing` gives every request an error, which is its own fault where `unfit` says so.
    """

    def __init__(
        self, folder: Path, answer: Answer, *, max_model_len: int = 512, pools: Pools | None = None
    ) -> None:
        self.answer = self._first_answer = answer
        self.vectors = _vectors
        """What a prompt that pools comes to."""
        self.socket_path = str(folder / "engine.sock")
        self.requests: list[AddRequest] = []
        self.replies: dict[str, str] = {}
        """To calls, and to adapters by their names; others are answered ok."""
        self.adapters: dict[int, AdapterRef] = {}
        """Those that it was told to read, and not to forget."""
        self.aborted: list[str] = []
        self.calls: list[str] = []
        self.asked: list[list[str]] = []
        """The calls with their arguments."""
        self.falls_asleep = False
        """With the next request, which it refuses."""
        self.num_refused = 0
        self.failing = ""
        self.unfit = False
        self.gate = threading.Event()
        self.gate.set()
        self.held = 0
        self.together = 1
        self.steps = 0
        self._changed = threading.Condition()
        self._end: Failed | None = None
        self._over = threading.Event()
        self._live: dict[str, _Live] = {}
        self._ready = Ready(
            max_model_len, VOCABULARY, 64, 16, "float32", "ScriptedForCausalLM", {"load": 0.1}, pools=pools
        )
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listener.bind(self.socket_path)
        listener.listen(8)
        self._hub = Hub(listener)
        self._loaded = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def finish_loading(self) -> None:
        self._loaded.set()

    def reset(self) -> None:
        """As at the start, for the next test."""
        self.answer, self.failing, self.unfit, self.held = self._first_answer, "", False, 0
        self.together = 1
        self.vectors = _vectors
        self.gate.set()
        for record in (self.requests, self.aborted, self.calls, self.asked):
            record.clear()

    def die(self, failure: Failed | None = None) -> None:
        """End as a crash does: without a word, or with one."""
        self._end = failure
        self._over.set()
        self._thread.join()

    def wait(self, condition: Callable[[], bool], patience: float = 10) -> None:
        """Until something that the engine sees is so. Raises AssertionError where it never is."""
        with self._changed:
            assert self._changed.wait_for(condition, scaled(patience)), "the engine never saw it"

    def _run(self) -> None:
        self._hub.broadcast(Loading("load", 3, 7))
        told = False
        while not self._over.is_set():
            if self._loaded.is_set() and not told:
                told = True
                self._hub.broadcast(self._ready)
            moving = [live for live in self._live.values() if self.gate.is_set() or live.given < self.held]
            for client, message in self._hub.poll(0 if moving else 0.005):
                self._take(client, message)
            if moving:
                self._step(moving)
            with self._changed:
                self._changed.notify_all()
        if self._end is not None:
            self._hub.broadcast(self._end)
        self._hub.close()

    def _take(self, client: int, message: object) -> None:
        match message:
            case AddRequest() if self.falls_asleep:
                self._hub.broadcast(msgspec.structs.replace(self._ready, asleep=PARTS))
                self.num_refused += 1
                refused = Delta(message.request_id, [], "error", error="it sleeps")
                self._hub.send(client, StepDone([refused], Stats(0, 0, 0.0, self.steps)))
            case AddRequest():
                self.requests.append(message)
                left = deque(self.answer(message)[: message.params.max_tokens])
                self._live[message.request_id] = _Live(client, message, left)
            case AbortRequests(request_ids):
                self.aborted += request_ids
                for request_id in request_ids:
                    self._live.pop(request_id, None)
            case Call(call_id, method, arguments):
                self.calls.append(method)
                self.asked.append([method, *arguments])
                self._hub.send(client, Reply(call_id, self.replies.get(method, "ok")))
            case LoadAdapter(call_id, adapter):
                verdict = self.replies.get(adapter.name, "ok")
                if verdict == "ok":
                    self.adapters[adapter.number] = adapter
                self._hub.send(client, Reply(call_id, verdict))
            case UnloadAdapter(call_id, number):
                del self.adapters[number]
                self._hub.send(client, Reply(call_id, "ok"))
            case None:
                self._live.clear()
            case Hello():
                raise AssertionError("the hub keeps the greeting to itself")

    def _step(self, moving: list[_Live]) -> None:
        self.steps += 1
        stats = Stats(len(self._live), 0, 0.25, self.steps, [len(self._live)], [0.01], 4, 1)
        deltas: dict[int, list[Delta]] = {}
        for live in moving:
            delta = self._delta(live)
            deltas.setdefault(live.client, []).append(delta)
            stats.generation_tokens += len(delta.token_ids)
        for client, news in deltas.items():
            self._hub.send(client, StepDone(news, stats))

    def _delta(self, live: _Live) -> Delta:
        request, params = live.request, live.request.params
        if self.failing:
            self._live.pop(request.request_id, None)
            return Delta(request.request_id, [], "error", error=self.failing, unfit=self.unfit)
        if request.pooling is not None:
            self._live.pop(request.request_id, None)
            rows = self.vectors(request.prompt_token_ids)
            pooled = Pooled(array("f", [number for row in rows for number in row]).tobytes(), len(rows[0]))
            return Delta(request.request_id, [], "stop", pooled=pooled)
        now = time.monotonic()
        if live.given == 0:
            live.first_token = now
        tokens = [live.left.popleft()]
        while live.left and len(tokens) < self.together and tokens[-1] not in params.stop_token_ids:
            tokens.append(live.left.popleft())
        delta = Delta(request.request_id, tokens)
        if params.num_logprobs >= 0:
            tops = [[(token, -0.5), (7, -1.5), (8, -2.5)][: params.num_logprobs] for token in tokens]
            delta.logprobs = [TokenLogprobs(-0.5, 1, top) for top in tops]
        if live.given == 0:
            delta.num_cached_tokens = 2
            if params.num_prompt_logprobs >= 0:
                known = [TokenLogprobs(-1.0, 2, [(9, -0.25)][: params.num_prompt_logprobs])]
                delta.prompt_logprobs = [None, *known * (len(request.prompt_token_ids) - 1)]
        live.given += len(tokens)
        if tokens[-1] in params.stop_token_ids:
            delta.finish_reason, delta.stop_token_id = "stop", tokens[-1]
        elif not live.left:
            delta.finish_reason = "length"
        if delta.finish_reason is not None:
            self._live.pop(request.request_id, None)
            delta.timing = RequestTiming(request.arrival_time, request.arrival_time, live.first_token, now, 0)
        return delta
