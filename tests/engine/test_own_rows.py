"""Adapters with rows of tokens of their own serve as the resized model does, and others never meet them."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from adapter_runs import BOUNDS, GREEDY, assert_alike
from factory import make_model
from local_engine import LocalEngine, Output
from made_adapter import PREFIX, Made
from model.stepping import Stepper, plan, prompt
from resized_adapters import ADDED, Resized, new_embeddings, vocab_of, whole
from slipway.engine.config import DraftConfig, EngineConfig
from slipway.engine.messages import AdapterRef, LoadAdapter
from slipway.engine.params import SamplingParams
from slipway.load.arrays import FP32
from slipway.load.errors import LoadError
from slipway.model.registry import families
from slipway.worker.adapter_plan import adapter_limits
from slipway.worker.adapters import read_parts
from tensor_files import save

EXTRA: dict[str, object] = {**BOUNDS, "max_loras": 2, "lora_extra_vocab_size": 8}
SAMPLED = SamplingParams(12, temperature=1.0, seed=7, num_logprobs=3)


def prompts(vocab: int, added: int = ADDED) -> list[list[int]]:
    """Some of them of added tokens."""
    return [[*prompt(length, length), *range(vocab, vocab + added)][-length - 2 :] for length in (1, 7, 40)]


def outputs(
    engine: LocalEngine, asked: list[tuple[list[int], AdapterRef | None]], params: SamplingParams = GREEDY
) -> list[Output]:
    names = [engine.add(tokens, params, adapter=ref) for tokens, ref in asked]
    engine.finish()
    return [engine.output(name) for name in names]


@pytest.mark.parametrize(
    "form", ["whole", "changed", "new", pytest.param("bin", marks=pytest.mark.torch), "embedding_factors"]
)
def test_added_tokens_serve_as_a_resized_model_does(tmp_path: Path, form: str) -> None:
    base = make_model("llama", tmp_path / "model")
    if form == "whole":
        ref, resized = whole(base, tmp_path / "adapter")
    elif form == "changed":
        ref, resized = whole(base, tmp_path / "adapter", changed=(3, 77))
    elif form == "embedding_factors":
        made = Resized(base, tmp_path / "adapter")
        rows = made.resize(changed=(5,))
        made.tensors |= {
            f"{PREFIX}{name.replace('.weight', '.base_layer.weight')}": one for name, one in rows.items()
        }
        made.embedding()
        made.linear("lm_head")
        ref, resized = made.save(), made.merged()
    else:
        ref, resized = new_embeddings(base, tmp_path / "adapter", pickled=form == "bin")
    asked = prompts(vocab_of(base))
    params = msgspec.structs.replace(GREEDY, num_prompt_logprobs=2)
    with LocalEngine(base, **EXTRA) as engine:
        found = outputs(engine, [(tokens, ref) for tokens in asked], params)
    with LocalEngine(resized, **BOUNDS) as engine:
        expected = outputs(engine, [(tokens, None) for tokens in asked], params)
    for one, other in zip(found, expected, strict=True):
        assert_alike(one, other)
    assert any(token >= vocab_of(base) for one in found for token in one.tokens)


def test_company_and_chunks_change_no_bit_and_no_one_else_draws_an_added_token(tmp_path: Path) -> None:
    base = make_model("llama", tmp_path / "model")
    ref, _ = whole(base, tmp_path / "adapter", changed=(3,))
    other, _ = new_embeddings(base, tmp_path / "other")
    vocab = vocab_of(base)
    asked = [(tokens, one) for tokens in prompts(vocab) for one in (ref, other)]
    plain: list[tuple[list[int], AdapterRef | None]] = [(prompt(9, 9), None), (prompt(40, 3), None)]
    for params in (GREEDY, SAMPLED):
        alone = []
        for one in (*asked, *plain):
            with LocalEngine(base, **EXTRA, enable_prefix_caching=False) as engine:
                alone += outputs(engine, [one], params)
        with LocalEngine(base, **EXTRA, max_num_batched_tokens=16) as engine:
            together = outputs(engine, [*asked, *plain], params)
            again = outputs(engine, [*asked, *plain], params)
        with LocalEngine(base, **BOUNDS) as engine:
            without = outputs(engine, plain, params)
        for found in (together, again):
            assert [(one.tokens, one.logprobs) for one in found] == [
                (one.tokens, one.logprobs) for one in alone
            ]
        assert [(one.tokens, one.logprobs) for one in without] == [
            (one.tokens, one.logprobs) for one in together[-len(plain) :]
        ]


def test_n_gram_drafts_and_penalties_take_added_tokens(tmp_path: Path) -> None:
    base = make_model("llama", tmp_path / "model")
    ref, resized = whole(base, tmp_path / "adapter")
    vocab = vocab_of(base)
    pattern = [vocab, 5, vocab + 1, 9] * 6
    params = msgspec.structs.replace(
        GREEDY,
        presence_penalty=0.5,
        repetition_penalty=1.1,
        logit_bias=((vocab + 2, 3.0), (vocab, -2.0)),
        bad_words=((vocab + 3,),),
    )
    with LocalEngine(base, **EXTRA, num_drafts=3) as engine:
        drafted = outputs(engine, [(pattern, ref)], params)
    with LocalEngine(base, **EXTRA) as engine:
        found = outputs(engine, [(pattern, ref)], params)
    with LocalEngine(resized, **BOUNDS) as engine:
        (expected,) = outputs(engine, [(pattern, None)], params)
    assert [one.tokens for one in drafted] == [one.tokens for one in found]
    assert_alike(found[0], expected)
    assert vocab + 3 not in found[0].tokens


def test_a_step_runs_the_operations_of_a_server_whose_adapters_add_nothing(tmp_path: Path) -> None:
    base = make_model("llama", tmp_path / "model")
    names = [
        [name for name, _ in Stepper(base, max_loras=1, lora_extra_vocab_size=extra).model.measure()]
        for extra in (0, 256)
    ]
    assert names[0] == names[1]


def test_one_whose_files_add_fewer_tokens_than_when_it_was_loaded_ends_its_requests_alone(
    tmp_path: Path,
) -> None:
    """It has left the memory meanwhile, and the request names a token that is not there any more."""
    base = make_model("llama", tmp_path / "model")
    (first, _), (other, _) = (whole(base, tmp_path / name) for name in ("first", "other"))
    fewer, _ = whole(base, tmp_path / "fewer", added=1)
    tokens = [5, vocab_of(base) + 3]
    with LocalEngine(base, **{**EXTRA, "max_loras": 1}) as engine:
        assert all(outputs(engine, [(tokens, one)])[0].tokens for one in (first, other))
        shutil.copytree(fewer.folder, first.folder, dirs_exist_ok=True)
        name, alive = (engine.add(tokens, GREEDY, adapter=one) for one in (first, other))
        engine.finish()
        (delta,) = engine.hub.deltas[name]
        assert delta.unfit
        assert "adds 1 tokens to the vocabulary, and added 5 when it was loaded" in (delta.error or "")
        assert engine.output(alive).finish_reason == "length"
        again = AdapterRef(1 + first.number, first.name, first.folder)
        assert outputs(engine, [([5, vocab_of(base)], again)])[0].tokens


def test_tied_rows_of_added_tokens_are_the_heads_too(tmp_path: Path) -> None:
    base = make_model("llama", tmp_path / "model", tie_word_embeddings=True)
    made = Resized(base, tmp_path / "adapter")
    rows = made.resize()["model.embed_tokens.weight"]
    made.weights["lm_head.weight"] = rows.copy()
    made.tensors[f"{PREFIX}model.embed_tokens.weight"] = rows
    ref, resized = made.save(), made.merged()
    asked = prompts(vocab_of(base))
    with LocalEngine(base, **EXTRA) as engine:
        found = outputs(engine, [(tokens, ref) for tokens in asked])
    with LocalEngine(resized, **BOUNDS) as engine:
        expected = outputs(engine, [(tokens, None) for tokens in asked])
    for one, other in zip(found, expected, strict=True):
        assert_alike(one, other)


def refusal(base: Path, ref: AdapterRef, **settings: object) -> str:
    with LocalEngine(base, **{**EXTRA, **settings}) as engine:
        engine.tell(LoadAdapter(1, ref))
        while not engine.hub.replies:
            engine.core.run_once()
        return str(engine.hub.replies[1])


def test_what_cannot_be_served_is_named(tmp_path: Path) -> None:
    base = make_model("llama", tmp_path / "model")
    ref, _ = whole(base, tmp_path / "many")
    why = "adds 5 tokens to the vocabulary, and --lora-extra-vocab-size is 4"
    assert why in refusal(base, ref, lora_extra_vocab_size=4)
    norm = Resized(base, tmp_path / "norm")
    norm.tensors[f"{PREFIX}model.norm.weight"] = np.zeros((8, 64), np.float32)
    assert "has a whole matrix of model.norm" in refusal(base, norm.save())
    short = Resized(base, tmp_path / "short")
    short.tensors[f"{PREFIX}lm_head.weight"] = short.weights["lm_head.weight"][:-3].copy()
    assert "has whole matrices of other shapes than [512, 64]" in refusal(base, short.save())
    headless = Resized(base, tmp_path / "headless")
    headless.tensors[f"{PREFIX}lm_head.weight"] = headless.resize()["lm_head.weight"]
    assert "has 5 more rows of the head than the model" in refusal(base, headless.save())
    broken = Resized(base, tmp_path / "broken")
    matrix = broken.weights["model.embed_tokens.weight"].copy()
    matrix[7, 3] = float("nan")
    broken.tensors[f"{PREFIX}model.embed_tokens.weight"] = matrix
    assert "has rows of tokens that are infinite, or no numbers" in refusal(base, broken.save())
    other = Resized(base, tmp_path / "other").save()
    save({"rows": np.zeros((2, 64), np.float32)}, tmp_path / "other" / "new_embeddings.safetensors")
    assert "has rows in new_embeddings, which holds input_embeddings" in refusal(base, other)


DRAFTED: dict[str, Any] = {"draft": DraftConfig(method="eagle", model="x")}


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        (DRAFTED, "the model that drafts for this one"),
        ({"device": "cuda"} | DRAFTED, "the model that drafts for this one"),
        (
            {"device": "cuda", "lora_extra_vocab_size": 1 << 18},
            "--lora-extra-vocab-size 262144 makes 262656 tokens, of which CUDA draws from 262144 at most",
        ),
    ],
)
def test_where_no_adapter_may_have_rows_it_is_refused_and_others_are_not(
    tmp_path: Path, settings: dict[str, Any], why: str
) -> None:
    base = make_model("llama", tmp_path / "model")
    ref, _ = whole(base, tmp_path / "adapter")
    known = plan(base)
    config = EngineConfig(model=str(base), **{"max_loras": 1, "lora_extra_vocab_size": 8, **settings})
    limits = adapter_limits(config, known.element, [], known.route)
    spec, family = known.route.spec, families()["LlamaForCausalLM"]
    assert limits is not None
    assert spec is not None
    with pytest.raises(LoadError, match=why):
        read_parts(ref, limits, spec, family, {}, FP32)
    usual = Made(base, tmp_path / "usual")
    usual.linear("model.layers.0.self_attn.q_proj")
    found, own = read_parts(usual.save(), limits, spec, family, {}, FP32)
    assert len(found) == 1
    assert not own
