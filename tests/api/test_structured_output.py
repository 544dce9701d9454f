"""From a request's form to the grammar that the engine gets; what comes of it is in tests/engine."""

from __future__ import annotations

import gc
import json
import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import openai
import pytest
from e2e.ground.patience import scaled
from pydantic import BaseModel
from serving import MODEL, Served

from live_server import live_server
from slipway.api.grammars import GrammarChecks

PLAIN = {"model": MODEL, "prompt": "a", "max_tokens": 2}
CHAT = {"model": MODEL, "messages": [{"role": "user", "content": "a"}], "max_tokens": 2}
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}


TAG = {
    "type": "triggered_tags",
    "triggers": ["<"],
    "tags": [{"begin": "<a>", "content": {"type": "json_schema", "json_schema": SCHEMA}, "end": "</a>"}],
}
OLD_TAG = {"triggers": ["<"], "structures": [{"begin": "<a>", "schema": SCHEMA, "end": "</a>"}]}


def grammar(served: Served, fields: dict[str, Any], *, plain: bool = False) -> dict[str, Any]:
    """What the engine is told, as JSON."""
    path, body = ("/v1/completions", PLAIN) if plain else ("/v1/chat/completions", CHAT)
    answer = served.post(path, body | fields)
    assert answer.status_code == 200, answer.text
    text = served.engine.requests[-1].grammar
    return json.loads(text)["grammars"][0] if text else {}


@pytest.mark.parametrize("plain", [False, True], ids=["chat", "completions"])
def test_every_spelling_of_a_form_is_one_grammar(served: Served, plain: bool) -> None:
    spellings: list[list[dict[str, Any]]] = [
        [
            {"guided_json": SCHEMA},
            {"guided_json": json.dumps(SCHEMA)},
            {"structured_outputs": {"json": SCHEMA}},
            {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}},
        ],
        [
            {"guided_json_object": True},
            {"structured_outputs": {"json_object": True}},
            {"response_format": {"type": "json_object"}},
            {"guided_json": {"type": "object"}},
        ],
        [{"guided_regex": "a+"}, {"structured_outputs": {"regex": "a+"}}],
        [{"guided_choice": ["a", "b"]}, {"structured_outputs": {"choice": ["a", "b"]}}],
        [{"guided_grammar": 'start: "a"'}, {"structured_outputs": {"grammar": 'start: "a"'}}],
        [
            {"structural_tag": {"format": TAG}},
            {"structural_tag": json.dumps({"format": TAG})},
            {"structured_outputs": {"structural_tag": json.dumps({"format": TAG})}},
            {"response_format": {"type": "structural_tag", "format": TAG}},
            {"response_format": {"type": "structural_tag"} | OLD_TAG},
        ],
    ]
    found = [[grammar(served, fields, plain=plain) for fields in forms] for forms in spellings]
    assert all(one for forms in found for one in forms)
    for forms in found:
        assert all(one == forms[0] for one in forms)
    assert len({json.dumps(forms[0]) for forms in found}) == len(spellings)
    free = [{"response_format": {"type": "text"}}, {"guided_json_object": False}, {"guided_json": None}]
    assert [grammar(served, fields, plain=plain) for fields in free] == [{}, {}, {}]


def test_json_object_with_a_schema_is_held_to_the_schema(served: Served) -> None:
    wanted = grammar(served, {"guided_json": SCHEMA})
    assert grammar(served, {"response_format": {"type": "json_object", "schema": SCHEMA}}) == wanted
    assert (
        grammar(served, {"response_format": {"type": "json_object", "schema": json.dumps(SCHEMA)}}) == wanted
    )
    body = {"model": MODEL, "input": "a", "text": {"format": {"type": "json_object", "schema": SCHEMA}}}
    assert served.post("/v1/responses", body).status_code == 200
    assert json.loads(served.engine.requests[-1].grammar)["grammars"][0] == wanted
    for extra in ({"schema": 3}, {"schema": {"type": "strin"}}, {"json_schema": {"schema": SCHEMA}}):
        refused = served.post(
            "/v1/chat/completions", CHAT | {"response_format": {"type": "json_object"} | extra}
        )
        assert refused.status_code == 400
        assert refused.json()["error"]["param"].startswith("response_format")


def test_each_output_of_a_request_has_the_grammar(served: Served) -> None:
    served.post("/v1/completions", PLAIN | {"prompt": ["a", "b"], "n": 2, "guided_regex": "a+"})
    assert len({request.grammar for request in served.engine.requests}) == 1
    assert len(served.engine.requests) == 4


def test_the_style_of_json_is_the_requests_else_the_servers(start: Callable[..., Served]) -> None:
    def style(served: Served, **fields: Any) -> tuple[Any, bool]:
        """The rule for white space, and whether there may be other properties."""
        schema = grammar(served, fields or {"guided_json": SCHEMA})["json_schema"]
        guidance = schema["x-guidance"]
        pattern = guidance.get("whitespace_pattern") if guidance.get("whitespace_flexible", True) else None
        return pattern, "patternProperties" in schema

    plain = start()
    usual = style(plain)[0]
    assert usual
    assert style(plain) == (usual, False)
    for backend in ("auto", "xgrammar", "outlines", "lm-format-enforcer", "guidance"):
        expected = usual, backend == "guidance"
        assert style(plain, guided_json=SCHEMA, guided_decoding_backend=backend) == expected
    tight = {"disable_any_whitespace": True, "disable_additional_properties": True}
    guidance = {"guided_decoding_backend": "guidance"}
    assert style(plain, structured_outputs={"json": SCHEMA} | tight, **guidance) == (None, False)
    assert style(plain, guided_json=SCHEMA, guided_whitespace_pattern=" ") == (" ", False)
    short = "xgrammar:disable-any-whitespace"
    assert style(plain, guided_json=SCHEMA, guided_decoding_backend=short) == (None, False)
    strict = start(
        "--guided-decoding-disable-any-whitespace", "--guided-decoding-disable-additional-properties"
    )
    assert style(strict) == (None, False)
    loose = {"disable_any_whitespace": False, "disable_additional_properties": False}
    assert style(strict, structured_outputs={"json": SCHEMA} | loose) == (usual, True)
    # As the manual says: white space is not outlines'.
    assert style(strict, guided_json=SCHEMA, guided_decoding_backend="outlines") == (usual, False)
    assert style(strict, guided_json=SCHEMA, **guidance) == (None, False)


def test_another_backends_name_is_taken_with_a_warning(
    served: Served, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "slipway.api")
    for _ in range(2):
        assert grammar(served, {"guided_regex": "a", "guided_decoding_backend": "lm-format-enforcer"})
        assert grammar(served, {"guided_regex": "a", "guided_decoding_backend": "guidance"})
    said = [record.getMessage() for record in caplog.records if "llguidance" in record.getMessage()]
    assert len(said) <= 1  # once for the process
    assert all("lm-format-enforcer" in message for message in said)


def test_without_fallback_a_backend_is_held_to_what_it_follows(start: Callable[..., Served]) -> None:
    served = start("--guided-decoding-backend", "outlines:no-fallback")
    assert grammar(served, {"guided_regex": "a"})
    refused = served.post("/v1/chat/completions", CHAT | {"guided_grammar": 'start: "a"'})
    assert refused.status_code == 400
    assert "outlines does not follow guided_grammar" in refused.json()["error"]["message"]
    assert grammar(served, {"guided_grammar": 'start: "a"', "guided_decoding_backend": "xgrammar"})
    usual = start()
    assert grammar(usual, {"guided_grammar": 'start: "a"', "guided_decoding_backend": "outlines"})
    wanted = {"grammar": 'start: "a"', "disable_fallback": True}
    fields = {"structured_outputs": wanted, "guided_decoding_backend": "lm-format-enforcer"}
    assert usual.post("/v1/chat/completions", CHAT | fields).status_code == 400


def test_a_refused_grammar_leaves_nothing_in_the_log(
    served: Served, caplog: pytest.LogCaptureFixture
) -> None:
    assert (
        served.post("/v1/completions", PLAIN | {"guided_grammar": "start: nothing_such"}).status_code == 400
    )
    gc.collect()  # asyncio speaks of an exception that nobody asked for when its future goes
    assert served.get("/live").status_code == 200
    assert [record for record in caplog.records if record.name == "asyncio"] == []


def test_a_good_grammar_is_compiled_once(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[str] = []
    compile_ = GrammarChecks._compile
    monkeypatch.setattr(
        GrammarChecks, "_compile", lambda self, text: (compiled.append(text), compile_(self, text))[1]
    )
    for _ in range(3):
        grammar(served, {"guided_regex": "once+"})
        assert served.post("/v1/chat/completions", CHAT | {"guided_json": {"not": {}}}).status_code == 400
    assert len(compiled) == 4


@pytest.mark.parametrize("more_threads", [1, 0])
def test_a_grammar_that_takes_too_long_is_refused_and_holds_no_others_up(
    served: Served, monkeypatch: pytest.MonkeyPatch, more_threads: int
) -> None:
    begun, end = threading.Event(), threading.Event()
    compile_ = GrammarChecks._compile

    def held(self: GrammarChecks, text: str) -> None:
        if "long" in text:
            begun.set()
            end.wait(scaled(20))
        else:
            compile_(self, text)

    assert served.post("/v1/completions", PLAIN | {"guided_regex": "first"}).status_code == 200
    monkeypatch.setattr("slipway.api.grammars.COMPILING", 0.2)
    monkeypatch.setattr("slipway.api.grammars.DEADLINE", scaled(5) if more_threads else 0.4)
    monkeypatch.setattr("slipway.api.grammars.MAX_HELD", more_threads)
    monkeypatch.setattr(GrammarChecks, "_compile", held)
    answers: list[Any] = []
    first = threading.Thread(
        target=lambda: answers.append(
            served.post("/v1/completions", PLAIN | {"guided_regex": f"long{more_threads}"})
        )
    )
    first.start()
    assert begun.wait(scaled(10))
    monkeypatch.setattr("slipway.api.grammars.COMPILING", scaled(10))
    second = served.post("/v1/completions", PLAIN | {"guided_regex": f"behind{more_threads}"})
    first.join()
    assert answers[0].status_code == 400
    assert "guided_regex takes longer than" in answers[0].json()["error"]["message"]
    if more_threads:
        assert second.status_code == 200
    else:  # too many are held, so those behind may come again
        assert (second.status_code, second.headers["retry-after"]) == (503, "5")
    end.set()
    assert served.post("/v1/completions", PLAIN | {"guided_regex": f"after{more_threads}"}).status_code == 200


def test_a_request_that_ends_by_its_own_grammar_is_at_fault(served: Served) -> None:
    served.engine.failing, served.engine.unfit = "its grammar cannot be followed: so it is", True
    answer = served.post("/v1/chat/completions", CHAT | {"guided_regex": "a"})
    assert answer.status_code == 400
    assert answer.json()["error"]["message"].endswith("cannot be followed: so it is.")
    stream: Any = served.openai().chat.completions.create(**CHAT, stream=True)  # type: ignore[call-overload]
    with pytest.raises(openai.APIError, match="so it is"):
        list(stream)


def test_without_a_tokenizer_there_are_no_forms(start: Callable[..., Served]) -> None:
    served = start("--skip-tokenizer-init")
    answer = served.post("/v1/completions", PLAIN | {"prompt": [5], "guided_regex": "a"})
    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == "no_tokenizer"


class Person(BaseModel):
    name: str
    age: int


@pytest.mark.slow
def test_the_openai_package_parses_what_a_real_model_writes(demo_model: Path) -> None:
    with live_server(demo_model, "--max-model-len", "512", "--disable-log-requests") as server:
        client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)
        say: dict[str, Any] = {"model": "", "messages": [{"role": "user", "content": "Ann is 30 years old."}]}
        for seed in range(3):
            parsed = client.chat.completions.parse(**say, response_format=Person, max_tokens=200, seed=seed)
            assert isinstance(parsed.choices[0].message.parsed, Person)
            assert parsed.choices[0].finish_reason == "stop"
        word = {"guided_choice": ["one", "two", "three"]}
        several = client.chat.completions.create(**say, n=4, extra_body=word)
        assert {choice.message.content for choice in several.choices} <= {"one", "two", "three"}
        whole = (
            client.chat.completions.create(**say, temperature=0, extra_body=word).choices[0].message.content
        )
        chunks = client.chat.completions.create(**say, temperature=0, stream=True, extra_body=word)
        assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == whole
        # Nothing is left of them, and nothing waits.
        metrics = server.metrics()
        assert metrics["vllm:num_requests_waiting"] == metrics["vllm:num_requests_running"] == 0
