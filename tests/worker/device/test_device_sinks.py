"""Attention sinks and ALiBi, by a family that has both: the device gives what the definition does."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from device_runs import SMALL
from factory import make_model
from local_engine import LocalEngine
from model.reference import Reference, read_reference
from model.stepping import plan
from slipway.engine.params import SamplingParams
from slipway.load.arrays import FP32
from slipway.load.config import Config
from slipway.load.errors import LoadError
from slipway.model import registry
from slipway.model.families.llama import spec as llama
from slipway.model.families.parts import LLAMA_NAMES
from slipway.model.spec import Attention, DecoderSpec

PROMPT = [5, 9, 14, 77, 60, 31, 18, 44, 12, 3, 3]


def with_sinks(config: Config) -> DecoderSpec:
    made = llama(config)
    layers = [
        replace(layer, attention=replace(layer.attention, sinks=True, alibi=True, rope=None))
        for layer in made.layers
    ]
    return replace(made, layers=tuple(layers))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    registry.families()
    names = LLAMA_NAMES | {"sinks": "model.layers.{}.self_attn.sinks"}
    family = registry.Family(with_sinks, names, {}, {})
    monkeypatch.setitem(registry._FAMILIES, "SinksForCausalLM", family)
    path = make_model("llama", tmp_path / "model", num_hidden_layers=2)
    config = json.loads((path / "config.json").read_text()) | {"architectures": ["SinksForCausalLM"]}
    (path / "config.json").write_text(json.dumps(config))
    weights = load_file(path / "model.safetensors")
    for layer in range(2):
        weights[names["sinks"].format(layer) + ".weight"] = torch.linspace(
            2, 6, config["num_attention_heads"]
        )
    save_file(weights, path / "model.safetensors", metadata={"format": "pt"})
    return path


@pytest.mark.parametrize("backend", ["TRITON", "TORCH_SDPA"])
def test_sinks_and_slopes_reach_attention(folder: Path, backend: str) -> None:
    asked = SamplingParams(3, temperature=0.0, num_logprobs=0)
    settings = SMALL | {"device": "cuda", "attention_backend": backend}
    with LocalEngine(folder, **settings) as engine:
        (found,) = engine.run([(PROMPT, asked)])
    model = plan(folder)
    spec = model.route.spec
    assert spec is not None
    reference = read_reference(spec, model.checkpoint, FP32)
    tokens = list(PROMPT)
    for token, reported in zip(found.tokens, found.logprobs, strict=True):
        chances = reference.logits(torch.tensor(tokens))[-1].log_softmax(-1)
        assert token == int(chances.argmax())
        assert reported.logprob == pytest.approx(float(chances[token]), abs=1e-3)
        tokens.append(token)
    for left_out in ("sinks", "alibi"):
        other = Reference(without(spec, left_out), reference.weights).logits(torch.tensor(PROMPT))[-1]
        logprob = float(other.log_softmax(-1)[found.tokens[0]])
        assert logprob != pytest.approx(found.logprobs[0].logprob, abs=1e-2)


def without(spec: DecoderSpec, name: str) -> DecoderSpec:
    layers = [
        replace(layer, attention=replace(layer.attention, **{name: False}))  # type: ignore[arg-type]
        for layer in spec.layers
    ]
    return replace(spec, layers=tuple(layers))


def test_on_a_cpu_they_are_refused(folder: Path) -> None:
    with pytest.raises(LoadError, match="SinksForCausalLM has attention sinks"):
        LocalEngine(folder, **SMALL)


def test_slopes_of_heads_that_are_no_power_of_two_are_of_both_neighbours() -> None:
    six = Attention(heads=6, kv_heads=6, head_dim=8, rope=None, scale=1.0)
    assert six.slopes == (0.25, 0.0625, 0.015625, 0.00390625, 0.5, 0.125)
