"""Preempted requests wait in host memory and go on where they were."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from factory import make_model
from local_engine import LocalEngine, Output
from slipway.engine.params import SamplingParams
from slipway.exits import Exit
from slipway.worker.device.swap import SwapSpace

# Small, because the interpreter runs every program of a kernel in Python. There is room for one request on
# the device, and for the other on the host.
BOUNDS: dict[str, object] = {
    "device": "cuda",
    "dtype": "float32",
    "max_num_seqs": 2,
    "max_num_batched_tokens": 16,
    "max_model_len": 16,
    "block_size": 8,
    "num_blocks": 2,
    "swap_bytes": 1 << 20,
    "enable_prefix_caching": False,
}
MOST_PAGES = {"llama": 4, "gemma3_text": 8}
"""Two requests of two blocks, for each group of layers."""
WORK = [
    ([3] * 6, SamplingParams(5, temperature=0.0, num_logprobs=2)),
    ([4] * 7, SamplingParams(5, temperature=0.9, seed=5, frequency_penalty=0.5, num_logprobs=2)),
]


def left_alone(engine: LocalEngine, kept: int, after: int) -> Output:
    """What one request gives where the other is aborted after so many steps, before it is in the way."""
    names = [engine.add(*request) for request in WORK]
    for _ in range(after):
        engine.core.run_once()
    engine.abort(names[1 - kept])
    engine.finish()
    return engine.output(names[kept])


# A row's last bits depend on how many rows a step has, so what it is compared with has as many.
@pytest.mark.parametrize(("architecture", "overlap"), [("llama", True), ("gemma3_text", False)])
def test_a_swapped_request_gives_what_it_gives_undisturbed(
    tmp_path: Path, architecture: str, overlap: bool
) -> None:
    model = make_model(architecture, tmp_path / "model", head_dim=24)
    with LocalEngine(model, **BOUNDS, overlap=overlap) as engine:
        assert engine.core.scheduler.cache.host.num_pages == MOST_PAGES[architecture]
        outputs = engine.run(WORK)
        stats = list(engine.hub.stats)
        steps = [tokens for one in stats for tokens in one.num_step_tokens if tokens]
        together = sum(tokens > 1 for tokens in steps)
        undisturbed = [left_alone(engine, kept, together) for kept in range(len(WORK))]
    assert max(one.num_swapped for one in stats) == 1
    assert sum(steps) == sum(len(prompt) + params.max_tokens - 1 for prompt, params in WORK)
    assert [one.num_preemptions for one in outputs] == [0, 1]
    assert [one.num_preemptions for one in undisturbed] == [0, 0]
    assert [one.tokens for one in outputs] == [one.tokens for one in undisturbed]
    assert [one.logprobs for one in outputs] == [one.logprobs for one in undisturbed]


def test_on_a_cpu_a_preempted_request_is_computed_again(tmp_path: Path) -> None:
    with LocalEngine(make_model("llama", tmp_path / "model"), **(BOUNDS | {"device": "cpu"})) as engine:
        outputs = engine.run(WORK)
    assert [one.num_preemptions for one in outputs] == [0, 1]
    assert not any(one.num_swapped for one in engine.hub.stats)


def test_swap_space_that_the_host_has_not_is_refused() -> None:
    with pytest.raises(Exit, match=r"no room for 1048576.00 GiB of preempted requests: .* GiB are left"):
        SwapSpace(1 << 30, 1 << 20, torch.device("cpu"))
