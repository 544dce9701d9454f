"""Mistral's own form of a model is Hugging Face's: configuration, weights and answers, to the bit."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from consolidated import in_pairs, params, to_consolidated, written_name
from factory import make_model, model_folders
from model.stepping import Stepper, plan, prompt
from slipway.engine.config import EngineConfig
from slipway.load.arrays import E4M3
from slipway.load.checkpoint import Checkpoint, open_checkpoint
from slipway.load.errors import LoadError
from slipway.load.mistral import config_of
from tensor_files import load, numbers_of, same, save

FAMILIES = ("mistral", "ministral", "mixtral")
PARAMS: dict[str, Any] = {
    "dim": 64,
    "n_layers": 4,
    "n_heads": 4,
    "hidden_dim": 96,
    "vocab_size": 100,
    "norm_eps": 1e-5,
}


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Models in Hugging Face's form, of sizes that native code computes."""
    variants: dict[str, dict[str, Any]] = {"mistral": {"head_dim": 24}, "ministral": {}, "mixtral": {}}
    return model_folders(tmp_path_factory.mktemp("hf"), {name: (name, one) for name, one in variants.items()})


def opened(folder: Path, **options: object) -> Checkpoint:
    settings = EngineConfig(model=str(folder), use_tqdm_on_load=False, **options)  # type: ignore[arg-type]
    return open_checkpoint(settings, lambda phase, done, total: None)


@pytest.mark.parametrize("files", [1, 3])
@pytest.mark.parametrize("family", FAMILIES)
def test_the_weights_are_those_of_safetensors_to_the_bit(
    family: str, files: int, source: Callable[[str], Path], tmp_path: Path
) -> None:
    expected = load(source(family) / "model.safetensors")
    found = dict(numbers_of(opened(to_consolidated(source(family), tmp_path / "own", files))))
    assert found.keys() == expected.keys()
    assert all(same(found[name], weights) for name, weights in expected.items())


@pytest.mark.parametrize("family", FAMILIES)
def test_the_model_is_the_same_and_so_are_its_answers(
    family: str, source: Callable[[str], Path], tmp_path: Path
) -> None:
    folder = source(family)
    own = to_consolidated(folder, tmp_path / "own")
    given, found = plan(folder).route.spec, plan(own).route.spec
    assert given is not None
    assert found is not None
    assert found.layers == given.layers
    assert (found.norm_eps, found.max_position, found.tied_embedding) == (
        given.norm_eps,
        given.max_position,
        given.tied_embedding,
    )
    tokens = {0: prompt(40), 1: prompt(9)}
    assert Stepper(own).greedy(tokens, 12) == Stepper(folder).greedy(tokens, 12)


@pytest.mark.torch
def test_transformers_own_code_computes_the_same_from_it(
    source: Callable[[str], Path], tmp_path: Path
) -> None:
    folder = source("mistral")
    own = to_consolidated(folder, tmp_path / "own")
    answers = [Stepper(one, model_impl="transformers").greedy({0: prompt(9)}, 4) for one in (folder, own)]
    assert answers[0] == answers[1]


def rotated_in_pairs(heads: np.ndarray, position: int, theta: float) -> np.ndarray:
    """Rotary embeddings as Mistral's trainer has them: numbers 2i and 2i + 1 are one complex number."""
    size = heads.shape[-1]
    angles = position / theta ** (np.arange(0, size, 2) / size)
    turned = np.ascontiguousarray(heads).view(np.complex128) * np.exp(1j * angles)
    return turned.view(np.float64)


def rotated_in_halves(heads: np.ndarray, position: int, theta: float) -> np.ndarray:
    """The same as Hugging Face's form has them: i and i + size / 2."""
    first, second = np.split(heads, 2, -1)
    size = heads.shape[-1]
    angles = position / theta ** (np.arange(0, size, 2) / size)
    cos, sin = np.cos(angles), np.sin(angles)
    return np.concatenate([first * cos - second * sin, second * cos + first * sin], -1)


def test_scores_are_those_that_the_trainer_computed(tmp_path: Path) -> None:
    """Not by way of another conversion: both rotations are written down here."""
    heads, size, hidden = 2, 8, 16
    folder = tmp_path / "own"
    folder.mkdir()
    draw = np.random.default_rng(0)
    queries = draw.standard_normal((heads * size, hidden), np.float32)
    keys = draw.standard_normal((size, hidden), np.float32)
    stored = {"layers.0.attention.wq.weight": queries, "layers.0.attention.wk.weight": keys}
    save(stored, folder / "consolidated.safetensors")
    fields = {"dim": hidden, "n_heads": heads, "n_kv_heads": 1, "head_dim": size}
    (folder / "params.json").write_text(json.dumps(PARAMS | fields))
    found = dict(numbers_of(opened(folder)))
    x, y = draw.standard_normal(hidden), draw.standard_normal(hidden)

    def scores(
        query: np.ndarray, key: np.ndarray, rotated: Callable[[np.ndarray, int, float], np.ndarray]
    ) -> np.ndarray:
        asked = rotated((query.astype(np.float64) @ x).reshape(heads, size), 7, 1e4)
        return asked @ rotated((key.astype(np.float64) @ y).reshape(1, size), 3, 1e4).T

    given = scores(queries, keys, rotated_in_pairs)
    q, k = (found[f"model.layers.0.self_attn.{letter}_proj.weight"] for letter in "qk")
    np.testing.assert_allclose(scores(q, k, rotated_in_halves), given, rtol=1e-12, atol=1e-12)
    assert not np.allclose(scores(queries, keys, rotated_in_halves), given, rtol=0.1)


def test_fp8_is_read_with_its_scales(source: Callable[[str], Path], tmp_path: Path) -> None:
    """One scale for a matrix, and one for each of its rows, which moves with the row."""
    fp8 = {"qformat_weight": "fp8_e4m3", "qscheme_act": "TENSOR"}
    own = to_consolidated(source("mistral"), tmp_path / "own", quantization=fp8)
    file = own / "consolidated.safetensors"
    stored, expected = load(file), {}
    for name, weights in load(source("mistral") / "model.safetensors").items():
        expected[name] = weights
        if "self_attn" in name:
            largest = np.abs(weights).max(axis=1 if "k_proj" in name else None, keepdims="k_proj" in name)
            codes = (weights / (largest / 448)).astype(E4M3)
            expected[name] = codes.astype(np.float32) * (largest / 448)
            scales = in_pairs(largest / 448, 2) if "k_proj" in name else largest / 448
            heads = {"q_proj": 4, "k_proj": 2}.get(name.split(".")[-2])
            module = written_name(name).removesuffix(".weight")
            stored[f"{module}.weight"] = codes if heads is None else in_pairs(codes, heads)
            stored |= {f"{module}.qscale_weight": scales, f"{module}.qscale_act": np.ones((), np.float32)}
    save(stored, file)
    checkpoint = opened(own)
    assert checkpoint.quantization == "fp8"
    assert len(checkpoint.forms()) == 12
    found = dict(numbers_of(checkpoint))
    assert found.keys() == expected.keys()
    assert all(same(found[name], weights) for name, weights in expected.items())


def test_auto_takes_hugging_faces_form_where_both_are_there(
    source: Callable[[str], Path], tmp_path: Path
) -> None:
    own = to_consolidated(source("mistral"), tmp_path / "own")
    (own / "config.json").write_text('{"model_type": "llama"}')
    save({"w": np.zeros(2, np.float32)}, own / "model.safetensors")
    assert opened(own).config == {"model_type": "llama"}
    assert list(dict(numbers_of(opened(own)))) == ["w"]
    both = opened(own, load_format="mistral", config_format="mistral")
    assert both.config["architectures"] == ["MistralForCausalLM"]
    assert "model.norm.weight" in dict(numbers_of(both))


def test_the_formats_of_weights_and_configuration_are_chosen_apart(
    source: Callable[[str], Path], tmp_path: Path
) -> None:
    folder = source("mistral")
    own = to_consolidated(folder, tmp_path / "own")
    with pytest.raises(LoadError, match=r"has no config\.json"):
        opened(own, config_format="hf")
    with pytest.raises(LoadError, match=r"has no params\.json"):
        opened(folder, config_format="mistral")
    with pytest.raises(LoadError, match=r"holds no weights \(consolidated\*\.safetensors\)"):
        opened(folder, load_format="mistral")
    (own / "config.json").write_bytes((folder / "config.json").read_bytes())
    assert Stepper(own).greedy({0: prompt(9)}, 3) == Stepper(folder).greedy({0: prompt(9)}, 3)


def test_a_tied_embedding_needs_no_head(tmp_path: Path) -> None:
    folder = make_model("mistral", tmp_path / "hf", head_dim=24, tie_word_embeddings=True)
    own = to_consolidated(folder, tmp_path / "own")
    assert "output.weight" not in load(own / "consolidated.safetensors")
    assert Stepper(own).greedy({0: prompt(9)}, 4) == Stepper(folder).greedy({0: prompt(9)}, 4)


@pytest.mark.parametrize("scaled", [True, False])
def test_yarn_is_read_as_transformers_writes_it(scaled: bool, tmp_path: Path) -> None:
    rope = {
        "rope_type": "yarn",
        "rope_theta": 1e4,
        "factor": 4.0,
        "original_max_position_embeddings": 128,
        "beta_fast": 20.0,
        "beta_slow": 2.0,
        **({} if scaled else {"attention_factor": 1.0}),
    }
    folder = make_model("mistral", tmp_path / "hf", head_dim=24, rope_parameters=rope)
    written = {"factor": 4, "original_max_position_embeddings": 128, "beta": 20, "alpha": 2}
    own = to_consolidated(folder, tmp_path / "own", yarn=written | {"apply_scale": scaled})
    assert Stepper(own).greedy({0: prompt(40)}, 6) == Stepper(folder).greedy({0: prompt(40)}, 6)
    wrong = config_of(json.loads((own / "params.json").read_text()) | {"yarn": written | {"beta": 32}})
    assert wrong != opened(own).config


def test_a_sparse_file_means_what_vllm_takes_it_for() -> None:
    found = config_of(PARAMS)
    assert found["max_position_embeddings"] == 128_000
    assert (found["num_key_value_heads"], found["sliding_window"]) == (4, None)
    assert config_of(PARAMS | {"max_seq_len": 512})["max_position_embeddings"] == 512
    listed = config_of(PARAMS | {"sliding_window": [None, 8]})
    assert listed["layer_types"] == ["full_attention", "sliding_attention"] * 2
    assert config_of(PARAMS | {"sliding_window": [None, None]})["model_type"] == "mistral"


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "images": ({"vision_encoder": {"hidden_size": 8}}, "asks for vision_encoder, which is not supported"),
    "latent attention": ({"q_lora_rank": 8, "kv_lora_rank": 4}, "asks for kv_lora_rank, q_lora_rank, which"),
    "attention both ways": ({"causal": False}, r"asks for rows that see those behind them \(causal: false\)"),
    "scaled queries": ({"llama_4_scaling": {"beta": 0.1}}, "asks for llama_4_scaling"),
    "shared experts": (
        {"moe": {"num_experts": 4, "num_experts_per_tok": 2, "num_shared_experts": 1}},
        r"asks for moe\.num_shared_experts",
    ),
    "an unknown stretch": ({"yarn": {"factor": 2, "gamma": 1}}, r"asks for yarn\.gamma"),
    "unknown codes": (
        {"quantization": {"qformat_weight": "nf4"}},
        r"asks for the quantization {'qformat_weight': 'nf4'}",
    ),
    "experts with windows": (
        {"moe": {"num_experts": 4, "num_experts_per_tok": 2}, "sliding_window": [None, 8]},
        "experts beside windows",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_may_change_the_model_and_is_not_read_is_refused(case: str) -> None:
    fields, message = REFUSED[case]
    with pytest.raises(LoadError, match=message) as raised:
        config_of(PARAMS | fields)
    assert raised.value.code == "UnsupportedModel"


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "no size": (
        {"dim": None},
        r"dim in the model's params\.json is None, and must be a whole number above 0",
    ),
    "a text for a number": ({"norm_eps": "1e-5"}, "norm_eps in the model's params.json is '1e-5'"),
    "a truth for a number": ({"n_heads": True}, "n_heads in the model's params.json is True"),
    "less than nothing": ({"n_layers": -1}, "n_layers in the model's params.json is -1"),
    "two windows": ({"sliding_window": [4, 8]}, "one size, repeated evenly over 4 layers"),
    "a window too many": ({"sliding_window": [None, 8, 8]}, "one size, repeated evenly over 4 layers"),
    "no number of experts": ({"moe": {"num_experts": 4}}, r"moe\.num_experts_per_tok in the model's params"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_field_is_named_with_its_file(case: str) -> None:
    fields, message = WRONG[case]
    with pytest.raises(LoadError, match=message) as raised:
        config_of(PARAMS | fields)
    assert raised.value.code == "BadCheckpoint"


def test_a_tensor_that_no_family_has_is_named(source: Callable[[str], Path], tmp_path: Path) -> None:
    own = to_consolidated(source("mistral"), tmp_path / "own")
    stored = load(own / "consolidated.safetensors") | {
        "layers.0.attention.wz.weight": np.ones((2, 2), np.float32)
    }
    save(stored, own / "consolidated.safetensors")
    with pytest.raises(LoadError, match=r"have no place in the model: model\.layers\.0\.attention\.wz"):
        Stepper(own)


def test_the_writer_of_these_tests_says_what_mistral_says() -> None:
    """The fields of Mistral-7B-v0.3's params.json, as published."""
    config = {
        "hidden_size": 4096,
        "num_hidden_layers": 32,
        "head_dim": 128,
        "intermediate_size": 14336,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "rms_norm_eps": 1e-5,
        "vocab_size": 32768,
        "rope_parameters": {"rope_theta": 1e6},
        "max_position_embeddings": 32768,
        "sliding_window": None,
        "tie_word_embeddings": False,
    }
    published = {"dim", "n_layers", "head_dim", "hidden_dim", "n_heads", "n_kv_heads"}
    assert published | {"norm_eps", "vocab_size", "rope_theta"} <= params(config).keys()
