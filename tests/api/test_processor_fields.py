"""`logits_processors` of requests: whom the pattern lets in, and what the engine is told."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from e2e.ground.patience import scaled
from serving import CHAT, PLAIN, Served

from live_server import live_server
from slipway import envs
from slipway.api.configure import api_settings, engine_config
from slipway.args import resolve
from slipway.engine.params import Processor
from slipway.exits import BAD_ARGUMENTS, Exit

PATTERN = ("--logits-processor-pattern", r"mine\.(one|two)")


@pytest.mark.parametrize(("path", "body"), [("/v1/completions", PLAIN), ("/v1/chat/completions", CHAT)])
def test_the_engine_is_told_names_and_arguments(
    start: Callable[..., Served], path: str, body: dict[str, Any]
) -> None:
    served = start(*PATTERN)
    asked = [
        "mine.one",
        {"qualname": "mine.two"},
        {"qualname": "mine.two", "args": [1], "kwargs": {"a": "b"}},
    ]
    assert served.post(path, body | {"logits_processors": asked}).status_code == 200
    told = (Processor("mine.one"), Processor("mine.two", "[[],{}]"), Processor("mine.two", '[[1],{"a":"b"}]'))
    assert served.engine.requests[0].params.processors == told


@pytest.mark.parametrize("name", ["mine.three", "mine.one.more", "not.mine.one", "os.system"])
@pytest.mark.parametrize("form", [lambda name: name, lambda name: {"qualname": name}], ids=["name", "object"])
def test_the_pattern_matches_whole_names(start: Callable[..., Served], name: str, form: Any) -> None:
    served = start(*PATTERN)
    answer = served.post("/v1/completions", PLAIN | {"logits_processors": ["mine.one", form(name)]})
    error = answer.json()["error"]
    assert (answer.status_code, error["param"], error["code"]) == (400, "logits_processors", "invalid_value")
    assert (
        f"logits_processors has {name}; this server allows those whose whole name matches mine"
        in error["message"]
    )
    assert served.engine.requests == []


def test_arguments_that_every_output_would_be_told_are_bounded(start: Callable[..., Served]) -> None:
    long = {"qualname": "mine.two", "args": ["x" * 70_000]}
    answer = start(*PATTERN).post("/v1/completions", PLAIN | {"logits_processors": [long]})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "logits_processors")
    assert "have 70009 bytes as JSON, at most 65536" in answer.json()["error"]["message"]


def test_beam_search_draws_nothing_that_one_could_change(start: Callable[..., Served]) -> None:
    body = PLAIN | {"logits_processors": ["mine.one"], "use_beam_search": True}
    answer = start(*PATTERN).post("/v1/completions", body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "logits_processors")


def test_what_is_no_pattern_is_refused_at_the_start() -> None:
    with pytest.raises(Exit, match="no regular expression: missing") as caught:
        api_settings(resolve(["m", "--logits-processor-pattern", "mine.("], {}), envs.read({}))
    assert (caught.value.exit_code, caught.value.argument) == (BAD_ARGUMENTS, "logits_processor_pattern")


def test_the_engine_makes_ready_for_them_only_where_some_are_allowed() -> None:
    environment = envs.read({"VLLM_LOGITS_PROCESSOR_THREADS": "3"})
    assert not engine_config(resolve(["m"], {}), environment).processors
    told = engine_config(resolve(["m", *PATTERN], {}), environment)
    assert (told.processors, told.processor_threads) == (True, 3)


@pytest.mark.slow
def test_a_server_runs_what_it_allows_and_answers_400_for_what_fails(
    tiny_models: Callable[[str], Path],
) -> None:
    place = os.pathsep.join([str(Path(__file__).parents[1]), os.environ["PYTHONPATH"]])
    arguments = ("--logits-processor-pattern", r"row_processors\.\w+", "--max-model-len", "256")
    with live_server(tiny_models("llama"), *arguments, env={"PYTHONPATH": place}, forked=False) as server:

        def answer(*processors: Any) -> httpx.Response:
            body = {
                "prompt": "Hi",
                "max_tokens": 4,
                "ignore_eos": True,
                "return_token_ids": True,
                "logits_processors": processors,
            }
            return httpx.post(f"{server.url}/v1/completions", json=body, timeout=scaled(60))

        only = answer({"qualname": "row_processors.only", "args": [9], "kwargs": {"after": 1}})
        assert only.json()["choices"][0]["token_ids"][1:] == [9, 9, 9]
        failed = answer("row_processors.raising")
        assert (failed.status_code, failed.json()["error"]["code"]) == (400, "invalid_value")
        assert "RuntimeError: two are enough" in failed.json()["error"]["message"]
        assert answer().status_code == 200
