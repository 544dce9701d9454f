"""A low-rank adapter serves as the merged weights would, and only those who ask for it notice."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from quantize import quantize, recipe
from safetensors.torch import load_file, save_file

from factory import make_model
from local_engine import LocalEngine, Output
from model.stepping import plan, prompt
from slipway.engine.params import SamplingParams
from slipway.load.errors import LoadError
from slipway.model.registry import families
from slipway.model.shard import Shard
from slipway.model.weights import load_weights
from slipway.schemes.choice import Schemes

MODULES = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
PROMPTS = [prompt(length, length) for length in (1, 7, 40, 65)]
GREEDY = SamplingParams(12, temperature=0.0, num_logprobs=3)
BOUNDS: dict[str, object] = {"max_model_len": 256, "num_blocks": 200, "dtype": "float32"}
TIED = 1e-4
"""Log-probabilities of the merged weights closer than this may come out in either order in fp32."""


def adapter(
    model: Path,
    folder: Path,
    *,
    rank: int = 5,
    modules: tuple[str, ...] = MODULES,
    seed: int = 0,
    **config: Any,
) -> Path:
    """Of random factors for all such modules, as PEFT names and saves them."""
    torch.manual_seed(seed)
    weights = load_file(model / "model.safetensors")
    factors = {}
    for name, weight in weights.items():
        stem = name.removesuffix(".weight")
        if stem.endswith(modules) and name.endswith(".weight") and "experts" not in name:
            module = f"base_model.model.{stem}"
            factors[f"{module}.lora_A.weight"] = torch.randn(rank, weight.shape[1]) * weight.shape[1] ** -0.5
            factors[f"{module}.lora_B.weight"] = torch.randn(weight.shape[0], rank) * 0.05
    folder.mkdir()
    save_file(factors, folder / "adapter_model.safetensors")
    settings = {
        "peft_type": "LORA",
        "r": rank,
        "lora_alpha": 12,
        "target_modules": list(modules),
        "bias": "none",
    }
    (folder / "adapter_config.json").write_text(json.dumps(settings | config))
    return folder


def merged(model: Path, added: Path, folder: Path) -> Path:
    """The model whose weights have B · A in them, in fp32."""
    config = json.loads((added / "adapter_config.json").read_text())
    scaling = config["lora_alpha"] / config["r"] ** (0.5 if config.get("use_rslora") else 1)
    weights, factors = (
        load_file(one) for one in (model / "model.safetensors", added / "adapter_model.safetensors")
    )
    for name in factors:
        if ".lora_A." in name:
            target = name.removeprefix("base_model.model.").replace(".lora_A.", ".")
            weights[target] += scaling * (factors[name.replace("lora_A", "lora_B")] @ factors[name])
    folder.mkdir()
    (folder / "config.json").write_text((model / "config.json").read_text())
    save_file(weights, folder / "model.safetensors")
    return folder


def outputs(engine: LocalEngine, asked: list[tuple[list[int], str]]) -> list[Output]:
    """Of greedy requests, all at once."""
    names = [engine.add(tokens, GREEDY, adapter=name) for tokens, name in asked]
    engine.finish()
    return [engine.output(name) for name in names]


def assert_alike(found: Output, expected: Output) -> None:
    """Equal tokens, and log-probabilities to 1e-4, up to where the merged weights' two best are tied."""
    pairs = zip(found.tokens, expected.tokens, found.logprobs, expected.logprobs, strict=True)
    for token, wanted, one, other in pairs:
        (_, first), (_, second) = other.top[:2]
        if token != wanted and first - second < TIED:
            return
        assert token == wanted
        assert abs(one.logprob - other.logprob) < TIED


@pytest.mark.parametrize("architecture", ["llama", "gemma3_text", "qwen2_moe"])
@pytest.mark.parametrize("rslora", [False, True])
def test_an_adapter_serves_as_merged_weights_do(tmp_path: Path, architecture: str, rslora: bool) -> None:
    sizes = {"head_dim": 24} if architecture == "gemma3_text" else {}  # of which there is native code
    base = make_model(architecture, tmp_path / "model", **sizes)
    added = adapter(base, tmp_path / "adapter", use_rslora=rslora)
    whole = merged(base, added, tmp_path / "merged")
    with LocalEngine(base, **BOUNDS, adapters={"it": str(added)}) as engine:
        found = outputs(engine, [(tokens, "it") for tokens in PROMPTS])
        plain = outputs(engine, [(tokens, "") for tokens in PROMPTS])
    with LocalEngine(whole, **BOUNDS) as engine:
        expected = outputs(engine, [(tokens, "") for tokens in PROMPTS])
    for one, other in zip(found, expected, strict=True):
        assert_alike(one, other)
    assert all(one.logprobs != other.logprobs for one, other in zip(found, plain, strict=True))


@pytest.fixture(scope="module", params=["float32", "bfloat16", "awq", "gptq-act-order"])
def served(
    request: pytest.FixtureRequest,
    tiny_models: Callable[[str], Path],
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[Path, dict[str, object]]:
    """A model and how it is served, with two adapters of different ranks and modules."""
    folder = tmp_path_factory.mktemp("served")
    model = source = tiny_models("llama")
    dtype = request.param if request.param in ("float32", "bfloat16") else "bfloat16"
    if dtype != request.param:
        method = request.param.removesuffix("-act-order")
        model = quantize(
            source, folder / "model", recipe(method, group=32, act_order=method != request.param)
        )
    adapters = {
        "all": str(adapter(source, folder / "all", rank=5)),
        "some": str(
            adapter(source, folder / "some", rank=40, modules=("v_proj", "up_proj", "down_proj"), seed=1)
        ),
    }
    return model, BOUNDS | {"dtype": dtype, "adapters": adapters, "enable_prefix_caching": False}


@pytest.mark.slow
def test_company_changes_no_bit_with_or_without_an_adapter(served: tuple[Path, dict[str, object]]) -> None:
    model, settings = served
    asked = [(tokens, name) for tokens in PROMPTS for name in ("all", "", "some", "all")]
    with LocalEngine(model, **settings) as engine:
        alone = [outputs(engine, [one])[0] for one in asked]
    for axis in (
        {},
        {"max_num_batched_tokens": 7},
        {"threads": 1},
        {"num_blocks": 16, "max_num_batched_tokens": 64},
    ):
        with LocalEngine(model, **(settings | axis)) as engine:
            together = outputs(engine, asked)
        assert [one.logprobs for one in together] == [one.logprobs for one in alone]
        assert [one.tokens for one in together] == [one.tokens for one in alone]


def test_who_asks_for_none_gets_the_bits_of_a_server_without_adapters(
    served: tuple[Path, dict[str, object]],
) -> None:
    model, settings = served
    with LocalEngine(model, **settings) as engine:
        found = outputs(engine, [(tokens, name) for tokens in PROMPTS for name in ("", "all")])[::2]
    with LocalEngine(model, **(settings | {"adapters": {}})) as engine:
        expected = outputs(engine, [(tokens, "") for tokens in PROMPTS])
    assert [one.logprobs for one in found] == [one.logprobs for one in expected]


def test_prefix_blocks_are_shared_within_an_adapter_alone(
    tiny_models: Callable[[str], Path], tmp_path: Path
) -> None:
    base = tiny_models("llama")
    adapters = {name: str(adapter(base, tmp_path / name, seed=seed)) for seed, name in enumerate("ab")}
    with LocalEngine(base, **BOUNDS, adapters=adapters) as engine:
        asked = [(PROMPTS[-1], name) for name in ("a", "b", "", "a", "b", "")]
        found = [outputs(engine, [one])[0] for one in asked]
    assert [one.num_cached_tokens > 0 for one in found] == [False] * 3 + [True] * 3
    assert [one.logprobs for one in found[3:]] == [one.logprobs for one in found[:3]]


def test_a_name_that_is_no_adapters_ends_the_request_alone(
    tiny_models: Callable[[str], Path], tmp_path: Path
) -> None:
    with LocalEngine(tiny_models("llama"), **BOUNDS) as engine:
        name, other = (engine.add(PROMPTS[1], GREEDY, adapter=adapter) for adapter in ("no", ""))
        engine.finish()
        (delta,) = engine.hub.deltas[name]
        assert (delta.finish_reason, delta.error) == ("error", "ValueError: there is no adapter 'no'")
        assert engine.output(other).finish_reason == "length"


@pytest.mark.parametrize(
    ("config", "edit", "message"),
    [
        ({"use_dora": True}, {}, "uses use_dora: True, which is not supported"),
        ({"modules_to_save": ["lm_head"]}, {}, r"uses modules_to_save: \['lm_head'\]"),
        ({"peft_type": "IA3"}, {}, "is of the kind IA3 with a rank of 5"),
        (
            {},
            {"lm_head": (512, 64)},
            "is for lm_head, and adapters add to attention and to feed-forward layers",
        ),
        (
            {},
            {"model.layers.0.self_attn.q_proj": (64, 32)},
            r"is for model.layers.0.self_attn.q_proj of \[64, 32\] rows and columns, which has \[64, 64\]",
        ),
    ],
)
def test_what_is_not_served_is_named(
    tiny_models: Callable[[str], Path],
    tmp_path: Path,
    config: dict[str, object],
    edit: dict[str, tuple[int, int]],
    message: str,
) -> None:
    base = tiny_models("llama")
    folder = adapter(base, tmp_path / "adapter", **config)
    factors = load_file(folder / "adapter_model.safetensors")
    for module, (rows, columns) in edit.items():
        factors[f"base_model.model.{module}.lora_A.weight"] = torch.zeros(5, columns)
        factors[f"base_model.model.{module}.lora_B.weight"] = torch.zeros(rows, 5)
    save_file(factors, folder / "adapter_model.safetensors")
    with pytest.raises(LoadError, match=message) as refused:
        LocalEngine(base, **BOUNDS, adapters={"mine": str(folder)})
    assert "The adapter mine in" in refused.value.message


def test_transformers_code_takes_no_adapters(tiny_models: Callable[[str], Path], tmp_path: Path) -> None:
    folder = adapter(tiny_models("llama"), tmp_path / "adapter")
    with pytest.raises(LoadError, match=r"Adapters \(mine\) are added by our own code on CPU alone"):
        LocalEngine(tiny_models("llama"), **BOUNDS, adapters={"mine": str(folder)}, model_impl="transformers")


def test_factors_are_cut_as_the_matrices_that_they_are_added_to(tmp_path: Path) -> None:
    """Rows that ranks hold get those rows of B, and products that ranks add up those columns of A."""
    base = make_model("llama", tmp_path / "model")
    added = adapter(base, tmp_path / "adapter", rank=4)
    found = plan(base, adapters={"it": str(added)})
    assert found.route.spec is not None
    family, schemes = families()[found.route.architecture], Schemes(found.element)

    def factors(shard: Shard) -> list[tuple[np.ndarray, np.ndarray]]:
        """A and B of the fused q, k and v, and of out, of the first layer."""
        given = found.route.spec, family, found.checkpoint, schemes, None, shard, found.adapters
        layer = load_weights(*given).layers[0]  # type: ignore[arg-type]
        return [linear.adapters[0] for linear in (layer.qkv, layer.out)]

    (low, high), (out_low, out_high) = factors(Shard())
    ranks = [factors(Shard(rank, 2)) for rank in range(2)]
    halves = zip(*(np.split(rank[0][1], [32, 48]) for rank in ranks), strict=True)  # of q, k and v
    assert np.array_equal(np.concatenate([rows for pair in halves for rows in pair]), high)
    assert all(np.array_equal(rank[0][0], low) for rank in ranks)
    assert np.array_equal(np.concatenate([rank[1][0] for rank in ranks], axis=1), out_low)
    assert all(np.array_equal(rank[1][1], out_high) for rank in ranks)
