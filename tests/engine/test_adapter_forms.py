"""Every form of adapter that PEFT writes and that is served computes what merged weights do."""

from __future__ import annotations

from math import sqrt
from pathlib import Path

import pytest

from factory import make_model
from local_engine import LocalEngine
from made_adapter import LINEAR, PREFIX, Made
from model.stepping import prompt
from slipway.engine.params import SamplingParams

GREEDY = SamplingParams(8, temperature=0.0, num_logprobs=3)
PROMPTS = [prompt(length, length) for length in (1, 9, 40)]
BOUNDS: dict[str, object] = {"max_model_len": 128, "num_blocks": 100, "dtype": "float32"}
TIED = 1e-3


def check(made: Made, *, pickled: bool = False, **settings: object) -> None:
    """The adapter gives the merged weights' tokens and log-probabilities, which are not the model's own."""
    ref, asked = made.save(pickled=pickled), [(tokens, GREEDY) for tokens in PROMPTS]
    with LocalEngine(made.model, **BOUNDS, max_loras=1, **settings) as engine:
        names = [engine.add(tokens, GREEDY, adapter=one) for tokens in PROMPTS for one in (ref, None)]
        engine.finish()
        found, plain = ([engine.output(name) for name in names[first::2]] for first in (0, 1))
    with LocalEngine(made.merged(), **BOUNDS) as engine:
        expected = engine.run(asked)
    for one, other, bare in zip(found, expected, plain, strict=True):
        assert one.finish_reason == "length", one
        assert abs(bare.logprobs[0].logprob - other.logprobs[0].logprob) > TIED
        for token, wanted, mine, theirs in zip(
            one.tokens, other.tokens, one.logprobs, other.logprobs, strict=True
        ):
            (_, first), (_, second) = theirs.top[:2]
            if token != wanted and first - second < TIED:
                break
            assert token == wanted
            assert abs(mine.logprob - theirs.logprob) < TIED


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model("llama", tmp_path_factory.mktemp("base") / "llama")


@pytest.mark.parametrize("rank", [1, 8, 64, 256])
@pytest.mark.parametrize("rslora", [False, True])
def test_every_rank_on_every_linear_layer(model: Path, tmp_path: Path, rank: int, rslora: bool) -> None:
    made = Made(
        model, tmp_path / "it", r=rank, use_rslora=rslora, lora_alpha=2 * (sqrt(rank) if rslora else rank)
    )
    for name in list(made.weights):
        if name.endswith(tuple(f"{one}.weight" for one in LINEAR)):
            made.linear(name.removesuffix(".weight"), rank)
    check(made, max_lora_rank=256)


@pytest.mark.parametrize("pickled", [False, pytest.param(True, marks=pytest.mark.torch)])
def test_a_rank_and_an_alpha_for_each_module(model: Path, tmp_path: Path, pickled: bool) -> None:
    patterns = {
        "rank_pattern": {"q_proj": 7, r"layers\.1\.mlp\.(up|down)_proj": 3},
        "alpha_pattern": {"q_proj": 21},
    }
    made = Made(model, tmp_path / "it", **patterns)
    for layer in range(3):
        made.linear(f"model.layers.{layer}.self_attn.q_proj", 7, 21)
        made.linear(f"model.layers.{layer}.mlp.up_proj", 3 if layer == 1 else 4)
        made.linear(f"model.layers.{layer}.mlp.gate_proj")
    check(made, pickled=pickled)


@pytest.mark.parametrize("architecture", ["llama", "gemma2", "gemma3_text"])
@pytest.mark.parametrize("where", ["embedding", "head", "both"])
def test_the_embedding_and_the_head(tmp_path: Path, architecture: str, where: str) -> None:
    """Gemma scales its embeddings, and caps the logits in its second version."""
    sizes = {} if architecture == "llama" else {"head_dim": 24}
    base = make_model(architecture, tmp_path / "model", tie_word_embeddings=False, **sizes)
    made = Made(base, tmp_path / "it")
    if where != "head":
        made.embedding()
    if where != "embedding":
        made.linear("lm_head")
    check(made)


def test_biases_that_are_added_and_that_take_the_place_of_others(tmp_path: Path) -> None:
    base = make_model("qwen2", tmp_path / "model")
    added = Made(base, tmp_path / "added", lora_bias=True)
    added.linear("model.layers.0.self_attn.v_proj", bias=True)
    check(added, enable_lora_bias=True)
    new = Made(base, tmp_path / "new", bias="all")
    new.linear("model.layers.0.self_attn.k_proj")
    for module in ("model.layers.0.self_attn.k_proj", "model.layers.1.self_attn.v_proj"):
        bias = new.random(*new.weights[f"{module}.bias"].shape, scale=1.0)
        new.tensors[f"{PREFIX}{module}.bias"] = new.weights[f"{module}.bias"] = bias
    check(new, enable_lora_bias=True)
