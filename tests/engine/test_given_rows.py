"""Prompts that are embeddings: those of a text give its answer to the bit, whatever runs beside them."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from local_engine import LocalEngine, Output
from slipway.engine.messages import NO_TOKEN
from slipway.engine.params import SamplingParams
from slipway.load.errors import LoadError
from tensor_files import load

Request = tuple[list[int], SamplingParams]
BASE: dict[str, object] = {"enable_prompt_embeds": True, "enable_prefix_caching": False}
AXES: dict[str, dict[str, object]] = {
    "company": {},
    "chunks of 7": {"max_num_batched_tokens": 7},
    "preemption": {"num_blocks": 16, "max_num_batched_tokens": 64},
    "preemption with a prefix cache": {
        "num_blocks": 16,
        "max_num_batched_tokens": 64,
        "enable_prefix_caching": True,
    },
    "a prefix cache": {"enable_prefix_caching": True},
    "drafts": {"num_drafts": 3, "prompt_lookup_max": 3},
}


def embedded(model: Path, tokens: list[int]) -> bytes:
    """What transformers' get_input_embeddings gives: the table's rows."""
    table = load(model / "model.safetensors")["model.embed_tokens.weight"]
    return table[tokens].astype(np.float32).tobytes()


def work(seed: int = 5) -> list[Request]:
    rng = random.Random(seed)
    made = []
    for number in range(8):
        tokens = [rng.randrange(512) for _ in range(rng.randint(1, 60))]
        drawn: dict[str, Any] = {"temperature": 0.9, "seed": number} if number % 2 else {"temperature": 0.0}
        made.append((tokens, SamplingParams(20, num_logprobs=2, frequency_penalty=0.3, **drawn)))
    return made


def add(engine: LocalEngine, model: Path, request: Request, **fields: object) -> str:
    tokens, params = request
    rows = embedded(model, tokens)
    return engine.add([NO_TOKEN] * len(tokens), params, prompt_embeds=rows, **fields)


def same(one: Output, other: Output) -> bool:
    return (one.tokens, one.logprobs, one.finish_reason) == (
        other.tokens,
        other.logprobs,
        other.finish_reason,
    )


@pytest.fixture(scope="module", params=["float32", "bfloat16"])
def dtype(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory, dtype: str) -> Path:
    from factory import make_model

    return make_model("llama", tmp_path_factory.mktemp("model") / dtype, dtype=dtype)


@pytest.fixture(scope="module")
def answers(model: Path, dtype: str) -> list[Output]:
    """To the texts, each alone."""
    with LocalEngine(model, dtype=dtype, **BASE) as engine:
        return [engine.run([one])[0] for one in work()]


@pytest.mark.parametrize("axis", AXES)
def test_a_texts_own_embeddings_give_its_answer_to_the_bit(
    axis: str, model: Path, dtype: str, answers: list[Output]
) -> None:
    """Half of the prompts are texts, and they run together."""
    with LocalEngine(model, dtype=dtype, **(BASE | AXES[axis])) as engine:
        names = [
            add(engine, model, one) if number % 4 < 2 else engine.add(*one)
            for number, one in enumerate(work())
        ]
        engine.finish()
        found = [engine.output(name) for name in names]
    assert all(map(same, found, answers))
    if axis.startswith("preemption"):
        assert sum(one.num_preemptions for one in found) > 0


def test_a_slot_that_had_embeddings_takes_a_text_afterwards(
    model: Path, dtype: str, answers: list[Output]
) -> None:
    with LocalEngine(model, dtype=dtype, **(BASE | {"max_num_seqs": 1})) as engine:
        for request, answer in zip(work(), answers, strict=True):
            names = [add(engine, model, request), engine.add(*request)]
            engine.finish()
            assert all(same(engine.output(name), answer) for name in names)


def test_prefixes_are_shared_by_equal_embeddings_alone(model: Path, dtype: str) -> None:
    tokens, params = list(range(40)), SamplingParams(4, temperature=0.0)
    others = [*tokens[:39], 77]
    with LocalEngine(model, dtype=dtype, enable_prompt_embeds=True) as engine:
        cached = []
        for prompt, fields in (
            (tokens, {}),
            (tokens, {}),
            (others, {}),
            (tokens, {"cache_salt": "other"}),
        ):
            name = add(engine, model, (prompt, params), **fields)
            engine.finish()
            cached.append(engine.output(name).num_cached_tokens)
        assert engine.run([(tokens, params)])[0].num_cached_tokens == 0
    assert cached == [0, 32, 0, 0]


def test_no_penalty_counts_a_token_that_is_not_there(model: Path, dtype: str) -> None:
    """A repetition penalty on a prompt of embeddings is one on the output alone."""
    tokens = work()[1][0]
    plain = SamplingParams(1, temperature=0.0)
    penalized = SamplingParams(1, temperature=0.0, repetition_penalty=5.0)
    with LocalEngine(model, dtype=dtype, **BASE) as engine:
        names = [add(engine, model, (tokens, params)) for params in (plain, penalized)]
        engine.finish()
        first, second = (engine.output(name).tokens for name in names)
    assert first == second


@pytest.mark.parametrize(
    ("tokens", "rows", "params", "message"),
    [
        ([NO_TOKEN] * 2, b"\0" * 8, {}, "8 bytes are not 2 embeddings of 64"),
        ([1, 2], b"\0" * 512, {}, "has neither tokens nor"),
        ([NO_TOKEN] * 2, b"\0" * 512, {"num_prompt_logprobs": 0}, "has neither tokens nor"),
    ],
    ids=["bytes", "tokens", "log-probabilities"],
)
def test_what_cannot_be_computed_fails_alone(
    tokens: list[int], rows: bytes, params: dict[str, Any], message: str, model: Path, dtype: str
) -> None:
    with LocalEngine(model, dtype=dtype, **BASE) as engine:
        bad = engine.add(tokens, SamplingParams(4, **params), prompt_embeds=rows)
        good = engine.add(*work()[0])
        engine.core.run_once()
        assert message in engine.hub.deltas[bad][0].error
        engine.finish()
        assert len(engine.output(good).tokens) == 20


def test_embeddings_are_refused_where_the_engine_was_not_told_of_them(model: Path, dtype: str) -> None:
    with LocalEngine(model, dtype=dtype) as engine:
        name = add(engine, model, work()[0])
        engine.finish()
        assert engine.output(name).finish_reason == "error"


@pytest.mark.torch
def test_transformers_code_takes_none(tiny_models: Callable[[str], Path]) -> None:
    with pytest.raises(LoadError, match="transformers' code embeds tokens alone"):
        LocalEngine(tiny_models("llama"), enable_prompt_embeds=True, model_impl="transformers")
