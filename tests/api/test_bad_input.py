"""Whatever a client sends: a 4xx that names the field, and the server serves on."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from serving import Served

CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2}
PLAIN: dict[str, Any] = {"prompt": "Hi", "max_tokens": 2}


def refused(answer: httpx.Response, status: int, param: str | None, words: str) -> None:
    assert answer.status_code == status, answer.text
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["param"] == param, error
    assert words in error["message"], error
    assert error["code"]


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
    ({"stop": 5}, "stop", "list"),
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
    ({"guided_json": {"not": {}}}, "guided_json", 'cannot be followed: Unimplemented keys: ["not"].'),
    ({"guided_json": 5}, "guided_json", "5"),
    ({"guided_json": "{"}, "guided_json", "not valid JSON"),
    ({"guided_regex": "("}, "guided_regex", "unclosed group"),
    ({"guided_choice": []}, "guided_choice", "at least 1"),
    ({"guided_choice": ["a"], "guided_regex": "a"}, "guided_choice", "at most one"),
    ({"guided_grammar": "root ::= b"}, "guided_grammar", "Rule 'b' not found"),
    ({"guided_grammar": 'start: start "a"'}, "guided_grammar", "no text that it allows"),
    ({"guided_decoding_backend": "magic"}, "guided_decoding_backend", "magic"),
    ({"guided_decoding_backend": "xgrammar:fast"}, "guided_decoding_backend", "no-fallback"),
    ({"structural_tag": {"format": {"type": "poem"}}}, "structural_tag", '"poem"'),
    ({"structured_outputs": {"poem": 1}}, "structured_outputs.poem", "extra"),
    (
        {"structured_outputs": {"json": {"oneOf": [{}, {}]}}},
        "structured_outputs.json",
        "more than one branch",
    ),
    ({"response_format": {"type": "poem"}}, "response_format.type", "poem"),
    ({"response_format": {"type": "json_schema"}}, "response_format.json_schema", "the schema itself"),
    ({"response_format": {"type": "structural_tag"}}, "response_format", "a format, or structures"),
    ({"response_format": {}}, "response_format.type", "missing"),
    ({"logits_processors": ["a.b"]}, "logits_processors", "not supported yet"),
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
    ({"prompt_embeds": "AAAA"}, "prompt_embeds", "not supported yet"),
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
    ({"tool_choice": "auto"}, "tool_choice", "tools is empty"),
    ({"tool_choice": "perhaps"}, "tool_choice", "named"),
    ({"tools": [{"type": "function"}]}, "tools[0].function", "missing"),
    ({"reasoning_effort": "extreme"}, "reasoning_effort", "extreme"),
    ({"add_generation_prompt": True, "continue_final_message": True}, "add_generation_prompt", "both"),
    ({"continue_final_message": True, "messages": [{"role": "user"}]}, "messages", "continue"),
    ({"chat_template_kwargs": {"messages": []}}, "messages", "chat_template_kwargs"),
    ({"chat_template_kwargs": 3}, "chat_template_kwargs", "3"),
    ({"functions": [{"name": "f"}]}, "functions", "not supported yet"),
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
        (None, "--enable-auto-tool-choice"),
        ("auto", "--enable-auto-tool-choice"),
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
    (b'{"prompt": "\xff"}', "not valid JSON"),
    (b'{"prompt": "a", "temperature": NaN}', "not valid JSON"),
    (b'{"prompt": "a", "temperature": Infinity}', "not valid JSON"),
    (b'{"prompt": "a", "temperature": 1e999}', "not valid JSON"),
    (b'{"prompt": "\\ud800"}', "not valid JSON"),
    (b'{"prompt": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "not valid JSON"),
    (b'{"prompt": ' + b"[" * 100 + b"]" * 100 + b"}", "levels deep"),
    (b'{"prompt": [' + b"1," * 1_100_000 + b"1]}", "members"),
    (b"\x00\x01\x02", "not valid JSON"),
]


@pytest.mark.parametrize(("body", "words"), JSON, ids=lambda case: str(case)[:40])
def test_a_body_that_is_no_json_object_is_refused(served: Served, body: bytes, words: str) -> None:
    for path in ("/v1/completions", "/v1/chat/completions", "/tokenize", "/detokenize"):
        refused(served.post(path, content=body), 400, None, words)


def test_a_body_over_the_cap_is_refused_while_it_arrives(served: Served) -> None:
    def endless() -> Any:
        for _ in range(40):
            yield b" " * (1 << 20)

    answer = served.post("/v1/completions", content=endless())
    refused(answer, 413, None, "32 MiB")
    declared = served.post("/v1/completions", content=b" " * (33 << 20))
    refused(declared, 413, None, "32 MiB")


def test_a_surrogate_hidden_in_tool_arguments_is_refused(served: Served) -> None:
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"a": "\\ud800"}'}}
    template = "{{ messages[0].tool_calls[0].function.arguments.a }}"
    messages = [{"role": "assistant", "tool_calls": [call]}]
    body = CHAT | {"messages": messages}
    answer = served.post("/v1/chat/completions", body)
    assert answer.status_code == 200, template
    call["function"]["arguments"] = "[" * 100_000
    refused(served.post("/v1/chat/completions", body), 400, "messages", "arguments")


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
    refused(served.post("/detokenize", {"tokens": [-1]}), 400, "tokens[0]", "-1")
    refused(served.post("/detokenize", {"tokens": [512]}), 400, "tokens", "512")
    refused(served.post("/detokenize", {}), 400, "tokens", "missing")


def test_the_server_serves_on(served: Served) -> None:
    """Last in this file: after all of the above nothing is open and the engine saw nothing bad."""
    assert served.post("/v1/chat/completions", CHAT).status_code == 200
    served.engine.wait(lambda: served.front.admission.num_open == 0)
    assert served.get("/health").status_code == 200
