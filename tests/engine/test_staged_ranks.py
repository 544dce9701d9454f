"""Pipeline stages of several ranks each: what they say is what one rank says."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from adapter_runs import GREEDY, assert_alike
from factory import VOCABULARY, model_folders
from local_engine import Output
from local_ranks import RankedEngine, engine_of
from resized_adapters import ADDED, new_embeddings, whole
from slipway.engine.messages import AdapterRef

pytestmark = pytest.mark.slow

Models = Callable[[str], Path]
Asked = Sequence[tuple[list[int], AdapterRef | None]]
DENSE = ("llama", "mistral", "ministral", "qwen2", "qwen3", "gemma2", "gemma3_text")
MIXTURES = ("mixtral", "qwen2_moe", "qwen3_moe")
BOUNDS: dict[str, Any] = {"dtype": "float32", "max_model_len": 256, "num_blocks": 200, "max_num_seqs": 16}
STAGED: dict[str, Any] = {"tensor_parallel_size": 2, "pipeline_parallel_size": 2}
UNEVEN = {
    "hidden_size": 72,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "head_dim": 8,
    "tie_word_embeddings": True,
}
"""As SmolLM2 has them: two ranks have two key heads and one."""


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Models:
    """Of four layers each."""
    sizes = {name: {} if name == "qwen2" else {"head_dim": 24} for name in (*DENSE, *MIXTURES)}
    kinds: dict[str, tuple[str, dict[str, Any]]] = {
        name: (name, {"num_hidden_layers": 4} | own) for name, own in sizes.items()
    }
    kinds["ministral"][1]["layer_types"] = ["full_attention", *(["sliding_attention"] * 3)]
    kinds["uneven"] = ("llama", {"num_hidden_layers": 4} | UNEVEN)
    return model_folders(tmp_path_factory.mktemp("staged"), kinds)


def prompts(count: int = 4) -> list[list[int]]:
    random = np.random.default_rng(7)
    return [random.integers(3, 500, 1 + 23 * number).tolist() for number in range(count)]


def run(model: Path, asked: Asked, **fields: Any) -> list[Output]:
    """All at once."""
    with engine_of(model, **(BOUNDS | fields)) as engine:
        names = [engine.add(tokens, GREEDY, adapter=ref) for tokens, ref in asked]
        engine.finish()
        return [engine.output(name) for name in names]


def check(model: Path, asked: Asked, ranks: dict[str, Any], **fields: Any) -> list[Output]:
    """What ranks say, which is what one says."""
    together = run(model, asked, **fields, **ranks)
    for found, expected in zip(together, run(model, asked, **fields), strict=True):
        assert_alike(found, expected)
    return together


@pytest.mark.parametrize("name", [*DENSE, "uneven"])
def test_staged_ranks_say_what_one_does(models: Models, name: str) -> None:
    check(models(name), [(tokens, None) for tokens in prompts()], STAGED)


def test_the_demo_on_stages_of_two_ranks_says_what_one_does(demo_model: Path) -> None:
    check(demo_model, [(tokens, None) for tokens in prompts(3)], STAGED)


@pytest.mark.parametrize("whole_experts", [False, True], ids=["cut", "whole"])
@pytest.mark.parametrize("name", MIXTURES)
def test_a_mixture_on_stages_is_that_of_one_rank(models: Models, name: str, whole_experts: bool) -> None:
    ranks = STAGED | {"enable_expert_parallel": whole_experts}
    check(models(name), [(tokens, None) for tokens in prompts()], ranks)


def test_stages_of_three_uneven_ranks_have_the_layers_that_they_are_dealt(models: Models) -> None:
    ranks = {"tensor_parallel_size": 3, "pipeline_parallel_size": 3, "layer_partition": [1, 2, 1]}
    asked = [(tokens, None) for tokens in prompts()]
    check(models("uneven"), asked, ranks)
    with RankedEngine(models("uneven"), **BOUNDS, **ranks) as engine:
        stages = [rank.plan.route.stage for rank in engine.ranks]
    assert [stage and stage.layers for stage in stages] == [
        *[range(0, 1)] * 3,
        *[range(1, 3)] * 3,
        *[range(3, 4)] * 3,
    ]


@pytest.mark.parametrize("tensor", [1, 2])
@pytest.mark.parametrize(
    ("name", "form"), [("llama", whole), ("llama", new_embeddings), ("uneven", new_embeddings)]
)
def test_rows_of_an_adapters_own_are_read_on_the_first_stage_and_drawn_on_the_last(
    models: Models, tmp_path: Path, name: str, form: Callable[..., Any], tensor: int
) -> None:
    base = models(name)
    ref, _ = form(base, tmp_path / "it")
    own = range(VOCABULARY, VOCABULARY + ADDED)
    asked: list[tuple[list[int], AdapterRef | None]] = [([*one, *own], ref) for one in prompts(3)]
    asked += [(one, None) for one in prompts(2)]
    ranks = {"tensor_parallel_size": tensor, "pipeline_parallel_size": 2}
    check(base, asked, ranks, max_loras=2, lora_extra_vocab_size=8)
