"""Fields of one request that are harmless each by itself, and what they come to together."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from serving import CHAT, PLAIN, Served, refused

from slipway.api import products
from slipway.api.errors import ApiError
from slipway.api.generate import Prompt
from slipway.engine.messages import Pools
from slipway.engine.params import SamplingParams

LIMIT = 1000
"""In place of the products' own, which bodies of megabytes would be needed for."""
IDS = SamplingParams(max_tokens=1, allowed_token_ids=(5,) * 500)
TOKENS = Prompt([5] * 500, IDS)
EMBEDS = Prompt([], IDS, embeds=bytes(500))
EACH_TOKEN = Pools("embed", 2, by_token=True)


@pytest.mark.parametrize(
    ("limit", "check"),
    [
        ("MAX_OUTPUTS", lambda: products.check_outputs(500, 2)),
        ("MAX_PARAMETERS", lambda: products.check_parameters(IDS, None, 2)),
        ("MAX_PROMPT_COPIES", lambda: products.check_copies([TOKENS], 2)),
        ("MAX_EMBEDS_BYTES", lambda: products.check_embeds([EMBEDS], 2)),
        ("MAX_PROMPT_LOGPROBS", lambda: products.check_prompt_logprobs({"logprobs": 0}, [TOKENS], 2)),
        ("MAX_BEAM_TOKENS", lambda: products.check_beams(2, [TOKENS], None)),
        ("MAX_PAIR_CHARACTERS", lambda: products.check_pairs(1000)),
        ("MAX_POOLED_TOKENS", lambda: products.check_pooled([[5] * 1000], EACH_TOKEN, 0)),
        ("MAX_POOLED_NUMBERS", lambda: products.check_pooled([[5] * 500], EACH_TOKEN, 0)),
    ],
)
def test_a_request_may_reach_a_limit_and_not_exceed_it(
    monkeypatch: pytest.MonkeyPatch, limit: str, check: Callable[[], None]
) -> None:
    monkeypatch.setattr(products, limit, LIMIT)
    check()
    monkeypatch.setattr(products, limit, LIMIT - 1)
    with pytest.raises(ApiError):
        check()


@pytest.fixture
def encoded(served: Served, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The texts that were tokenized."""
    tokenizer, texts = served.front.model.tokenizer, list[str]()
    encode = tokenizer.encode

    def noted(text: str, **keywords: Any) -> list[int]:
        texts.append(text)
        return encode(text, **keywords)

    monkeypatch.setattr(tokenizer, "encode", noted)
    return texts


def test_bad_words_are_tokenized_once_for_all_prompts(served: Served, encoded: list[str]) -> None:
    body = {"prompt": ["a"] * 20, "bad_words": ["b"] * 1000, "max_tokens": 1}
    assert served.post("/v1/completions", body).status_code == 200
    assert sorted(encoded) == [" b", *["a"] * 20, "b"]
    assert len({request.params.bad_words for request in served.engine.requests}) == 1
    assert len({request.params.seed for request in served.engine.requests}) == 20


def test_no_more_bad_words_are_tokenized_than_are_looked_for(
    served: Served, encoded: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("slipway.api.sampling.MAX_BAD_TOKENS", 20)
    body = PLAIN | {"bad_words": [f"word {n}" for n in range(1000)]}
    refused(served.post("/v1/completions", body), 400, "bad_words", "at most 20 are looked for")
    assert len(encoded) < 10


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"allowed_token_ids": [*range(200)], "logit_bias": {"5": 1}}, "allowed_token_ids"),
        ({"logit_bias": {str(token): 1 for token in range(200)}}, "logit_bias"),
        ({"bad_words": [f"{n} " * 12 for n in range(7)]}, "bad_words"),
        ({"stop_token_ids": [*range(200)]}, "stop_token_ids"),
        ({"guided_regex": "a" * 1200}, "guided_regex"),
    ],
)
def test_what_every_output_has_of_its_own_is_bounded(
    served: Served, monkeypatch: pytest.MonkeyPatch, fields: dict[str, Any], param: str
) -> None:
    monkeypatch.setattr("slipway.api.products.MAX_PARAMETERS", LIMIT)
    for path, body in (
        ("/v1/completions", PLAIN | {"prompt": ["a", "b", "c"], "n": 2}),
        ("/v1/completions", PLAIN | {"n": 1, "best_of": 6}),
        ("/v1/chat/completions", CHAT | {"n": 6}),
    ):
        refused(served.post(path, body | fields), 400, param, "each of the 6 outputs")
        few = {name: 1 if name in ("n", "best_of") else value for name, value in body.items()}
        assert served.post(path, few | fields).status_code == 200


def test_what_processors_are_told_counts_for_every_output(
    start: Callable[..., Served], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("slipway.api.products.MAX_PARAMETERS", LIMIT)
    served = start("--logits-processor-pattern", r"mine\.one")
    body = PLAIN | {"logits_processors": [{"qualname": "mine.one", "args": ["a" * 1000]}]}
    refused(
        served.post("/v1/completions", body | {"n": 6}), 400, "logits_processors", "each of the 6 outputs"
    )
    assert served.post("/v1/completions", body).status_code == 200


def test_log_probabilities_of_prompts_are_bounded_as_often_as_an_answer_has_them(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("slipway.api.products.MAX_PROMPT_LOGPROBS", 100)
    prompt = {"prompt": [5] * 20, "max_tokens": 1}
    for fields, param in (
        ({"prompt_logprobs": 1, "n": 3}, "prompt_logprobs"),
        ({"logprobs": 1, "echo": True, "n": 3}, "logprobs"),
        ({"logprobs": 0, "echo": True, "prompt_logprobs": 0, "n": 3}, "prompt_logprobs"),
    ):
        answer = served.post("/v1/completions", prompt | fields)
        refused(answer, 400, param, "120 log-probabilities")
        assert served.post("/v1/completions", prompt | fields | {"n": 2}).status_code == 200
    best = prompt | {"prompt_logprobs": 1, "n": 1, "best_of": 3}
    assert served.post("/v1/completions", best).status_code == 200
    chat = CHAT | {"prompt_logprobs": 1, "n": 30, "max_tokens": 1}
    assert served.post("/v1/chat/completions", chat).status_code == 200
    assert {one.params.num_prompt_logprobs for one in served.engine.requests[-29:]} == {-1}


def test_copies_of_prompts_are_bounded(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slipway.api.products.MAX_PROMPT_COPIES", 100)
    body = {"prompt": [[5] * 20, [6] * 5], "max_tokens": 1}
    assert served.post("/v1/completions", body | {"n": 4}).status_code == 200
    refused(served.post("/v1/completions", body | {"n": 5}), 400, "n", "25 tokens make 125")
    assert served.post("/v1/completions", body | {"prompt": [5] * 200}).status_code == 200
