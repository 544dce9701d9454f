"""An engine in this process: scheduler, worker and model as they serve, without HTTP."""

from __future__ import annotations

import gc
import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

import torch
from answers import Said
from device import CUDA

from slipway.args.derive import expand_graph_sizes
from slipway.engine.config import EngineConfig
from slipway.engine.messages import AddRequest, Delta, FromEngine, StepDone, TokenLogprobs
from slipway.engine.params import SamplingParams
from slipway.engine.start import Start
from slipway.engine.wire import Inbound
from slipway.worker.device.worker import DeviceWorker

GRAPH_SIZES = expand_graph_sizes([512])
"""As `--cuda-graph-sizes` has them where nothing is asked."""
INTERPRETED = {"max_num_seqs": 4, "max_num_batched_tokens": 16, "num_blocks": 32}
"""The interpreter runs every program of a kernel in Python, in the largest step too."""

Request = tuple[Sequence[int], SamplingParams]
"""A prompt, and how it goes on."""


class Hub:
    """The core's hub without sockets: what came out, and when."""

    closed = False

    def __init__(self) -> None:
        self.inbox: list[Inbound] = []
        self.answers: dict[str, list[Said]] = {}
        self.prompt_logprobs: dict[str, list[TokenLogprobs | None]] = {}
        self.unfinished = 0
        self.prefix_hits = 0
        self.preemptions = 0
        self._begun = 0.0

    def ask(self, requests: Sequence[Request]) -> None:
        """Have the engine find these at its next turn."""
        self.answers = {str(number): [] for number in range(len(requests))}
        self.unfinished = len(requests)
        for number, (prompt, params) in enumerate(requests):
            self.inbox.append(Inbound(0, AddRequest(str(number), list(prompt), params)))
        self._begun = time.perf_counter()

    def poll(self, timeout: float | None) -> list[Inbound]:
        inbox, self.inbox = self.inbox, []
        return inbox

    def wake(self) -> None:
        return None

    def send(self, client_id: int, message: FromEngine) -> None:
        assert isinstance(message, StepDone)
        at = time.perf_counter() - self._begun
        self.prefix_hits += message.stats.prefix_hits
        self.preemptions += message.stats.preemptions
        for delta in message.deltas:
            self._hear(delta, at)

    def broadcast(self, message: FromEngine) -> None:
        return None

    def _hear(self, delta: Delta, at: float) -> None:
        if delta.error:
            raise RuntimeError(f"request {delta.request_id} failed: {delta.error}")
        if delta.prompt_logprobs is not None:
            self.prompt_logprobs[delta.request_id] = delta.prompt_logprobs
        told = zip_longest(delta.token_ids, delta.logprobs or ())
        self.answers[delta.request_id] += [Said(token, logprob, at) for token, logprob in told]
        self.unfinished -= delta.finish_reason is not None


class Engine:
    """A started engine. `settings` are EngineConfig's; without any it serves random weights on CUDA."""

    def __init__(self, model: Path, **settings: object) -> None:
        self.hub = Hub()
        usual: dict[str, object] = {
            "load_format": "dummy",
            "device": "cuda",
            "graph_sizes": GRAPH_SIZES if CUDA else [],
            "use_tqdm_on_load": False,
        }
        config = EngineConfig(model=str(model), **(usual | settings))  # type: ignore[arg-type]
        self.start = Start.of(config, self.hub)  # type: ignore[arg-type]
        self.core = self.start.core(self.hub)  # type: ignore[arg-type]
        while self.start.worker.idle():  # graphs are captured when nothing runs: before anything is measured
            pass

    @property
    def worker(self) -> DeviceWorker:
        """Raises TypeError if the engine computes on a CPU."""
        if not isinstance(self.start.worker, DeviceWorker):
            raise TypeError(f"the worker is a {type(self.start.worker).__name__}, and of no device")
        return self.start.worker

    def run(self, requests: Sequence[Request]) -> list[list[Said]]:
        """The answers to requests that are sent at once."""
        self.hub.ask(requests)
        while self.hub.unfinished:
            self.core.run_once()
        return list(self.hub.answers.values())

    def memory(self) -> dict[str, float]:
        """GiB that the KV cache has, and that the device has in use, with how many tokens the cache holds."""
        ready = self.start.ready()
        kv = self.start.size.num_pages * self.start.plan.kv.page_bytes
        fields = {"kv_tokens": float(ready.num_blocks * ready.block_size), "kv_GiB": kv / 2**30}
        if CUDA:
            free, total = torch.cuda.mem_get_info()
            fields |= {
                "weights_and_state_GiB": (torch.cuda.memory_allocated() - kv) / 2**30,
                "reserved_GiB": torch.cuda.memory_reserved() / 2**30,
                "used_GiB": (total - free) / 2**30,
            }
        return fields

    def close(self) -> None:
        self.core.executor.close()
        del self.core, self.start
        gc.collect()
        if CUDA:
            torch.cuda.empty_cache()


@dataclass(frozen=True, slots=True)
class Work:
    """Greedy requests of random tokens that begin together."""

    requests: int
    input_len: int
    output_len: int

    @property
    def name(self) -> str:
        return f"{self.requests} of {self.input_len}/{self.output_len}"

    @property
    def tokens(self) -> int:
        return self.requests * self.output_len

    def prompts(self, vocab: int, seed: int) -> Iterator[list[int]]:
        rng = random.Random(seed)
        for _ in range(self.requests):
            yield [rng.randrange(2, vocab) for _ in range(self.input_len)]

    def of(self, engine: Engine, seed: int) -> list[Request]:
        """No two seeds have a prompt in common, so that the prefix cache spares nothing."""
        params = SamplingParams(self.output_len, temperature=0.0)
        return [(prompt, params) for prompt in self.prompts(engine.start.plan.route.vocab, seed)]
