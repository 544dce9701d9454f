"""Adapters that add to experts compute what merged weights do, whoever shares the step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from test_adapter_forms import check
from test_adapters import PROMPTS

from adapter_runs import BOUNDS, outputs
from factory import make_model
from local_engine import LocalEngine, Output
from made_adapter import PREFIX, Made
from model.stepping import Stepper, plan
from slipway.engine.messages import AdapterRef
from slipway.engine.plan import NO_PLACE
from slipway.load.adapter import AdapterLimits, read_adapter
from slipway.load.errors import LoadError
from slipway.model.adapters import additions
from slipway.model.registry import families
from slipway.model.shard import Shard, Sharded

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


def saved(made: Made) -> Path:
    return Path(made.save().folder)


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


@pytest.mark.parametrize("quantization", [None, "int8", "int4"])
def test_company_changes_no_bit_of_an_adapter_of_experts(
    models: Callable[[str], Path], tmp_path: Path, quantization: str | None
) -> None:
    """Also of packed experts, which multiply rounded rows: factors multiply the rows as they were."""
    model = models("qwen2_moe")
    config = {"target_parameters": list(PARAMETERS), "peft_version": "0.21.2"}
    by_expert = by_module(Made(model, tmp_path / "some"), 4, experts=(0, 2))
    in_one = stacked(Made(model, tmp_path / "all", seed=1, **config), (4, 4))
    plain = Made(model, tmp_path / "plain", seed=2)
    plain.linear("model.layers.0.self_attn.v_proj")
    folders = [saved(one) for one in (by_expert, in_one, plain)]
    asked = [(tokens, one) for tokens in PROMPTS[:3] for one in (*folders, None)]
    settings = BOUNDS | {"dtype": "bfloat16", "quantization": quantization, "enable_prefix_caching": False}
    with LocalEngine(model, **settings, max_loras=3) as engine:
        alone = [outputs(engine, [one])[0] for one in asked]
    for axis in ({}, {"max_num_batched_tokens": 7}, {"threads": 2}, {"max_loras": 1, "max_cpu_loras": 1}):
        with LocalEngine(model, **settings | {"max_loras": 3} | axis) as engine:
            together = outputs(engine, asked)
        assert [one.logprobs for one in together] == [one.logprobs for one in alone]
    with LocalEngine(model, **settings) as engine:
        bare = outputs(engine, [(tokens, None) for tokens in PROMPTS[:3]])
    assert [one.logprobs for one in alone[3::4]] == [one.logprobs for one in bare]
    for first in range(3):
        assert all(one.logprobs != other.logprobs for one, other in zip(alone[first::4], bare, strict=True))


@pytest.mark.parametrize("quantization", ["int8", "int4", "fp8"])
def test_quantized_experts_get_what_an_adapter_adds(
    models: Callable[[str], Path], tmp_path: Path, quantization: str
) -> None:
    """As to the same experts dequantized, in fp32. After one token, so that no other row's rounding has it
    routed to other experts."""
    model = models("mixtral")
    folder = saved(by_module(Made(model, tmp_path / "it", seed=1), 4))
    first = []
    for dtype in ("bfloat16", "float32"):
        settings = BOUNDS | {"quantization": quantization, "dtype": dtype}
        with LocalEngine(model, **settings, max_loras=1) as engine:
            first.append(
                [likeliest(one) for one in outputs(engine, [(PROMPTS[0], folder), (PROMPTS[0], None)])]
            )
    (packed, _), (plain, without) = first
    assert best(packed) == best(plain) != best(without)
    shared = packed.keys() & plain.keys()
    assert len(shared) >= 2
    assert all(abs(packed[token] - plain[token]) < 0.25 for token in shared)  # four bits' own is 0.1


def best(found: dict[int, float]) -> int:
    return max(found, key=lambda token: found[token])


def likeliest(output: Output) -> dict[int, float]:
    """Log-probabilities of what the first token may be."""
    return dict(output.logprobs[0].top)


def test_a_place_that_changes_hands_keeps_nothing_of_the_last_ones_experts(
    models: Callable[[str], Path], tmp_path: Path
) -> None:
    model = models("mixtral")
    made = [
        by_module(Made(model, tmp_path / "all"), 4),
        by_module(Made(model, tmp_path / "one", seed=1), 4, experts=[1]),
    ]
    made.append(Made(model, tmp_path / "none", seed=2))
    made[-1].linear("model.layers.0.self_attn.q_proj")
    folders = [saved(one) for one in made]
    expected = []
    for folder in folders:
        with LocalEngine(model, **BOUNDS, max_loras=1) as engine:
            expected.append(outputs(engine, [(PROMPTS[1], folder)])[0].logprobs)
    with LocalEngine(model, **BOUNDS, max_loras=1, max_cpu_loras=1) as engine:
        turns = [0, 1, 2, 0, 2, 1]
        found = [outputs(engine, [(PROMPTS[1], folders[turn])])[0].logprobs for turn in turns]
    assert found == [expected[turn] for turn in turns]


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        ({"experts.7.w1": (96, 64)}, r"is for model\.layers\.0\.mlp\.experts\.7\.w1, and adapters add to"),
        ({"experts.0.w1": (64, 64)}, r"experts\.0\.w1 of \[64, 64\] rows and columns, which has"),
        ({"gate": (4, 64)}, r"is for model\.layers\.0\.mlp\.gate, and adapters add to"),
    ],
)
def test_experts_that_the_model_has_not_are_named(
    models: Callable[[str], Path], tmp_path: Path, edit: dict[str, tuple[int, int]], message: str
) -> None:
    made = Made(models("mixtral"), tmp_path / "it")
    for leaf, (rows, columns) in edit.items():
        module = f"{PREFIX}model.layers.0.mlp.{leaf}"
        made.tensors[f"{module}.lora_A.weight"] = made.random(4, columns, scale=1.0)
        made.tensors[f"{module}.lora_B.weight"] = made.random(rows, 4, scale=1.0)
    refused(made, message)


@pytest.mark.parametrize(
    ("depth", "a", "b", "message"),
    [
        ("", (12, 64), (128, 12), r"factors for 3 experts in .*experts\.down_proj, which the model has not"),
        ("", (20, 64), (128, 20), "factors for 5 experts"),
        ("", (18, 64), (128, 18), "has 18 rows of A for .*down_proj, which are no whole number of experts"),
        ("", (16, 63), (64, 16), r"down_proj of \[64, 63\] rows and columns, where each expert has"),
        (".base_layer.base_layer", (16, 64), (64, 16), "its target_parameters name no tensor of experts"),
    ],
)
def test_factors_of_all_experts_that_do_not_fit_are_named(
    models: Callable[[str], Path],
    tmp_path: Path,
    depth: str,
    a: tuple[int, int],
    b: tuple[int, int],
    message: str,
) -> None:
    made = Made(models("mixtral"), tmp_path / "it", target_parameters=list(PARAMETERS))
    module = f"{PREFIX}model.layers.0.mlp.experts{depth}"
    made.tensors[f"{module}.lora_A.weight"] = made.random(*a, scale=1.0)
    made.tensors[f"{module}.lora_B.weight"] = made.random(*b, scale=1.0)
    refused(made, message)


def test_a_tensor_of_experts_that_no_field_names_is_refused(
    models: Callable[[str], Path], tmp_path: Path
) -> None:
    made = Made(models("mixtral"), tmp_path / "it")
    made.tensors[f"{PREFIX}model.layers.0.mlp.experts.lora_A.weight"] = made.random(16, 64, scale=1.0)
    made.tensors[f"{PREFIX}model.layers.0.mlp.experts.lora_B.weight"] = made.random(64, 16, scale=1.0)
    refused(made, "has factors for model.layers.0.mlp.experts, and its target_parameters name no tensor")


def test_a_model_without_experts_takes_no_factors_of_them(tmp_path: Path) -> None:
    made = Made(make_model("llama", tmp_path / "model"), tmp_path / "it", target_parameters=list(PARAMETERS))
    module = f"{PREFIX}model.layers.0.mlp.experts"
    made.tensors[f"{module}.lora_A.weight"] = made.random(16, 64, scale=1.0)
    made.tensors[f"{module}.lora_B.weight"] = made.random(64, 16, scale=1.0)
    refused(made, r"is for model\.layers\.0\.mlp\.experts\.down_proj, and adapters add to")


def test_an_expert_with_factors_of_both_forms_is_refused(
    models: Callable[[str], Path], tmp_path: Path
) -> None:
    config = {"target_parameters": list(PARAMETERS), "peft_version": "0.21.2"}
    made = by_module(stacked(Made(models("mixtral"), tmp_path / "it", **config), (4, 4)), 4, experts=[2])
    refused(made, "has factors for .*experts.2.* twice, under two names")


def test_ranks_hold_the_parts_of_factors_that_their_parts_of_experts_want(
    models: Callable[[str], Path], tmp_path: Path
) -> None:
    made = by_module(Made(models("mixtral"), tmp_path / "it"), 4)
    read = read_adapter("it", saved(made), AdapterLimits())
    spec = plan(made.model).route.spec
    assert spec is not None
    family = families()[spec.architecture]
    whole, *ranks = (
        additions(read, spec, family, Sharded(spec, {}, shard).cuts)
        for shard in (Shard(), Shard(0, 2), Shard(1, 2))
    )
    assert {expert for _, _, expert in whole} == set(range(4))
    for place, one in whole.items():
        axis = "a" if place[1] == "expert_down" else "b"
        parts = [getattr(rank[place], axis) for rank in ranks]
        assert np.array_equal(np.concatenate(parts, axis=int(axis == "a")), getattr(one, axis))


def refused(made: Made, message: str) -> None:
    """The adapter is not read, and it says of itself why."""
    ref = made.save()
    stepper = Stepper(made.model, max_loras=1)
    assert stepper.adapters is not None
    with pytest.raises(LoadError, match=message) as error:
        stepper.adapters.read(AdapterRef(1, ref.name, ref.folder), NO_PLACE)
    assert "The adapter it in" in error.value.message
