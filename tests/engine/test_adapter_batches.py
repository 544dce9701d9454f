"""One batch over many adapters: each request gets what merged weights give it, whatever runs beside it."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from test_adapter_forms import TIED

from adapter_runs import ref
from local_engine import LocalEngine, Output
from made_adapter import LINEAR, Made
from model.stepping import prompt
from slipway.engine.params import SamplingParams

RANKS = (1, 8, 64, 256, 3, 8, 16, 5)
GREEDY = SamplingParams(10, temperature=0.0, num_logprobs=3)
PROMPTS = [prompt(length, length) for length in (3, 30)]


def adapters(model: Path, folder: Path, ranks: Sequence[int]) -> list[Made]:
    """On every linear layer, each with numbers of its own."""
    made = []
    for index, rank in enumerate(ranks):
        one = Made(model, folder / f"{index}", r=rank, lora_alpha=2 * rank, seed=index)
        for name in list(one.weights):
            if name.endswith(tuple(f"{module}.weight" for module in LINEAR)):
                one.linear(name.removesuffix(".weight"), rank)
        one.save()
        made.append(one)
    return made


def served(model: Path, folders: Sequence[Path | None], **settings: object) -> list[list[Output]]:
    """All requests in one batch: the outputs of each folder's, by prompt."""
    bounds = {"max_model_len": 64, "num_blocks": 300, "dtype": "float32", "max_lora_rank": 256}
    with LocalEngine(model, **(bounds | settings)) as engine:
        names = [[engine.add(p, GREEDY, adapter=ref(one)) for p in PROMPTS] for one in folders]
        engine.finish()
        return [[engine.output(name) for name in row] for row in names]


def assert_alike(found: Output, expected: Output) -> None:
    assert found.finish_reason == expected.finish_reason == "length"
    for token, wanted, one, other in zip(
        found.tokens, expected.tokens, found.logprobs, expected.logprobs, strict=True
    ):
        (_, first), (_, second) = other.top[:2]
        if token != wanted and first - second < TIED:
            return
        assert token == wanted
        assert abs(one.logprob - other.logprob) < TIED


def test_a_batch_over_eight_adapters_and_none_equals_eight_models(
    tiny_models: Callable[[str], Path], tmp_path: Path
) -> None:
    base = tiny_models("llama")
    made = adapters(base, tmp_path, RANKS)
    folders = [None, *(one.folder for one in made)]
    together = served(base, [*folders, *folders[1:], *folders[1:5]], max_loras=8)
    assert sum(map(len, together)) >= 32
    texts = set()
    for folder, one, row in zip(folders, [None, *made], together, strict=False):
        (alone,) = served(base, [folder], max_loras=1)
        assert [output.logprobs for output in row] == [output.logprobs for output in alone]
        (whole,) = served(one.merged() if one else base, [None])
        for found, expected in zip(row, whole, strict=True):
            assert_alike(found, expected)
        texts.add(str([output.logprobs for output in row]))
    assert len(texts) == len(folders)


@pytest.mark.torch
@pytest.mark.slow
def test_adapters_over_the_demo_model_equal_merged_weights(demo_model: Path, tmp_path: Path) -> None:
    """From GGUF, whose names are others than those that adapters name."""
    from safetensors.torch import save_file
    from transformers import AutoModelForCausalLM

    plain = tmp_path / "plain"
    reference = AutoModelForCausalLM.from_pretrained(
        demo_model.parent, gguf_file=demo_model.name, dtype="float32"
    )
    del reference.config.quantization_config  # it has been dequantized
    reference.config.save_pretrained(plain)
    weights = {name: one for name, one in reference.state_dict().items() if name != "lm_head.weight"}
    save_file(weights, plain / "model.safetensors")
    made = adapters(plain, tmp_path, RANKS[:4])
    folders = [None, *(one.folder for one in made)]
    together = served(demo_model, folders, max_loras=4)
    for one, row in zip([None, *made], together, strict=True):
        folder = one.merged() if one else plain
        (whole,) = served(folder, [None])
        if one:  # half a gigabyte
            shutil.rmtree(folder)
        for found, expected in zip(row, whole, strict=True):
            assert_alike(found, expected)
