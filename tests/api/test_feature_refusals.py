"""Features that do not go together are refused, each pair as the table of the manual says."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from serving import CHAT, PLAIN, Served, refused

import followers
from local_ranks import engine_of
from slipway.args import resolve
from slipway.args.errors import ArgumentError
from slipway.engine.messages import Pools
from slipway.features import DRAFTS, LIMITS, Together
from slipway.load.errors import LoadError

METHODS = {
    "n-grams": "ngram",
    "draft model": "draft_model",
    "Medusa": "medusa",
    "MLP speculator": "mlp_speculator",
    "EAGLE": "eagle",
    "EAGLE-3": "eagle3",
    "MTP": "mtp",
}
SCHEMA = {"type": "object", "properties": {"at": {"enum": ["sky", "sea"]}}, "required": ["at"]}
TOOLS = [{"type": "function", "function": {"name": "look", "parameters": SCHEMA}}]
FORM = {"type": "json_schema", "json_schema": {"name": "other", "schema": {"type": "integer"}}}
ROWS = "AAAA"
ASKED: dict[frozenset[str], tuple[tuple[str, dict[str, Any], str], ...]] = {
    frozenset(("prompt embeddings", "prompt log-probabilities")): (
        ("/v1/completions", {"prompt_embeds": ROWS, "prompt_logprobs": 1}, "prompt_logprobs"),
    ),
    frozenset(("prompt embeddings", "tools")): (
        ("/v1/completions", {"prompt_embeds": ROWS, "tools": TOOLS}, "tools"),
        ("/v1/chat/completions", CHAT | {"prompt_embeds": ROWS, "tools": TOOLS}, "prompt_embeds"),
    ),
}
"""Of servers that generate: a path, a body, and the field at fault."""
POOLED: dict[frozenset[str], dict[str, Any]] = {
    frozenset(("pooling", name)): fields
    for name, fields in {
        "grammar": {
            "response_format": FORM,
            "structured_outputs": {"json": SCHEMA},
            "guided_json": SCHEMA,
            "guided_regex": "a",
            "guided_choice": ["a"],
            "guided_grammar": "start: A",
        },
        "log-probabilities": {"logprobs": 0, "top_logprobs": 2},
        "prompt log-probabilities": {"prompt_logprobs": 0},
        "logits processors": {"logits_processors": ["a.b"]},
        "prompt embeddings": {"prompt_embeds": ROWS},
    }.items()
}
"""Of servers that pool: fields and what they ask for."""
STARTED = {frozenset(("EAGLE-3", "pipeline parallelism"))}
"""Which end the start."""
PATHS = {
    "/v1/embeddings": {"input": "x"},
    "/pooling": {"input": "x"},
    "/classify": {"input": "x"},
    "/score": {"text_1": "x", "text_2": "y"},
    "/rerank": {"query": "x", "documents": ["y"]},
}


def why(pair: frozenset[str]) -> str:
    return next(limit.why for limit in LIMITS if pair in limit.pairs)


def test_each_pair_that_the_table_refuses_is_asked_for_here() -> None:
    refused_pairs = {pair for one in LIMITS if one.together is Together.REFUSED for pair in one.pairs}
    drafts = {frozenset((one, other)) for one in DRAFTS for other in DRAFTS if one != other}
    assert refused_pairs == {*ASKED, *POOLED, *STARTED} | drafts
    assert {*METHODS} == {*DRAFTS}


@pytest.mark.parametrize("pair", ASKED, ids=lambda pair: " ".join(sorted(pair)))
def test_a_request_for_both_is_refused(served: Served, pair: frozenset[str]) -> None:
    for path, body, param in ASKED[pair]:
        words = "a prompt of embeddings" if path.startswith("/v1/chat") else why(pair)
        refused(served.post(path, body), 400, param, words)
    assert not served.engine.requests


@pytest.fixture(scope="module")
def embeds(start_for_module: Callable[..., Served]) -> Served:
    return start_for_module(pools=Pools("embed", 4))


@pytest.mark.parametrize("path", PATHS)
def test_what_pools_refuses_what_is_about_an_output(embeds: Served, path: str) -> None:
    for pair, fields in POOLED.items():
        for name, value in fields.items():
            refused(embeds.post(path, PATHS[path] | {name: value}), 400, name, why(pair))
            idle = embeds.post(path, PATHS[path] | {name: None})
            assert idle.status_code == (400 if path == "/classify" else 200), idle.text


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_what_pools_writes_nothing(embeds: Served, path: str) -> None:
    body = CHAT if "chat" in path else PLAIN
    refused(embeds.post(path, body), 400, "model", "generates no text")


def test_what_pools_tells_the_template_of_tools_and_calls_none(embeds: Served) -> None:
    chat = {"messages": CHAT["messages"], "tools": TOOLS}
    assert embeds.post("/v1/embeddings", chat).status_code == 200
    refused(embeds.post("/v1/embeddings", chat | {"tool_choice": "required"}), 400, "tool_choice", "nothing")


def test_layers_that_read_rows_of_other_stages_are_refused(
    tiny_models: Callable[[str], Path], tmp_path: Path
) -> None:
    heads = followers.write_follower("eagle3", tmp_path / "heads")
    settings = {"max_model_len": 128, "num_blocks": 64} | followers.guessing("eagle3", heads, 3)
    with pytest.raises(LoadError, match="and guesses on the last pipeline stage") as caught:
        engine_of(tiny_models("llama"), pipeline_parallel_size=2, **settings)
    assert caught.value.argument == "speculative_config"


def test_one_method_drafts() -> None:
    for method in METHODS.values():
        others = [name for name in METHODS.values() if name != method]
        for other in others:
            asked = f'{{"method": ["{method}", "{other}"], "num_speculative_tokens": 3, "model": "m"}}'
            with pytest.raises(ArgumentError, match="method"):
                resolve(["m", "--speculative-config", asked], {})


def test_a_call_that_has_to_come_follows_its_tool_and_not_the_form(served: Served) -> None:
    body = CHAT | {"tools": TOOLS, "tool_choice": "required", "response_format": FORM}
    served.post("/v1/chat/completions", body)
    served.post("/v1/chat/completions", {**body, "response_format": {"type": "text"}})
    served.post("/v1/chat/completions", CHAT | {"response_format": FORM})
    called, plain, form = (request.grammar for request in served.engine.requests)
    assert called == plain != form
