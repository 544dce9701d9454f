"""Whatever a client sends: a 4xx that names the field, and the server serves on."""

from __future__ import annotations

import asyncio
import gc
import json
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from e2e.ground.patience import scaled
from serving import AS_JSON, CHAT, PLAIN, Served, refused

from slipway.api.admission import LONG_BODY_BYTES, Bodies
from slipway.api.errors import ApiError, from_validation, renamed

SAMPLING = [
    ({"temperature": -0.1}, "temperature", "-0.1"),
    ({"temperature": "hot"}, "temperature", '"hot"'),
    ({"temperature": 1e300}, "temperature", "1e+300"),
    ({"top_p": 0}, "top_p", "greater than 0"),
    ({"top_p": 1.01}, "top_p", "1.01"),
    ({"top_k": -2}, "top_k", "-2"),
    ({"top_k": 1.5}, "top_k", "1.5"),
    ({"min_p": 2}, "min_p", "2"),
    ({"typical_p": 0}, "typical_p", "0"),
    ({"presence_penalty": 2.1}, "presence_penalty", "2.1"),
    ({"frequency_penalty": -3}, "frequency_penalty", "-3"),
    ({"repetition_penalty": 0}, "repetition_penalty", "0"),
    ({"seed": 1 << 70}, "seed", "1.18"),
    ({"seed": 1.25}, "seed", "1.25"),
    ({"seed": True}, "seed", "true"),
    ({"n": 0}, "n", "n must be at least 1, got 0."),
    ({"n": 100000}, "n", "100000"),
    ({"max_tokens": -1}, "max_tokens", "-1"),
    ({"max_tokens": 0}, "max_tokens", "0"),
    ({"max_tokens": 1 << 40}, "max_tokens", "1099511627776"),
    ({"min_tokens": 3}, "min_tokens", "max_tokens"),
    ({"stop": ""}, "stop[0]", "character"),
    ({"stop": ["a", ""]}, "stop[1]", "character"),
    ({"stop": 5}, "stop", "a text or a list"),
    ({"stop": ["x"] * 65}, "stop", "64"),
    ({"stop_token_ids": [-1]}, "stop_token_ids[0]", "-1"),
    ({"stop_token_ids": [512]}, "stop_token_ids", "512, which is out of vocabulary"),
    ({"allowed_token_ids": []}, "allowed_token_ids", "1"),
    ({"allowed_token_ids": [100000]}, "allowed_token_ids", "100000"),
    ({"allowed_token_ids": [2], "min_tokens": 1}, "allowed_token_ids", "no token"),
    ({"allowed_token_ids": [67], "bad_words": ["a"]}, "allowed_token_ids", "no token"),
    ({"logit_bias": {"x": 1}}, "logit_bias", "'x'"),
    ({"logit_bias": {"-1": 1}}, "logit_bias", "'-1'"),
    ({"logit_bias": {"512": 1}}, "logit_bias", "512"),
    ({"logit_bias": [1]}, "logit_bias", "[1]"),
    ({"bad_words": [""]}, "bad_words[0]", "character"),
    ({"bad_words": [f"{n} " * 12 for n in range(900)]}, "bad_words", "at most 8192 are looked for"),
    ({"prompt_logprobs": 21}, "prompt_logprobs", "--max-logprobs"),
    ({"priority": 1}, "priority", "--scheduling-policy priority"),
    ({"truncate_prompt_tokens": -2}, "truncate_prompt_tokens", "-2"),
    ({"cache_salt": ""}, "cache_salt", "character"),
    ({"request_id": "a b"}, "request_id", "a b"),
    ({"model": "gpt-9"}, "model", "The model `gpt-9` does not exist."),
    ({"seed": 1 << 63}, "seed", "9223372036854775808"),
    ({"stream": True, "prompt_logprobs": 0}, "prompt_logprobs", "stream: true"),
    ({"model": 5}, "model", "5"),
    ({"stream": "yes"}, "stream", "yes"),
    ({"stream_options": {"include_usage": True}}, "stream_options", "stream: true"),
    (
        {"guided_json": {"not": {}}},
        "guided_json",
        "cannot be followed: no grammar can hold the keyword not; leave out what it says.",
    ),
    ({"guided_json": 5}, "guided_json", "5"),
    ({"guided_json": "{"}, "guided_json", "not valid JSON"),
    ({"guided_regex": "("}, "guided_regex", "unclosed group"),
    ({"guided_choice": []}, "guided_choice", "guided_choice must have at least 1 item, got []."),
    ({"guided_choice": ["a"], "guided_regex": "a"}, "guided_choice", "at most one"),
    ({"guided_grammar": "root ::= b"}, "guided_grammar", "Rule 'b' not found"),
    ({"guided_grammar": 'start: start "a"'}, "guided_grammar", "no text that it allows"),
    ({"guided_decoding_backend": "magic"}, "guided_decoding_backend", "magic"),
    ({"guided_decoding_backend": "xgrammar:fast"}, "guided_decoding_backend", "no-fallback"),
    ({"structural_tag": {"format": {"type": "poem"}}}, "structural_tag", '"poem"'),
    ({"structured_outputs": {"poem": 1}}, "structured_outputs.poem", "is 1, and there is no field of that"),
    (
        {"structured_outputs": {"json": {"oneOf": [{}, {}]}}},
        "structured_outputs.json",
        "more than one branch",
    ),
    ({"response_format": {"type": "poem"}}, "response_format.type", "poem"),
    ({"response_format": {"type": "json_schema"}}, "response_format.json_schema", "the schema itself"),
    ({"response_format": {"type": "structural_tag"}}, "response_format", "a format, or structures"),
    ({"response_format": {}}, "response_format.type", "missing"),
    ({"response_format": 5}, "response_format", "response_format is 5 but should be an object."),
    ({"logits_processors": ["a.b"]}, "logits_processors", "has no --logits-processor-pattern"),
    ({"logits_processors": ["a"]}, "logits_processors", "qualified names"),
    ({"logits_processors": [{"qualname": "a.b", "others": 1, "args": {}}]}, "logits_processors", "qualname"),
    ({"logits_processors": ["a.b"] * 17}, "logits_processors", "at most 16"),
]


@pytest.mark.parametrize(("fields", "param", "words"), SAMPLING, ids=lambda case: str(case)[:60])
def test_a_bad_field_is_named(served: Served, fields: dict[str, Any], param: str, words: str) -> None:
    status = 404 if fields.get("model") == "gpt-9" else 400
    for path, body in (("/v1/completions", PLAIN), ("/v1/chat/completions", CHAT)):
        refused(served.post(path, body | fields), status, param, words)


COMPLETION = [
    ({"prompt": None}, "prompt", "prompt"),
    ({"prompt": []}, "prompt", "prompt"),
    ({"prompt": [[]]}, "prompt", "no tokens"),
    ({"prompt": ""}, "prompt", "no tokens"),
    ({"prompt": {"a": 1}}, "prompt", "prompt"),
    ({"prompt": ["a", 1]}, "prompt", "prompt"),
    ({"prompt": [1, -5]}, "prompt", "prompt"),
    ({"prompt": [1, 512]}, "prompt", "512"),
    ({"prompt": [[1], [1 << 40]]}, "prompt", "prompt"),
    ({"prompt": "x" * 5000}, "prompt", "512 tokens"),
    ({"prompt": [1] * 511, "max_tokens": 5}, "prompt", "context length is 512"),
    ({"prompt": ["a"] * 1000, "n": 5}, "prompt", "1024"),
    ({"best_of": 1, "n": 2}, "best_of", "fewer"),
    ({"best_of": 3, "stream": True}, "best_of", "streamed"),
    ({"logprobs": 21}, "logprobs", "21"),
    ({"logprobs": True}, "logprobs", "true"),
    ({"suffix": "end"}, "suffix", "not supported yet"),
]


@pytest.mark.parametrize(("fields", "param", "words"), COMPLETION, ids=lambda case: str(case)[:60])
def test_a_bad_completion_is_refused(served: Served, fields: dict[str, Any], param: str, words: str) -> None:
    refused(served.post("/v1/completions", PLAIN | fields), 400, param, words)


def say(**fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", **fields}]}


MESSAGES = [
    ({"messages": []}, "messages", "1"),
    ({"messages": "Hi"}, "messages", '"Hi"'),
    ({"messages": ["Hi"]}, "messages[0]", '"Hi"'),
    ({"messages": [{"content": "Hi"}]}, "messages[0].role", "missing"),
    ({"messages": [{"role": "alien", "content": "Hi"}]}, "messages[0].role", "alien"),
    (say(content=5), "messages[0].content", "string"),
    (say(content=["Hi"]), "messages[0].content", "parts"),
    (say(content=[{"type": "text"}]), "messages[0].content[0].text", "string"),
    (
        say(content=[{"type": "text", "text": "a"}, {"type": "image_url", "image_url": {"url": "x"}}]),
        "messages[0].content[1]",
        "not supported yet",
    ),
    (say(content="x" * 5000), "messages", "512 tokens"),
    ({"logprobs": 5}, "logprobs", "5"),
    ({"top_logprobs": 3}, "top_logprobs", "logprobs: true"),
    ({"logprobs": True, "top_logprobs": 21}, "top_logprobs", "21"),
    ({"max_completion_tokens": 0}, "max_completion_tokens", "0"),
    ({"max_completion_tokens": 600}, "messages", "context length"),
    ({"tool_choice": "required"}, "tool_choice", "the request has no function"),
    ({"tool_choice": "perhaps"}, "tool_choice", "named"),
    ({"tools": [{"type": "function"}]}, "tools[0].function", "missing"),
    ({"reasoning_effort": "extreme"}, "reasoning_effort", "extreme"),
    ({"add_generation_prompt": True, "continue_final_message": True}, "add_generation_prompt", "both"),
    ({"continue_final_message": True, "messages": [{"role": "user"}]}, "messages", "continue"),
    ({"chat_template_kwargs": {"messages": []}}, "messages", "chat_template_kwargs"),
    ({"chat_template_kwargs": 3}, "chat_template_kwargs", "3"),
    ({"functions": [{"name": "f"}]}, "functions", "not supported yet"),
    ({"prompt_embeds": "AAAA"}, "prompt_embeds", "not supported yet"),
    ({"modalities": ["audio"]}, "modalities", "not supported yet"),
]


@pytest.mark.parametrize(("fields", "param", "words"), MESSAGES, ids=lambda case: str(case)[:60])
def test_a_bad_chat_is_refused(served: Served, fields: dict[str, Any], param: str, words: str) -> None:
    if words == "named":
        words = "should be"
    refused(served.post("/v1/chat/completions", CHAT | fields), 400, param, words)


TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]


@pytest.mark.parametrize(
    ("choice", "words"),
    [
        (None, "a server started with --tool-call-parser. None was chosen"),
        (
            "auto",
            'Send tool_choice: "required" ({"type": "any"} to /v1/messages) to have the model call a tool.',
        ),
        ({"type": "function", "function": {"name": "g"}}, "'g', which is not among the tools"),
    ],
    ids=str,
)
def test_a_choice_of_tools_that_cannot_be_made_is_refused(served: Served, choice: Any, words: str) -> None:
    body = CHAT | {"tools": TOOLS} | ({"tool_choice": choice} if choice else {})
    refused(served.post("/v1/chat/completions", body), 400, "tool_choice", words)


JSON = [
    (b"", "empty"),
    (b"{", "not valid JSON"),
    (b"[]", "not an object"),
    (b"null", "not an object"),
    (b'{"prompt": "\xff"}', "not UTF-8: byte 12 is 0xff"),
    (b'{"prompt": "a", "temperature": NaN}', "not valid JSON"),
    (b'{"prompt": "a", "temperature": Infinity}', "not valid JSON"),
    (b'{"prompt": "a", "temperature": 1e999}', "a number that no 64-bit float can hold"),
    (b'{"prompt": "\\ud800"}', "not valid JSON"),
    (b'{"prompt": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "levels deep"),
    (b'{"prompt": ' + b"[" * 100 + b"]" * 100 + b"}", "levels deep"),
    (b'{"prompt": [' + b"1," * 1_100_000 + b"1]}", "members"),
    (b"\x00\x01\x02", "not valid JSON"),
]


@pytest.mark.parametrize(("body", "words"), JSON, ids=lambda case: str(case)[:40])
def test_a_body_that_is_no_json_object_is_refused(served: Served, body: bytes, words: str) -> None:
    for path in ("/v1/completions", "/v1/chat/completions", "/tokenize", "/detokenize"):
        refused(served.post(path, content=body, headers=AS_JSON), 400, None, words)


@pytest.mark.parametrize(
    "kind",
    [None, "", "text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "json"],
)
def test_a_body_that_does_not_say_json_is_refused(served: Served, kind: str | None) -> None:
    headers = {} if kind is None else {"Content-Type": kind}
    for path in ("/v1/completions", "/v1/chat/completions", "/tokenize", "/detokenize"):
        answer = served.post(path, content=b'{"prompt": "a", "tokens": [1]}', headers=headers)
        refused(answer, 400, None, "Content-Type: application/json")
    assert not served.engine.requests


@pytest.mark.parametrize(
    "kind", ["application/json", "Application/JSON; charset=utf-8", "application/vnd.api+json ;v=1"]
)
def test_every_way_to_say_json_is_taken(served: Served, kind: str) -> None:
    answer = served.post("/tokenize", content=b'{"prompt": "a"}', headers={"Content-Type": kind})
    assert answer.status_code == 200


def test_more_prompt_logprobs_than_the_loop_can_write_are_refused(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("slipway.api.products.MAX_PROMPT_LOGPROBS", 100)
    most = {"prompt": [[5] * 10, [6] * 10], "max_tokens": 1, "prompt_logprobs": 4}
    assert served.post("/v1/completions", most).status_code == 200
    more = most | {"prompt_logprobs": 5}
    refused(served.post("/v1/completions", more), 400, "prompt_logprobs", "120 log-probabilities")


def test_a_body_over_the_cap_is_refused_while_it_arrives(served: Served) -> None:
    def endless() -> Any:
        for _ in range(40):
            yield b" " * (1 << 20)

    answer = served.post("/v1/completions", content=endless(), headers=AS_JSON)
    refused(answer, 413, None, "8 MiB")
    declared = served.post("/v1/completions", content=b" " * (9 << 20), headers=AS_JSON)
    refused(declared, 413, None, "8 MiB")
    assert served.front.bodies.held == 0


def test_a_long_context_lets_a_long_body_in() -> None:
    bodies = Bodies()
    bodies.make_room(131_072)
    assert bodies.largest == 8 << 20
    bodies.make_room(1 << 20)
    assert bodies.largest == bodies.plain == 16 << 20
    bodies.make_room(8192, hidden_size=2048)
    assert (bodies.plain, bodies.largest) == (8 << 20, 96 << 20)


def test_only_base64_is_let_in_where_embeddings_make_bodies_long(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What takes the parser no longer than a copy."""
    monkeypatch.setattr("slipway.api.body.LONG_BODY_BYTES", 9000)
    monkeypatch.setattr(served.front.bodies, "plain", 10_000)
    embeds = served.post("/v1/completions", {"prompt_embeds": "A" * 50_000})
    refused(embeds, 400, "prompt_embeds", "it needs --enable-prompt-embeds")
    for prompt in ([1] * 20_000, "\u4e00" * 4_000):
        answer = served.post("/v1/completions", {"prompt": prompt})
        refused(answer, 413, None, "the most that this server reads of all but base64")


def test_nodes_are_counted_before_objects_are_made_of_them(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("slipway.api.body.LONG_BODY_BYTES", 9000)
    monkeypatch.setattr("slipway.api.body.MAX_NODES", 100)
    for most in ([[]] * 97, [{"a": 1}] * 48):
        fitting = served.post(
            "/detokenize", content=json.dumps({"tokens": most}).ljust(9001), headers=AS_JSON
        )
        refused(fitting, 400, "tokens[0]", "should be a valid integer")
    over = served.post("/detokenize", content=json.dumps({"tokens": [[]] * 98}).ljust(9001), headers=AS_JSON)
    refused(over, 400, None, "101 lists, objects and keys; this server reads 100")
    text = '{[: \\"\\\\' * 1200
    assert served.post("/tokenize", {"prompt": text}).status_code == 200


def test_long_texts_leave_the_threads_to_others(served: Served) -> None:
    over = threading.Event()

    async def beside_one_another() -> None:
        work = (served.front.in_thread(lambda: over.wait(scaled(10)), LONG_BODY_BYTES + 1) for _ in range(4))
        long = asyncio.gather(*work)
        other = served.front.in_thread(lambda: "done", LONG_BODY_BYTES)
        assert await asyncio.wait_for(other, scaled(5)) == "done"
        over.set()
        assert await long == [True] * 4

    asyncio.run(beside_one_another())


def test_bodies_that_no_memory_is_left_for_are_told_to_come_again(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(served.front.bodies, "together", 1 << 20)
    large = b'{"prompt": "a"}'.ljust(900_000)
    seen = threading.Event()

    def slowly() -> Any:
        yield large[:-1]
        assert seen.wait(scaled(10))
        yield large[-1:]

    with ThreadPoolExecutor(1) as thread:
        first = thread.submit(served.post, "/tokenize", content=slowly(), headers=AS_JSON)
        served.engine.wait(lambda: served.front.bodies.held >= len(large) - 1)
        second = served.post("/tokenize", content=large[:200_000], headers=AS_JSON)
        refused(second, 503, None, "1 MiB are being read")
        assert second.headers["retry-after"] == "1"
        assert served.post("/tokenize", {"prompt": "short"}).status_code == 200
        seen.set()
        assert first.result().status_code == 200
    assert served.front.bodies.held == 0
    assert served.post("/tokenize", content=large, headers=AS_JSON).status_code == 200


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/detokenize", {"tokens": ["x"] * 1_000_000}, "tokens[0]"),
        ("/v1/completions", PLAIN | {"logit_bias": {str(n): "x" for n in range(250_000)}}, "logit_bias"),
        (
            "/v1/completions",
            PLAIN | {"structured_outputs": {str(n): 1 for n in range(250_000)}},
            "structured_outputs",
        ),
        ("/v1/chat/completions", {"messages": [1] * 1_000_000}, "messages"),
    ],
    ids=["ids", "bias", "outputs", "messages"],
)
def test_a_long_body_is_checked_beside_the_event_loop_and_only_to_its_first_fault(
    served: Served, monkeypatch: pytest.MonkeyPatch, path: str, body: Any, param: str
) -> None:
    threads = []
    seen = from_validation

    def counted(error: Any) -> Any:
        threads.append(threading.current_thread().name)
        assert error.error_count() == 1
        return seen(error)

    monkeypatch.setattr("slipway.api.body.from_validation", counted)
    answer = served.post(path, body)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"].startswith(param)
    assert [name.partition("_")[0] for name in threads] == ["long-text"]
    assert gc.isenabled()


def typed(schema: Any, kind: str) -> Iterator[dict[str, Any]]:
    """Every part of a schema of pydantic's core that is of this kind."""
    if isinstance(schema, dict):
        if schema.get("type") == kind:
            yield schema
        schema = list(schema.values())
    if isinstance(schema, list | tuple):
        for part in schema:
            yield from typed(part, kind)


def test_every_list_of_every_body_has_a_length_and_fails_at_its_first_member_at_fault(served: Served) -> None:
    bodies = {route.body for route in served.http.config.app.routes if route.body is not None}
    lists = [one for body in bodies for one in typed(body.__pydantic_core_schema__, "list")]
    assert len(lists) > 10
    for one in lists:
        assert one["fail_fast"]
        assert one["max_length"]


@pytest.mark.parametrize("arguments", ['{"a": "\\ud800"}', "[" * 100_000])
def test_no_arguments_of_a_call_are_refused(start: Callable[..., Served], arguments: str) -> None:
    served = start(max_model_len=200_000)  # the template has no place for calls, so they are text
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": arguments}}
    body = CHAT | {"messages": [{"role": "assistant", "tool_calls": [call]}]}
    assert served.post("/v1/chat/completions", body).status_code == 200


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/nothing", 404),
        ("POST", "/v1/nothing", 404),
        ("GET", "/v1/completions", 405),
        ("DELETE", "/v1/models", 405),
        ("GET", "/v1/models/other", 404),
        ("GET", "/%ff%fe", 404),
        ("POST", "/reset_prefix_cache", 404),
    ],
)
def test_a_path_that_is_not_there_answers_in_the_same_shape(
    served: Served, method: str, path: str, status: int
) -> None:
    answer = httpx.request(method, served.url + path)
    assert answer.status_code == status
    assert answer.json()["error"]["message"]


def test_a_bad_tokenize_is_refused(served: Served) -> None:
    refused(served.post("/tokenize", {}), 400, "prompt", "neither")
    refused(served.post("/tokenize", CHAT | PLAIN), 400, "prompt", "both")
    both = CHAT | {"continue_final_message": True, "add_generation_prompt": True}
    refused(served.post("/tokenize", both), 400, "add_generation_prompt", "both true")
    refused(served.post("/detokenize", {"tokens": [-1]}), 400, "tokens[0]", "-1")
    refused(served.post("/detokenize", {"tokens": [512]}), 400, "tokens", "512")
    refused(served.post("/detokenize", {}), 400, "tokens", "missing")


def test_the_server_serves_on(served: Served) -> None:
    """Last in this file: after all of the above nothing is open and the engine saw nothing bad."""
    assert served.post("/v1/chat/completions", CHAT).status_code == 200
    served.engine.wait(lambda: served.front.admission.num_open == 0)
    assert served.get("/health").status_code == 200


def test_fields_are_renamed_between_apostrophes_and_not_within_quotes() -> None:
    error = ApiError("The model's stop is 'stop', not the client's stop.", param="stop[0]")
    told = renamed(error, {"stop": "stop_sequences"})
    assert told.detail == "The model's stop_sequences is 'stop', not the client's stop_sequences."
    assert told.param == "stop_sequences[0]"
