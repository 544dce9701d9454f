"""An engine in this process: the real scheduler, pool, worker and model, without sockets and without time."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from slipway.engine.config import EngineConfig
from slipway.engine.core import EngineCore
from slipway.engine.executor import Worker
from slipway.engine.messages import (
    AbortRequests,
    AddRequest,
    Call,
    Delta,
    FromClient,
    FromEngine,
    Reply,
    Stats,
    StepDone,
    TokenLogprobs,
)
from slipway.engine.params import PoolingParams, SamplingParams
from slipway.engine.start import Start
from slipway.engine.wire import Inbound
from slipway.load.arrays import Floats


class LocalHub:
    """The core's hub without sockets: messages in by `inbox`, deltas out by request, replies by call, and the
    latest stats and broadcast."""

    closed = False

    def __init__(self) -> None:
        self.inbox: list[Inbound] = []
        self.deltas: dict[str, list[Delta]] = {}
        self.replies: dict[int, str] = {}
        self.stats: deque[Stats] = deque(maxlen=1000)
        self.told: FromEngine | None = None

    def poll(self, timeout: float | None) -> list[Inbound]:
        inbox, self.inbox = self.inbox, []
        return inbox

    def wake(self) -> None:
        return None

    def send(self, client_id: int, message: FromEngine) -> None:
        if isinstance(message, Reply):
            self.replies[message.call_id] = message.result
            return
        assert isinstance(message, StepDone)
        self.stats.append(message.stats)
        for delta in message.deltas:
            self.deltas.setdefault(delta.request_id, []).append(delta)

    def broadcast(self, message: FromEngine) -> None:
        self.told = message


@dataclass
class Output:
    """All that one request gave."""

    tokens: list[int] = field(default_factory=list)
    finish_reason: str | None = None
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprobs | None] = field(default_factory=list)
    num_cached_tokens: int = 0
    num_preemptions: int = 0


class LocalEngine:
    """`with LocalEngine(model, dtype="float32") as engine: engine.run([...])`."""

    def __init__(self, model: Path | str, **fields: object) -> None:
        defaults: dict[str, object] = {"use_tqdm_on_load": False, "max_num_seqs": 32, "threads": 1}
        self.config = EngineConfig(model=str(model), **(defaults | fields))  # type: ignore[arg-type]
        self.hub = LocalHub()
        self.start = Start.of(self.config, self.hub)  # type: ignore[arg-type]
        self.worker = self.start.worker
        self.core: EngineCore = self.start.core(self.hub)  # type: ignore[arg-type]
        self._count = 0
        self.preemptions = 0
        """Of requests that pool."""

    @property
    def drawing(self) -> Worker:
        """What computes on the rank that draws."""
        return self.worker

    def __enter__(self) -> LocalEngine:
        return self

    def __exit__(self, *error: object) -> None:
        self.core.executor.close()

    def add(self, tokens: list[int], params: SamplingParams, **fields: object) -> str:
        self._count += 1
        message = AddRequest(str(self._count), list(tokens), params, **fields)  # type: ignore[arg-type]
        self.hub.inbox.append(Inbound(0, message))
        return message.request_id

    def tell(self, message: FromClient) -> None:
        self.hub.inbox.append(Inbound(0, message))

    def abort(self, request_id: str) -> None:
        self.tell(AbortRequests([request_id]))

    def call(self, method: str, *arguments: str) -> str:
        """What the core answers to an administrative question."""
        self.tell(Call(0, method, list(arguments)))
        self.core.run_once()
        return self.hub.replies[0]

    def finish(self) -> None:
        """Run until nothing is left, no adapter to be read either, then check the pool."""
        self.core.run_once()
        while self.core.has_work or self.core.adapters.busy or self.hub.inbox:
            self.core.run_once()
        self.core.scheduler.cache.check()

    def run(self, requests: list[tuple[list[int], SamplingParams]]) -> list[Output]:
        """All at once; outputs in the order given."""
        names = [self.add(tokens, params) for tokens, params in requests]
        self.finish()
        return [self.output(name) for name in names]

    def pool(self, prompts: list[list[int]], params: PoolingParams | None = None) -> list[Floats]:
        """What each prompt is pooled to [rows, columns], all at once."""
        pooling = params or PoolingParams()
        names = [self.add(tokens, SamplingParams(1), pooling=pooling) for tokens in prompts]
        self.finish()
        return [self.pooled(name) for name in names]

    def pooled(self, name: str) -> Floats:
        """What one request gave, by its only Delta, which is then `last`."""
        (self.last,) = self.hub.deltas.pop(name)
        assert self.last.timing is not None
        assert self.last.pooled is not None
        assert self.last.finish_reason == "stop"
        self.preemptions += self.last.timing.num_preemptions
        return np.frombuffer(self.last.pooled.values, "<f4").reshape(-1, self.last.pooled.columns)

    def output(self, name: str) -> Output:
        output = Output()
        for delta in self.hub.deltas.pop(name, []):
            output.tokens += delta.token_ids
            output.logprobs += delta.logprobs or []
            output.prompt_logprobs += delta.prompt_logprobs or []
            output.finish_reason = delta.finish_reason
            output.num_cached_tokens += delta.num_cached_tokens
            if delta.timing is not None:
                output.num_preemptions = delta.timing.num_preemptions
        return output
