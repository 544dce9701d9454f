"""Adapters that stretch the context rotate as a model with linear scaling does; others stay as they are."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from adapter_runs import adapter, assert_alike, outputs, ref
from factory import make_model
from local_engine import LocalEngine
from model.stepping import prompt
from resized_adapters import stretched
from slipway.engine.messages import LoadAdapter
from slipway.load.errors import LoadError

TRAINED = 64
LONG: dict[str, object] = {
    "max_model_len": 150,
    "num_blocks": 100,
    "dtype": "float32",
    "max_loras": 2,
    "long_lora_scaling_factors": [2.0, 3.0],
}


def test_an_adapter_stretches_the_context_as_linear_scaling_does(tmp_path: Path) -> None:
    base = make_model("llama", tmp_path / "model", max_position_embeddings=TRAINED)
    two, as_two = stretched(base, tmp_path / "two", 2.0, 2 * TRAINED)
    three, as_three = stretched(base, tmp_path / "three", 3.0, 2 * TRAINED + 5)
    near, as_near = stretched(base, tmp_path / "near", 1.0, TRAINED)
    asked = [prompt(length, length) for length in (5, 40, 110)]
    with LocalEngine(base, **LONG) as engine:
        ready = engine.start.ready()
        company = [(tokens, one) for tokens in asked for one in (two, three)]
        company += [(tokens, one) for tokens in asked[:2] for one in (near, None)]
        found = outputs(engine, company)
    assert (ready.max_model_len, ready.max_stretched_len) == (TRAINED, 150)
    models = {two: (as_two, 128), three: (as_three, 133), near: (as_near, TRAINED), None: (base, TRAINED)}
    for (tokens, one), answer in zip(company, found, strict=True):
        whole, length = models[one]
        with LocalEngine(whole, max_model_len=length, num_blocks=100, dtype="float32") as engine:
            (expected,) = outputs(engine, [(tokens, None)])
        assert_alike(answer, expected)
        with LocalEngine(base, **LONG) as engine:
            (alone,) = outputs(engine, [(tokens, one)])
        assert (alone.tokens, alone.logprobs) == (answer.tokens, answer.logprobs)


def test_a_factor_that_is_not_allowed_is_named_with_the_argument(tmp_path: Path) -> None:
    base = make_model("llama", tmp_path / "model", max_position_embeddings=TRAINED)
    four = adapter(base, tmp_path / "four", context_length=4 * TRAINED)
    with LocalEngine(base, **LONG) as engine:
        engine.tell(LoadAdapter(1, ref(four)))  # type: ignore[arg-type]
        while not engine.hub.replies:
            engine.core.run_once()
        told = engine.hub.replies[1]
    assert "stretches the 64 positions of the model by 4, and --long-lora-scaling-factors is 2 3" in told


@pytest.mark.parametrize(
    ("settings", "config", "why"),
    [
        (
            {"long_lora_scaling_factors": [0.5], "max_model_len": 64},
            {},
            "a factor stretches positions 1 to 1024 times",
        ),
        ({}, {"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}, "is scaled by dynamic"),
        ({"max_model_len": 193}, {}, "--max-model-len 193 is too long"),
    ],
)
def test_a_start_that_cannot_stretch_says_why(
    tmp_path: Path, settings: dict[str, object], config: dict[str, object], why: str
) -> None:
    base = make_model("llama", tmp_path / "model", max_position_embeddings=TRAINED)
    path = base / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "rope_parameters": None} | config))
    with pytest.raises(LoadError, match=why), LocalEngine(base, **{**LONG, **settings}):
        pass
