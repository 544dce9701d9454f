"""Two hundred adapters, of which memory holds sixteen and a step four, asked for by everybody at once."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import openai
import pytest
from e2e.ground.patience import scaled

from live_server import live_server
from lora_folder import lora_folder

NUM_ADAPTERS, STREAMS = 200, 32
ARGUMENTS = ("--max-model-len", "128", "--dtype", "float32", "--disable-log-requests", "--enable-lora")
BOUNDS = ("--max-loras", "4", "--max-cpu-loras", "16", "--max-lora-rank", "4")


@pytest.mark.slow
def test_each_of_two_hundred_adapters_answers_the_same_whenever_it_is_asked(
    tiny_models: Callable[[str], Path], tmp_path: Path
) -> None:
    model = tiny_models("llama")
    names = [f"adapter-{number}" for number in range(NUM_ADAPTERS)]
    modules = [f"{name}={lora_folder(model, tmp_path / name, seed=seed)}" for seed, name in enumerate(names)]
    asked = [*names, "base"] * 3
    random.Random(5).shuffle(asked)
    words = (*ARGUMENTS, *BOUNDS, "--served-model-name", "base", "--lora-modules", *modules)
    with (
        live_server(model, *words) as server,
        openai.OpenAI(
            base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=scaled(120)
        ) as client,
        ThreadPoolExecutor(STREAMS) as threads,
    ):

        def text(name: str) -> str:
            made = client.completions.create(model=name, prompt="Once upon", max_tokens=12, temperature=0)
            return made.choices[0].text

        answers = defaultdict(set)
        for name, answer in zip(asked, threads.map(text, asked), strict=True):
            answers[name].add(answer)
        assert server.metrics()["vllm:num_requests_running"] == 0
    assert [len(texts) for texts in answers.values()] == [1] * (NUM_ADAPTERS + 1)
    assert len({text for texts in answers.values() for text in texts}) > NUM_ADAPTERS * 0.95
