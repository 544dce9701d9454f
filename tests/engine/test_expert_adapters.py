"""Adapters that add to experts compute what merged weights do, whoever shares the step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from test_adapter_forms import check
from test_adapters import BOUNDS, GREEDY, PROMPTS, outputs, ref

from factory import make_model
from local_engine import LocalEngine, Output
from made_adapter import PREFIX, Made
from model.stepping import Stepper
from slipway.engine.messages import AdapterRef
from slipway.engine.plan import NO_PLACE
from slipway.load.errors import LoadError

FAMILIES = ("mixtral", "qwen2_moe", "qwen3_moe")
PARAMETERS = ("mlp.experts.gate_up_proj", "mlp.experts.down_proj")


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    folder, made = tmp_path_factory.mktemp("experts"), dict[str, Path]()

    def model(name: str) -> Path:
        if name not in made:
            sizes = {"head_dim": 24} if name == "qwen3_moe" else {}  # of which there is native code
            made[name] = make_model(name, folder / name, **sizes)
        return made[name]

    return model


def by_module(made: Made, rank: int, *, experts: Sequence[int] = range(4)) -> Made:
    """On every matrix of these experts."""
    for name in list(made.weights):
        if ".experts." in name and int(name.split(".experts.")[1].split(".")[0]) in experts:
            made.linear(name.removesuffix(".weight"), rank)
    return made


def layers_of(made: Made) -> list[str]:
    return sorted({name.split(".")[2] for name in made.weights if ".experts." in name})


def stacked(made: Made, ranks: Sequence[int], *, crossed: bool = False) -> Made:
    """On the tensors of `target_parameters`, of these ranks for gate and up, and for down."""
    for parameter, rank in zip(PARAMETERS, ranks, strict=True):
        if parameter in made.config["target_parameters"]:
            for layer in layers_of(made):
                made.experts(f"model.layers.{layer}.{parameter}", rank, crossed=crossed)
    return made


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("rank", [1, 8])
def test_factors_of_every_expert_serve_as_merged_weights(
    models: Callable[[str], Path], tmp_path: Path, name: str, rank: int
) -> None:
    made = Made(models(name), tmp_path / "it", r=rank, lora_alpha=2 * rank)
    by_module(made, rank)
    made.linear("model.layers.0.self_attn.q_proj", rank)
    check(made)


def test_an_expert_may_have_a_rank_of_its_own_and_others_none(
    models: Callable[[str], Path], tmp_path: Path
) -> None:
    patterns = {
        "rank_pattern": {r"experts\.1\.gate_proj": 3, r"experts\.2\.(up|down)_proj": 7},
        "alpha_pattern": {r"experts\.1\.gate_proj": 6},
    }
    made = Made(models("qwen3_moe"), tmp_path / "it", **patterns)
    for layer in layers_of(made):
        made.linear(f"model.layers.{layer}.mlp.experts.1.gate_proj", 3, 6)
        made.linear(f"model.layers.{layer}.mlp.experts.2.up_proj", 7)
        made.linear(f"model.layers.{layer}.mlp.experts.2.down_proj", 7)
        made.linear(f"model.layers.{layer}.mlp.experts.3.down_proj")
    check(made)


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("rslora", [False, True])
def test_factors_of_all_experts_in_one_tensor_serve_as_merged_weights(
    models: Callable[[str], Path], tmp_path: Path, name: str, rslora: bool
) -> None:
    config = {"target_parameters": list(PARAMETERS), "peft_version": "0.21.2", "use_rslora": rslora}
    config |= {"rank_pattern": {"mlp.experts.down_proj": 8}}
    check(stacked(Made(models(name), tmp_path / "it", **config), (4, 8)))


@pytest.mark.parametrize("parameter", PARAMETERS)
def test_one_tensor_of_experts_may_be_added_to_alone(
    models: Callable[[str], Path], tmp_path: Path, parameter: str
) -> None:
    config = {"target_parameters": [parameter], "peft_version": "0.21.2"}
    check(stacked(Made(models("mixtral"), tmp_path / "it", **config), (4, 4)))


@pytest.mark.parametrize("square", [False, True])
def test_older_releases_have_both_factors_of_experts_the_other_way_round(
    tmp_path: Path, square: bool
) -> None:
    sizes = {"intermediate_size": 64} if square else {}
    base = make_model("mixtral", tmp_path / "model", **sizes)
    made = Made(base, tmp_path / "it", target_parameters=list(PARAMETERS), peft_version="0.18.1")
    check(stacked(made, (4, 4), crossed=True))
