"""What packed weights cost in quality: the demo model's perplexity, and that of its weights in fp32."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from local_engine import LocalEngine
from slipway.engine.params import SamplingParams

DATA = Path(__file__).parents[1] / "data"
LENGTH = 1536
WINDOW = 512


def perplexity(model: Path, windows: list[list[int]], dtype: str) -> float:
    scored = SamplingParams(1, temperature=0.0, num_prompt_logprobs=0)
    with LocalEngine(model, dtype=dtype, max_model_len=WINDOW + 1) as engine:
        outputs = engine.run([(window, scored) for window in windows])
    entries = [entry for output in outputs for entry in output.prompt_logprobs if entry is not None]
    assert len(entries) == LENGTH - len(windows)
    return math.exp(-sum(entry.logprob for entry in entries) / len(entries))


@pytest.mark.slow
def test_packed_weights_change_perplexity_by_less_than_a_fifth_of_a_percent(demo_model: Path) -> None:
    ids = json.loads((DATA / "perplexity_ids.json").read_text())
    windows = [ids[i : i + WINDOW] for i in range(0, LENGTH, WINDOW)]
    exact = perplexity(demo_model, windows, "float32")
    packed = perplexity(demo_model, windows, "bfloat16")
    print(f"packed {packed:.4f}, dequantized {exact:.4f}")
    assert packed == pytest.approx(exact, rel=0.002)
