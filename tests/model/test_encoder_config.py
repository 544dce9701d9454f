from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from encoder_models import EncoderRun, make_encoder, reference, reference_rows, text
from slipway.load.errors import LoadError
from slipway.model.encoder_registry import encoders
from slipway.model.encoder_spec import EncoderSpec
from slipway.model.rope import cos_sin

SPARSE = {
    "BertModel": "BertConfig",
    "RobertaModel": "RobertaConfig",
    "XLMRobertaForSequenceClassification": "XLMRobertaConfig",
    "ModernBertForSequenceClassification": "ModernBertConfig",
    "NomicBertModel": "NomicBertConfig",
    "GteModel": "GteConfig",
}


def spec(architecture: str, **fields: Any) -> EncoderSpec:
    return encoders()[architecture].spec({"architectures": [architecture], **fields})


@pytest.mark.parametrize("architecture", SPARSE)
def test_a_sparse_configuration_means_what_transformers_takes_it_for(architecture: str) -> None:
    import transformers

    full = getattr(transformers, SPARSE[architecture])(vocab_size=1000).to_dict()
    full.pop("architectures", None)
    assert spec(architecture, vocab_size=1000) == spec(architecture, **full)


def test_a_full_rotary_specification_is_the_same_in_every_layer_but_for_its_window() -> None:
    layers = spec("ModernBertModel").layers
    assert [layer.attention.window for layer in layers[:4]] == [0, 65, 65, 0]
    assert [layer.attention.rope.theta for layer in layers[:2] if layer.attention.rope] == [160_000, 10_000]


def test_nomics_own_fields_mean_what_transformers_own_do() -> None:
    own = spec(
        "NomicBertModel",
        **{"n_embd": 128, "n_layer": 2, "n_head": 4, "n_inner": 96, "n_positions": 8192},
        **{"max_trained_positions": 512, "layer_norm_epsilon": 1e-6, "rotary_emb_base": 500},
        **{"activation_function": "swiglu", "rotary_emb_fraction": 1.0, "prenorm": False},
    )
    usual = spec(
        "NomicBertModel",
        **{"hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 96},
        **{"max_position_embeddings": 512, "layer_norm_eps": 1e-6},
        rope_parameters={"rope_type": "default", "rope_theta": 500.0},
    )
    assert own == usual


def test_gtes_own_scaling_raises_the_base_and_slows_every_turn() -> None:
    """As their code has it: of all pairs, base · factor; then each frequency by factor^(2 / size)."""
    own = {"rope_theta": 20000, "rope_scaling": {"type": "ntk", "factor": 8.0}}
    rope = spec("NewModel", **own).layers[0].attention.rope
    assert rope
    found = cos_sin(rope, 50)
    pairs = np.arange(0, 64, 2) / 64
    angles = np.outer(np.arange(50), (20000 * 8.0) ** -pairs / 8 ** (2 / 64))
    np.testing.assert_allclose(found[..., 0], np.cos(angles), atol=1e-5)
    np.testing.assert_allclose(found[..., 1], np.sin(angles), atol=1e-5)
    unscaled = spec("NewModel", rope_theta=20000).layers[0].attention.rope
    assert unscaled == replace(rope, scaling={})


@pytest.mark.parametrize("variant", ["nomic_bert", "gte"])
def test_the_names_that_transformers_has_in_memory_are_read_too(tmp_path: Path, variant: str) -> None:
    from safetensors.torch import save_file

    folder = make_encoder(variant, tmp_path)
    expected = reference_rows(folder, text(20))
    tensors = {name: weights.contiguous() for name, weights in reference(folder).state_dict().items()}
    assert "layers.0.self_attn.q_proj.weight" in tensors
    save_file(tensors, folder / "model.safetensors")
    assert (EncoderRun(folder).step({0: text(20)})[0] - expected).abs().max() < 1e-4


def rewritten(folder: Path, rename: dict[str, str | None]) -> Path:
    """With other names of tensors, None for those that are left out."""
    from safetensors.torch import load_file, save_file

    kept = {
        rename.get(name, name): weights for name, weights in load_file(folder / "model.safetensors").items()
    }
    save_file({name: weights for name, weights in kept.items() if name}, folder / "model.safetensors")
    return folder


def test_norms_of_the_first_checkpoints_are_read(tmp_path: Path) -> None:
    folder = make_encoder("bert", tmp_path)
    expected = EncoderRun(folder).step({0: text(9)})[0]
    old = {"weight": "gamma", "bias": "beta"}
    names = {f"embeddings.LayerNorm.{kind}": f"bert.embeddings.LayerNorm.{old[kind]}" for kind in old}
    assert torch.equal(EncoderRun(rewritten(folder, dict(names))).step({0: text(9)})[0], expected)


def test_tensors_that_are_missing_or_have_no_place_are_named(tmp_path: Path) -> None:
    changed: dict[str, str | None] = {
        "layers.1.attn.Wqkv.weight": None,
        "layers.2.mlp.Wo.weight": "layers.2.mlp.extra.weight",
    }
    folder = rewritten(make_encoder("modernbert", tmp_path), changed)
    fault = r"missing: layers\.1\.attn\.Wqkv\.weight, layers\.2\.mlp\.Wo\.weight; 1 tensors have no place"
    with pytest.raises(LoadError, match=fault):
        EncoderRun(folder)


def test_a_tensor_of_another_shape_is_named(tmp_path: Path) -> None:
    folder = make_encoder("modernbert", tmp_path)
    config = folder / "config.json"
    config.write_text(config.read_text().replace('"intermediate_size": 96', '"intermediate_size": 80'))
    with pytest.raises(LoadError, match=r"mlp\.W[io]\.weight has the shape"):
        EncoderRun(folder)
