"""Whether a request's output depends on how it was computed: the stage `invariance`.

In fp32 a token may differ only where the base run's own two best are within 1e-3; in bf16, at the first
difference, each side's token must be among the other's five best. Graphs and launching ahead change no batch
shape, so that they must not change a bit. On a machine without a GPU the same runs in the interpreter.
"""

from __future__ import annotations

import argparse
import os
import random
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from device import CUDA
from shapes import written
from table import Rows

from engine import GRAPH_SIZES, Hub
from slipway.engine.config import EngineConfig
from slipway.engine.messages import AddRequest, Delta, FromEngine, StepDone, TokenLogprobs
from slipway.engine.params import SamplingParams
from slipway.engine.start import Start
from slipway.engine.wire import Inbound

Request = tuple[list[int], SamplingParams]
Told = list[tuple[int, TokenLogprobs]]
"""Of one request: each token with its log-probability and the best alternatives."""

TIED = 1e-3
AXES: dict[str, dict[str, object]] = {
    "chunks of 5": {"max_num_batched_tokens": 5},
    "chunks of 64": {"max_num_batched_tokens": 64},
    "blocks of 8": {"block_size": 8, "num_blocks": 128},
    "blocks of 128": {"block_size": 128, "num_blocks": 16},
    "prefix cache": {"enable_prefix_caching": True},
    "preemption": {"num_blocks": 10},
    "torch's attention": {"attention_backend": "TORCH_SDPA"},
}
EXACT: dict[str, dict[str, object]] = {
    "in turn": {"overlap": False},
    "without graphs": {"graph_sizes": []},
}


class Telling(Hub):
    """Keeps what was said of each token."""

    def __init__(self) -> None:
        super().__init__()
        self.told: dict[str, Told] = {}

    def send(self, client_id: int, message: FromEngine) -> None:
        assert isinstance(message, StepDone)
        for delta in message.deltas:
            self.told.setdefault(delta.request_id, []).extend(_said(delta))


def _said(delta: Delta) -> Told:
    return list(zip(delta.token_ids, delta.logprobs or (), strict=True))


def run(model: Path, work: Sequence[Request], settings: Mapping[str, object]) -> list[Told]:
    base: dict[str, object] = {
        "max_num_seqs": 8,
        "max_model_len": 128,
        "num_blocks": 64,
        "enable_prefix_caching": False,
        "graph_sizes": GRAPH_SIZES if CUDA else [],
        "max_num_batched_tokens": 256 if CUDA else 32,
    }
    hub = Telling()
    config = EngineConfig(
        model=str(model),
        load_format="dummy",
        device="cuda",
        use_tqdm_on_load=False,
        **(base | dict(settings)),  # type: ignore[arg-type]
    )
    start = Start(config, hub)  # type: ignore[arg-type]
    core = start.core(start.worker())
    for number, (prompt, params) in enumerate(work):
        hub.inbox.append(Inbound(0, AddRequest(str(number), list(prompt), params)))
    core.run_once()
    while core.scheduler.has_work or core._under_way:
        core.run_once()
    core.executor.close()
    return [hub.told[str(number)] for number in range(len(work))]


def requests(vocab: int, count: int, output: int) -> list[Request]:
    rng = random.Random(5)
    made: list[Request] = []
    for number in range(count):
        prompt = [rng.randrange(2, vocab) for _ in range(rng.randint(1, 40))]
        sampled = {"temperature": 0.9, "top_k": 50, "top_p": 0.95} if number % 2 else {"temperature": 0.0}
        made.append((prompt, SamplingParams(output, seed=number, num_logprobs=5, **sampled)))  # type: ignore[arg-type]
    return made


def differences(found: Sequence[Told], base: Sequence[Told], *, dtype: str, exact: bool) -> list[str]:
    """What is not as it must be, one sentence for each request."""
    wrong = []
    for number, (ours, theirs) in enumerate(zip(found, base, strict=True)):
        if exact:
            if ours != theirs:
                wrong.append(f"request {number} is not the same to the bit")
            continue
        for place, ((token, said), (other, other_said)) in enumerate(zip(ours, theirs, strict=False)):
            if token == other:
                continue
            best = [logprob for _, logprob in other_said.top[:2]]
            tied = len(best) == 2 and best[0] - best[1] < TIED
            near = token in dict(other_said.top) and other in dict(said.top)
            if not (tied if dtype == "float32" else near):
                wrong.append(f"request {number} has {token} for {other} at token {place}")
            break
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--deadline", type=float, default=500, help="seconds after which nothing is begun")
    arguments = parser.parse_args()
    rows = Rows(arguments.out, "invariance", arguments.deadline)
    torch.backends.cuda.matmul.allow_tf32 = False
    os.environ["NVIDIA_TF32_OVERRIDE"] = "0"
    count, output = (8, 24) if CUDA else (3, 4)
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        model = written("tiny", Path(folder))
        work = requests(500, count, output)
        for dtype in ("float32", "bfloat16"):
            base = run(model, work, {"dtype": dtype})
            for axis, settings in (AXES | EXACT).items():
                if rows.late or (axis == "without graphs" and not CUDA):
                    continue
                found = run(model, work, {"dtype": dtype, **settings})
                wrong = differences(found, base, dtype=dtype, exact=axis in EXACT)
                failed += bool(wrong)
                rows.add(dtype=dtype, axis=axis, correct=not wrong, wrong="; ".join(wrong) or None)
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
