"""`/v1/chat/completions` through the openai client."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from serving import MODEL, SENTENCE, Served

HELLO: list[Any] = [{"role": "user", "content": "Hello"}]
PROMPT = "<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n"


def prompt_of(served: Served, number: int = -1) -> str:
    ids = served.engine.requests[number].prompt_token_ids
    return served.tokenizer.decode(ids, skip_special_tokens=False)


def test_a_chat_is_rendered_and_answered(served: Served) -> None:
    answer = served.openai().chat.completions.create(model=MODEL, messages=HELLO)
    assert prompt_of(served) == PROMPT
    assert answer.id.startswith("chatcmpl-")
    assert answer.choices[0].message.role == "assistant"
    assert answer.choices[0].message.content == SENTENCE
    assert answer.choices[0].finish_reason == "stop"
    assert answer.system_fingerprint


def test_all_that_the_context_leaves_is_the_default_length(served: Served) -> None:
    served.openai().chat.completions.create(model=MODEL, messages=HELLO)
    request = served.engine.requests[0]
    assert request.params.max_tokens == 512 - len(request.prompt_token_ids)


def test_the_newer_name_of_max_tokens_wins(served: Served) -> None:
    served.openai().chat.completions.create(
        model=MODEL, messages=HELLO, max_tokens=9, max_completion_tokens=3
    )
    assert served.engine.requests[0].params.max_tokens == 3


def test_a_stream_begins_with_the_role_and_ends_with_the_reason(served: Served) -> None:
    chunks = list(served.openai().chat.completions.create(model=MODEL, messages=HELLO, stream=True))
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == SENTENCE
    assert [chunk.choices[0].finish_reason for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)
    assert chunks[-1].choices[0].finish_reason == "stop"


def test_the_chunk_of_the_role_counts_no_token(served: Served) -> None:
    options: Any = {"include_usage": True, "continuous_usage_stats": True}
    chunks = served.openai().chat.completions.create(
        model=MODEL, messages=HELLO, max_tokens=4, stream=True, stream_options=options
    )
    counts = [chunk.usage.completion_tokens for chunk in chunks if chunk.usage]
    assert (counts[0], counts[-1]) == (0, 4)
    assert counts == sorted(counts)


def test_n_streams_come_through_one(served: Served) -> None:
    texts = ["", "", ""]
    for chunk in served.openai().chat.completions.create(model=MODEL, messages=HELLO, stream=True, n=3):
        choice = chunk.choices[0]
        texts[choice.index] += choice.delta.content or ""
    assert texts == [SENTENCE] * 3


def test_logprobs_name_the_tokens_and_their_bytes(served: Served) -> None:
    answer = served.openai().chat.completions.create(
        model=MODEL, messages=HELLO, max_tokens=2, logprobs=True, top_logprobs=2
    )
    told = answer.choices[0].logprobs
    assert told is not None
    content = told.content or []
    first = served.tokenizer.encode(SENTENCE)[0]
    assert content[0].token == served.tokenizer.token_text(first)
    assert bytes(content[0].bytes or ()) == served.tokenizer.token_bytes(first)
    assert [one.logprob for one in content[0].top_logprobs] == [-0.5, -1.5]


def test_prompt_logprobs_are_told_beside_the_choices(served: Served) -> None:
    answer = served.post("/v1/chat/completions", {"messages": HELLO, "max_tokens": 1, "prompt_logprobs": 1})
    told = answer.json()["prompt_logprobs"]
    ids = served.engine.requests[0].prompt_token_ids
    assert told[0] is None
    assert len(told) == len(ids)
    assert told[1][str(ids[1])]["rank"] == 2
    assert told[1]["9"]["logprob"] == -0.25


def test_content_may_come_in_parts(served: Served) -> None:
    parts = [{"type": "text", "text": "Hel"}, {"type": "text", "text": "lo"}]
    served.openai().chat.completions.create(
        model=MODEL, messages=[{"role": "user", "content": parts}], max_tokens=1
    )
    assert "Hel\nlo" in prompt_of(served)


@pytest.mark.parametrize("role", ["system", "developer", "user", "assistant", "tool"])
def test_every_role_is_known(served: Served, role: str) -> None:
    body = {"messages": [{"role": role, "content": "x", "tool_call_id": "1"}], "max_tokens": 1}
    assert served.post("/v1/chat/completions", body).status_code == 200
    shown = "system" if role == "developer" else role  # which the template does not name
    assert prompt_of(served).startswith(f"<|im_start|>{shown}\nx")


def test_the_last_message_can_be_continued_and_echoed(served: Served) -> None:
    messages = [*HELLO, {"role": "assistant", "content": "Paris, I "}]
    body = {"messages": messages, "continue_final_message": True, "echo": True, "max_tokens": 1}
    answer = served.post("/v1/chat/completions", body).json()
    assert prompt_of(served).endswith("assistant\nParis, I ")
    assert answer["choices"][0]["message"]["role"] == "assistant"
    assert answer["choices"][0]["message"]["content"].startswith("Paris, I ")


def test_without_a_generation_prompt_the_answer_has_the_last_role(served: Served) -> None:
    body = {"messages": HELLO, "add_generation_prompt": False, "max_tokens": 1}
    answer = served.post("/v1/chat/completions", body).json()
    assert prompt_of(served) == PROMPT.removesuffix("<|im_start|>assistant\n")
    assert answer["choices"][0]["message"]["role"] == "user"


TEMPLATE = (
    "{{ reasoning_effort }}|{{ mood }}|{% for tool in tools or [] %}{{ tool.function.name }},{% endfor %}"
    "|{% for d in documents or [] %}{{ d.title }}{% endfor %}"
)


def test_tools_documents_and_settings_reach_the_template(start: Callable[..., Served]) -> None:
    served = start("--chat-template", TEMPLATE, "--reasoning-effort", "low")
    tools = [{"type": "function", "function": {"name": "weather"}}]
    body: dict[str, Any] = {"messages": HELLO, "max_tokens": 1, "tools": tools, "tool_choice": "none"}
    assert served.post("/v1/chat/completions", body).status_code == 200
    assert prompt_of(served) == "low||weather,|"
    body |= {
        "chat_template_kwargs": {"mood": "glad"},
        "reasoning_effort": "high",
        "documents": [{"title": "T"}],
    }
    assert served.post("/v1/chat/completions", body).status_code == 200
    assert prompt_of(served) == "high|glad|weather,|T"
    for effort in ("xhigh", "max"):
        body["reasoning_effort"] = effort
        assert served.post("/v1/chat/completions", body).status_code == 200
        assert prompt_of(served) == f"{effort}|glad|weather,|T"


@pytest.mark.parametrize("switch", ["enable_thinking", "thinking", "reasoning", "thinking_budget"])
def test_no_effort_turns_thinking_off_whatever_the_template_calls_it(
    start: Callable[..., Served], switch: str
) -> None:
    served = start("--chat-template", f"{{{{ {switch} | default('unset') }}}} {{{{ messages[0].content }}}}")
    off = "0" if switch == "thinking_budget" else "False"
    for path, fields in (
        ("/v1/chat/completions", {"reasoning_effort": "none", "messages": HELLO}),
        ("/v1/responses", {"reasoning": {"effort": "none"}, "input": "Hello"}),
        ("/v1/messages", {"thinking": {"type": "disabled"}, "messages": HELLO, "max_tokens": 1}),
    ):
        assert served.post(path, fields).status_code == 200
        assert prompt_of(served) == f"{off} Hello"
    tokens = served.post("/tokenize", {"messages": HELLO, "reasoning_effort": "none"}).json()["tokens"]
    assert served.tokenizer.decode(tokens) == f"{off} Hello"
    for own, shown in (
        ({"reasoning_effort": "none", "chat_template_kwargs": {switch: 7}}, "7 Hello"),
        ({"reasoning_effort": "low"}, "unset Hello"),
    ):
        assert served.post("/v1/chat/completions", {"messages": HELLO, **own}).status_code == 200
        assert prompt_of(served) == shown


def test_a_template_that_refuses_is_the_clients_error(start: Callable[..., Served]) -> None:
    served = start("--chat-template", "{{ raise_exception('Roles must alternate') }}")
    answer = served.post("/v1/chat/completions", {"messages": HELLO})
    assert answer.status_code == 400
    assert "Roles must alternate" in answer.json()["error"]["message"]


def test_the_response_role_is_the_servers(start: Callable[..., Served]) -> None:
    served = start("--response-role", "bot")
    body = {"messages": HELLO, "max_tokens": 1}
    assert served.post("/v1/chat/completions", body).json()["choices"][0]["message"]["role"] == "bot"


def test_tokenize_shows_what_a_chat_becomes(served: Served) -> None:
    tokens = served.post("/tokenize", {"messages": HELLO, "return_token_strs": True}).json()
    assert tokens["count"] == len(tokens["tokens"]) == len(tokens["token_strs"])
    assert tokens["max_model_len"] == 512
    assert served.post("/detokenize", {"tokens": tokens["tokens"]}).json() == {"prompt": PROMPT}


def test_tokenize_tells_the_template_what_a_chat_does(start: Callable[..., Served]) -> None:
    served = start("--chat-template", TEMPLATE, "--reasoning-effort", "low")
    for fields in ({}, {"reasoning_effort": "max", "documents": [{"title": "T"}]}):
        body = {"messages": HELLO, **fields}
        assert served.post("/v1/chat/completions", body | {"max_tokens": 1}).status_code == 200
        tokens = served.post("/tokenize", body).json()["tokens"]
        assert tokens == served.engine.requests[-1].prompt_token_ids


def test_the_servers_generation_settings_apply(start: Callable[..., Served]) -> None:
    config = '{"temperature": 0.25, "max_new_tokens": 3}'
    served = start("--generation-config", "vllm", "--override-generation-config", config)
    answer = served.openai().chat.completions.create(model=MODEL, messages=HELLO)
    params = served.engine.requests[0].params
    assert (params.temperature, params.top_k, params.max_tokens) == (0.25, 0, 3)
    assert params.stop_token_ids == (2,)
    assert answer.choices[0].finish_reason == "length"


def test_without_a_tokenizer_token_ids_go_in_and_out(start: Callable[..., Served]) -> None:
    served = start("--skip-tokenizer-init")
    body = {"prompt": [5, 6], "max_tokens": 3, "logprobs": 1}
    choice = served.post("/v1/completions", body).json()["choices"][0]
    ids = served.tokenizer.encode(SENTENCE)[:3]
    assert choice["token_ids"] == ids
    assert choice["logprobs"]["tokens"] == [f"token_id:{token}" for token in ids]
    refused = served.post("/v1/chat/completions", {"messages": HELLO})
    assert refused.status_code == 400
    assert "--skip-tokenizer-init" in refused.json()["error"]["message"]


def test_token_ids_come_along_where_they_are_asked_for(served: Served) -> None:
    asked: dict[str, Any] = {"messages": [{"role": "user", "content": "Tell me"}], "return_token_ids": True}
    whole = served.post("/v1/chat/completions", asked).json()
    assert whole["prompt_token_ids"] == served.engine.requests[0].prompt_token_ids
    token_ids = whole["choices"][0]["token_ids"]
    assert len(token_ids) == whole["usage"]["completion_tokens"]
    streamed = served.post("/v1/chat/completions", asked | {"stream": True}).text.splitlines()
    chunks = [json.loads(line[6:]) for line in streamed if line.startswith("data: {")]
    assert [chunk.get("prompt_token_ids") for chunk in chunks] == [
        whole["prompt_token_ids"],
        *[None] * (len(chunks) - 1),
    ]
    choices = [chunk["choices"][0] for chunk in chunks]
    assert [token for choice in choices for token in choice.get("token_ids", ())] == token_ids


SHOUTED = "{% for message in messages %}{{ message.content | upper }}!{% endfor %}{{ name }}"


def test_a_request_brings_its_own_template_where_that_is_trusted(start: Callable[..., Served]) -> None:
    served = start("--trust-request-chat-template")
    own = {"chat_template": SHOUTED, "chat_template_kwargs": {"name": "x"}}
    served.openai().chat.completions.create(model=MODEL, messages=HELLO, extra_body=own)
    assert prompt_of(served) == "HELLO!x"
    tokens = served.post("/tokenize", {"messages": HELLO, **own}).json()["tokens"]
    assert tokens == served.engine.requests[-1].prompt_token_ids
    for source, words in (("{% for %}", "not valid Jinja"), ("{% for i in range(10**9) %}x{% endfor %}", "")):
        refused = served.post("/v1/chat/completions", {"messages": HELLO, "chat_template": source})
        assert refused.status_code == 400
        assert words in refused.json()["error"]["message"]


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/tokenize"])
def test_a_template_of_a_request_is_refused_where_it_is_not_trusted(served: Served, path: str) -> None:
    refused = served.post(path, {"messages": HELLO, "chat_template": SHOUTED})
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == "chat_template"
    assert "--trust-request-chat-template" in refused.json()["error"]["message"]


def test_the_tokenizer_is_shown_where_that_is_asked_for(start: Callable[..., Served], served: Served) -> None:
    assert served.get("/tokenizer_info").status_code == 404
    shown = start("--enable-tokenizer-info-endpoint").get("/tokenizer_info").json()
    assert shown["tokenizer_class"] == "PreTrainedTokenizerFast"
    assert shown["eos_token"] == "<|im_end|>"
    assert "<|im_start|>" in shown["chat_template"]


def test_an_invocation_is_a_chat_or_a_completion(served: Served) -> None:
    chat = served.post("/invocations", {"messages": HELLO}).json()
    assert (chat["object"], chat["choices"][0]["message"]["content"]) == ("chat.completion", SENTENCE)
    plain = served.post("/invocations", {"prompt": "Hello", "max_tokens": 200, "stream": True}).text
    assert plain.startswith('data: {"id":"cmpl-')
    embeds = served.post("/invocations", {"prompt_embeds": "AAAA"})
    assert "it needs --enable-prompt-embeds" in embeds.json()["error"]["message"]
    neither = served.post("/invocations", {"input": "Hello"})
    assert neither.status_code == 400
    assert "none of messages, prompt, prompt_embeds:" in neither.json()["error"]["message"]
