"""The engine on models of real shapes with random weights: the stage `engine`.

Scheduler, worker and model run as they serve, in this process, without HTTP. A request's tokens are counted
as they come out. On a machine without a GPU a tiny model goes through the interpreter: that the stage runs is
known then, and no rate is written.
"""

from __future__ import annotations

import argparse
import gc
import random
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from device import CUDA
from shapes import written
from table import Rows

from slipway.engine.config import EngineConfig
from slipway.engine.messages import AddRequest, FromEngine, StepDone
from slipway.engine.params import SamplingParams
from slipway.engine.start import Start
from slipway.engine.wire import Inbound

GRAPH_SIZES = [1, 2, 4, *range(8, 513, 8)]


class Hub:
    """The core's hub without sockets: what came out, and when."""

    closed = False

    def __init__(self) -> None:
        self.inbox: list[Inbound] = []
        self.tokens: dict[str, list[float]] = {}

    def poll(self, timeout: float | None) -> list[Inbound]:
        inbox, self.inbox = self.inbox, []
        return inbox

    def send(self, client_id: int, message: FromEngine) -> None:
        assert isinstance(message, StepDone)
        now = time.perf_counter()
        for delta in message.deltas:
            self.tokens.setdefault(delta.request_id, []).extend([now] * len(delta.token_ids))

    def broadcast(self, message: FromEngine, *, greet: bool = False) -> None:
        return None


@dataclass(frozen=True, slots=True)
class Work:
    """Requests that begin together."""

    requests: int
    input_len: int
    output_len: int

    def prompts(self, vocab: int, seed: int) -> Iterator[list[int]]:
        rng = random.Random(seed)
        for _ in range(self.requests):
            yield [rng.randrange(2, vocab) for _ in range(self.input_len)]


class Engine:
    """A started engine."""

    def __init__(self, shape: str, folder: Path, **settings: object) -> None:
        self.hub = Hub()
        config = EngineConfig(
            model=str(written(shape, folder)),
            load_format="dummy",
            device="cuda",
            graph_sizes=GRAPH_SIZES if CUDA else [],
            use_tqdm_on_load=False,
            **settings,  # type: ignore[arg-type]
        )
        begun = time.perf_counter()
        self.start = Start(config, self.hub)  # type: ignore[arg-type]
        self.core = self.start.core(self.start.worker())
        self.start_seconds = time.perf_counter() - begun
        self.vocab = self.start.plan.vocab
        self._runs = 0

    def run(self, work: Work) -> dict[str, list[float]]:
        """When each token of each request came, in seconds since all were sent."""
        self._runs += 1
        self.hub.tokens.clear()
        params = SamplingParams(work.output_len, temperature=0.0)
        for number, prompt in enumerate(work.prompts(self.vocab, self._runs)):
            self.hub.inbox.append(Inbound(0, AddRequest(str(number), prompt, params)))
        begun = time.perf_counter()
        self.core.run_once()
        while self.core.scheduler.has_work or self.core._under_way:
            self.core.run_once()
        return {name: [at - begun for at in times] for name, times in self.hub.tokens.items()}

    def close(self) -> None:
        self.core.executor.close()
        del self.core, self.start
        gc.collect()
        if CUDA:
            torch.cuda.empty_cache()


def decode_rate(times: dict[str, list[float]], work: Work) -> float:
    """Tokens a second of all requests together, from the moment at which the last of them began."""
    begun = max(one[0] for one in times.values())
    ended = max(one[-1] for one in times.values())
    return sum(at > begun for one in times.values() for at in one) / (ended - begun)


def throughput(times: dict[str, list[float]]) -> float:
    return sum(map(len, times.values())) / max(one[-1] for one in times.values())


def measure(engine: Engine, rows: Rows, title: dict[str, object], sizes: Sequence[int]) -> None:
    """Decode by batch, prefill, and many requests at once."""
    input_len, output_len = (512, 128) if CUDA else (8, 4)
    for batch in sizes:
        work = Work(batch, input_len, output_len)
        engine.run(work)  # captures what graphs are missing
        times = engine.run(work)
        rate = decode_rate(times, work) if CUDA else None
        rows.add(**title, what="decode", batch=batch, tok_s=rate, itl_ms=rate and batch / rate * 1e3)
        if rows.late:
            return
    for length in (2048, 8192) if CUDA else (32,):
        work = Work(4 if CUDA else 1, length, 1)
        engine.run(work)
        last = max(one[-1] for one in engine.run(work).values())
        rows.add(**title, what="prefill", input=length, tok_s=work.requests * length / last if CUDA else None)
        if rows.late:
            return
    work = Work(1024, 1000, 1000) if CUDA else Work(3, 10, 5)
    times = engine.run(work)
    counted = sum(map(len, times.values()))
    if counted != work.requests * work.output_len:
        raise RuntimeError(f"{counted} tokens came of {work.requests * work.output_len}")
    rows.add(
        **title,
        what=f"{work.requests} requests {work.input_len}/{work.output_len}",
        tok_s=throughput(times) if CUDA else None,
    )


def memory() -> dict[str, object]:
    if not CUDA:
        return {}
    free, total = torch.cuda.mem_get_info()
    return {
        "allocated_GiB": torch.cuda.memory_allocated() / 2**30,
        "reserved_GiB": torch.cuda.memory_reserved() / 2**30,
        "used_GiB": (total - free) / 2**30,
    }


RUNS: tuple[tuple[str, dict[str, object], tuple[int, ...]], ...] = (
    ("llama-8b", {}, (1, 8, 64, 256)),
    ("llama-8b", {"quantization": "fp8", "kv_cache_dtype": "fp8"}, (1, 8, 64, 256)),
    ("qwen3-0.6b", {}, (1, 64, 256)),
    ("qwen3-4b", {}, (1, 64)),
    ("mixtral-8-layers", {}, (1, 64)),
)
INTERPRETED_BOUNDS = {"max_num_seqs": 4, "max_num_batched_tokens": 16, "num_blocks": 32}
"""The interpreter runs every program of a kernel in Python, in the largest step too."""
INTERPRETED: tuple[tuple[str, dict[str, object], tuple[int, ...]], ...] = (("tiny", {}, (1, 3)),)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--deadline", type=float, default=500, help="seconds after which nothing is begun")
    parser.add_argument("--only", nargs="*", help="shapes")
    arguments = parser.parse_args()
    rows = Rows(arguments.out, "engine", arguments.deadline)
    with tempfile.TemporaryDirectory() as folder:
        for shape, settings, sizes in RUNS if CUDA else INTERPRETED:
            if rows.late or (arguments.only and shape not in arguments.only):
                continue
            title: dict[str, object] = {"model": shape, **settings}
            bounds = {"max_num_seqs": 512, "max_model_len": 16384} if CUDA else INTERPRETED_BOUNDS
            engine = Engine(shape, Path(folder), **bounds, **settings)
            phases = {f"{name}_s": took for name, took in engine.start.seconds.items()} if CUDA else {}
            rows.add(**title, what="start", **phases, **memory())
            measure(engine, rows, title, sizes)
            engine.close()


if __name__ == "__main__":
    main()
