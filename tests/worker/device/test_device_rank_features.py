"""What is served beside plain matrices, on devices that share a model: it is what one device says."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from quantize import quantize, recipe

from device_runs import SMALL, assert_same
from factory import VOCABULARY, model_folders
from local_engine import LocalEngine, Output
from made_adapter import LINEAR, Made, of_ranks
from slipway.engine.config import DraftConfig
from slipway.engine.grammar import Grammars
from slipway.engine.messages import AdapterRef
from slipway.engine.params import SamplingParams

pytestmark = pytest.mark.slow

Models = Callable[[str], Path]
PROMPTS = [[5, 9, 31, 7, 120, 44, 3, 17, 260], [40, 41]]
GREEDY = SamplingParams(4, temperature=0.0, num_logprobs=2)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Models:
    sizes: dict[str, Any] = {"num_hidden_layers": 2}
    names = {name: (name, sizes) for name in ("llama", "qwen2_moe")}
    odd = {"num_attention_heads": 6, "num_key_value_heads": 3, "hidden_size": 48}
    names["thirds"] = ("llama", sizes | odd)
    # Ranks part at whole groups of 32 columns.
    names["grouped"] = ("llama", sizes | {"hidden_size": 128, "head_dim": 32, "intermediate_size": 256})
    blocks = {"hidden_size": 256, "head_dim": 128, "intermediate_size": 256, "num_attention_heads": 2}
    names["blocks"] = ("llama", sizes | blocks | {"num_key_value_heads": 2})  # the same, of 128
    return model_folders(tmp_path_factory.mktemp("ranked"), names)


def runs(model: Path, size: int, adapter: AdapterRef | None = None, **fields: Any) -> list[Output]:
    settings = SMALL | {"device": "cuda", "tensor_parallel_size": size} | fields
    with LocalEngine(model, **settings) as engine:
        names = [engine.add(tokens, GREEDY, adapter=adapter) for tokens in PROMPTS]
        engine.finish()
        return [engine.output(name) for name in names]


def check(model: Path, **fields: Any) -> None:
    assert_same(runs(model, 2, **fields), runs(model, 1, **fields))


@pytest.mark.parametrize(
    "method",
    ["awq", "gptq", "gptq-asym", "gptq act order", "w4a16", "w8a8", "fp8", "fp8-block"],
)
def test_what_is_stored_in_fewer_bits_is_shared(models: Models, tmp_path: Path, method: str) -> None:
    how = recipe(method.split()[0], group=32, act_order=method == "gptq act order")
    model = models("blocks" if method == "fp8-block" else "grouped")
    check(quantize(model, tmp_path / "it", how))


@pytest.mark.parametrize("quantization", ["int8", "fp8"])
def test_what_is_made_smaller_as_it_loads_is_shared(models: Models, quantization: str) -> None:
    check(models("grouped"), quantization=quantization)


@pytest.mark.parametrize("whole_experts", [False, True], ids=["cut", "whole"])
def test_experts_of_fewer_bits_are_shared(models: Models, whole_experts: bool) -> None:
    check(models("qwen2_moe"), quantization="int8", enable_expert_parallel=whole_experts)


@pytest.mark.parametrize("whole_experts", [False, True], ids=["cut", "whole"])
def test_adapters_of_experts_are_shared(models: Models, tmp_path: Path, whole_experts: bool) -> None:
    made = Made(models("qwen2_moe"), tmp_path / "it")
    for name in list(made.weights):
        if name.endswith(tuple(f"{one}.weight" for one in LINEAR)):
            made.linear(name.removesuffix(".weight"))
    check(models("qwen2_moe"), adapter=made.save(), max_loras=1, enable_expert_parallel=whole_experts)


@pytest.mark.parametrize(("name", "size"), [("qwen2_moe", 2), ("thirds", 3)])
def test_adapters_of_which_ranks_share_both_matrices_add_the_same(
    models: Models, tmp_path: Path, name: str, size: int
) -> None:
    """Of ranks that do not divide, and of fewer than there are of those that share them; with biases."""
    model = models(name)
    refs = [*of_ranks(model, tmp_path, 1, 5), None]
    asked = [(PROMPTS[number % 2], ref) for number, ref in enumerate(refs)]
    fields: dict[str, Any] = {"max_loras": 2, "max_lora_rank": 5, "enable_lora_bias": True}
    found = []
    for ranked in ({}, {"tensor_parallel_size": size, "fully_sharded_loras": True}):
        with LocalEngine(model, **(SMALL | {"device": "cuda"} | fields | ranked)) as engine:
            names = [engine.add(tokens, GREEDY, adapter=ref) for tokens, ref in asked]
            engine.finish()
            found.append([engine.output(one) for one in names])
    assert_same(*found)


def test_a_place_of_adapters_of_which_ranks_share_both_matrices_is_a_ranks_share(models: Models) -> None:
    """But for what the embedding and the head have."""
    fields: dict[str, Any] = {"max_loras": 1, "max_lora_rank": 64}

    def held(**ranked: Any) -> int:
        with LocalEngine(models("grouped"), **(SMALL | {"device": "cuda"} | fields | ranked)) as engine:
            worker: Any = engine.worker
            decoder = getattr(worker, "_worker", worker)._decoder
            head = decoder._weights.head
            pools = {linear: pool for linear, pool in decoder.low_rank.products.items() if linear is not head}
            return sum(pool.shape.nbytes for pool in pools.values())

    alone, usual = held(), held(tensor_parallel_size=2)
    shared = held(tensor_parallel_size=2, fully_sharded_loras=True)
    assert shared < 0.51 * alone
    assert usual > 0.6 * alone


@pytest.mark.parametrize("size", [1, 2])
def test_a_draft_model_is_whole_on_each_rank_or_shared(models: Models, size: int) -> None:
    model = models("llama")
    draft = DraftConfig(method="draft_model", model=str(model), tensor_parallel_size=size)
    found = runs(model, 2, num_drafts=2, draft=draft)
    assert [one.tokens for one in found] == [one.tokens for one in runs(model, 1)]


def test_vectors_are_one_devices(models: Models) -> None:
    found = []
    for size in (1, 2):
        settings = SMALL | {"device": "cuda", "tensor_parallel_size": size, "task": "embed"}
        with LocalEngine(models("llama"), **settings) as engine:
            found.append(engine.pool(PROMPTS))
    for one, other in zip(*found, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-4)


class EveryThird:
    """A matcher that allows every third token, shifted by each."""

    def __init__(self) -> None:
        self.count = 0

    def advance(self, tokens: Sequence[int]) -> int | None:
        for token in tokens:
            assert (token + self.count) % 3 == 0
            self.count += 1
        return None

    def forced(self) -> list[int]:
        return []

    def masks(self, drafts: Sequence[int]) -> NDArray[np.uint32]:
        shifts = self.count + np.arange(len(drafts) + 1)[:, None]
        allowed = (np.arange(VOCABULARY // 32 * 32) + shifts) % 3 == 0
        return np.packbits(allowed, axis=1, bitorder="little").view(np.uint32)


def test_what_a_grammar_forbids_no_rank_goes_on_from(models: Models) -> None:
    found = []
    for size in (1, 2):
        settings = SMALL | {"device": "cuda", "tensor_parallel_size": size}
        with LocalEngine(models("llama"), **settings) as engine:
            engine.core.grammars = Grammars(lambda message: EveryThird())
            names = [
                engine.add(tokens, GREEDY, grammar=one)
                for tokens, one in zip(PROMPTS, ("third", ""), strict=True)
            ]
            engine.finish()
            found.append([engine.output(name) for name in names])
    assert_same(*found)
    assert [(token + place) % 3 for place, token in enumerate(found[1][0].tokens)] == [0] * 4


def test_ranks_sleep_and_wake_together(models: Models) -> None:
    settings = SMALL | {"device": "cuda", "tensor_parallel_size": 2}
    with LocalEngine(models("llama"), **settings) as engine:
        work = [(tokens, GREEDY) for tokens in PROMPTS]
        before = engine.run(work)
        for level in ("1", "2"):
            assert engine.call("sleep", level) == "ok"
            assert engine.call("wake_up", "weights", "kv_cache") == "ok"
            assert_same(engine.run(work), before)
