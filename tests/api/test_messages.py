"""`/v1/messages` through the `anthropic` package, from what the engine writes to what clients get."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import anthropic
import httpx
import pytest
from anthropic.types import Message, RawMessageStreamEvent
from pydantic import BaseModel, TypeAdapter
from serving import MODEL, SENTENCE, Served, prompt, says

from live_server import LiveServer, live_server
from slipway.engine.messages import ReasoningBounds
from slipway.text.parse.reasoning import FORMATS, ReasoningFormat

WEATHER: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"enum": ["Rome", "Bern"]}},
    "required": ["city"],
    "additionalProperties": False,
}
TOOLS: Any = [
    {"name": "weather", "input_schema": WEATHER, "description": "Now"},
    {"name": "now", "input_schema": {"type": "object"}, "cache_control": {"type": "ephemeral"}},
]
AUTO = ("--enable-auto-tool-choice", "--tool-call-parser", "hermes")
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Rome"}}\n</tool_call>'
EVENT = TypeAdapter[Any](RawMessageStreamEvent)
SAY: Any = [{"role": "user", "content": "Tell me"}]
BODY: dict[str, Any] = {"messages": SAY, "max_tokens": 200}


def client(served: Served | LiveServer, **fields: Any) -> anthropic.Anthropic:
    return anthropic.Anthropic(**{"base_url": served.url, "api_key": "none", "max_retries": 0} | fields)


def raw_events(served: Served, **fields: Any) -> list[dict[str, Any]]:
    """The events of a stream, each as strict as the package's types."""
    answer = served.post("/v1/messages", BODY | {"stream": True} | fields)
    assert answer.status_code == 200, answer.text
    *blocks, end = answer.text.split("\n\n")
    assert end == ""
    events = []
    for block in blocks:
        name, data = block.split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        if event["type"] not in ("ping", "error"):
            EVENT.validate_python(event)
        events.append(event)
    return events


def both(served: Served, **fields: Any) -> Message:
    """An answer, which is the same whole and streamed but for its ids."""
    asked = {"model": MODEL} | BODY | fields
    whole = client(served).messages.create(**asked)
    Message.model_validate(whole.model_dump())
    with client(served).messages.stream(**asked) as stream:
        streamed = stream.get_final_message()
    assert without_ids(streamed) == without_ids(whole)
    return whole


def without_ids(message: Any) -> dict[str, Any]:
    shown: dict[str, Any] = message.model_dump(exclude={"content": {"__all__": {"parsed_output"}}})
    for thing in (shown, *shown["content"]):
        thing.pop("id", None)
    return shown


def test_a_text_is_answered(served: Served) -> None:
    answer = both(served, system="Be brief.", metadata={"user_id": "me"}, service_tier="auto")
    (block,) = answer.content
    assert block.type == "text"
    assert (block.text, answer.stop_reason, answer.stop_sequence) == (SENTENCE, "end_turn", None)
    assert answer.id.startswith("msg_")
    assert (answer.model, answer.role) == (MODEL, "assistant")
    request = served.engine.requests[-1]
    assert answer.usage.cache_read_input_tokens == 2
    assert answer.usage.input_tokens == len(request.prompt_token_ids) - 2
    assert answer.usage.output_tokens == len(served.tokenizer.encode(SENTENCE)) + 1
    assert prompt(served).index("Be brief.") < prompt(served).index("Tell me")


def test_a_stream_tells_each_step(served: Served) -> None:
    events = raw_events(served)
    kinds = [event["type"] for event in events]
    assert kinds[:3] == ["message_start", "ping", "content_block_start"]
    assert kinds[-3:] == ["content_block_stop", "message_delta", "message_stop"]
    assert set(kinds[3:-3]) == {"content_block_delta"}
    assert "".join(event["delta"]["text"] for event in events[3:-3]) == SENTENCE
    start, end = events[0]["message"], events[-2]
    assert (start["content"], start["stop_reason"]) == ([], None)
    assert start["usage"]["cache_read_input_tokens"] == 0
    assert end["usage"]["cache_read_input_tokens"] == 2
    assert end["delta"] == {"stop_reason": "end_turn", "stop_sequence": None}
    assert end["usage"]["input_tokens"] == start["usage"]["input_tokens"] - 2


async def test_the_packages_async_client_works_too(served: Served) -> None:
    async with anthropic.AsyncAnthropic(base_url=served.url, api_key="none", max_retries=0) as asking:
        answer = await asking.messages.create(model=MODEL, **BODY)
        assert answer.content[0].text == SENTENCE  # type: ignore[union-attr]
        async with asking.messages.stream(model=MODEL, **BODY) as stream:
            assert "".join([text async for text in stream.text_stream]) == SENTENCE
        counted = await asking.messages.count_tokens(model=MODEL, messages=SAY)
        assert counted.input_tokens == len(served.engine.requests[-1].prompt_token_ids)


def test_it_says_why_it_stopped(served: Served) -> None:
    assert both(served, max_tokens=3).stop_reason == "max_tokens"
    stopped = both(served, stop_sequences=["France", "never"])
    assert (stopped.stop_reason, stopped.stop_sequence) == ("stop_sequence", "France")
    assert stopped.content[0].text == SENTENCE[: SENTENCE.index("France")]  # type: ignore[union-attr]


def test_an_answer_without_a_word_has_a_text(served: Served) -> None:
    served.engine.answer = lambda request: [2]
    assert both(served).content[0].text == ""  # type: ignore[union-attr]


def test_tokens_are_counted_as_the_prompt_has_them(served: Served) -> None:
    fields: Any = {"messages": SAY, "tools": TOOLS, "system": [{"type": "text", "text": "Be brief."}]}
    counted = client(served).messages.count_tokens(model=MODEL, **fields)
    both(served, **fields, tool_choice={"type": "none"})
    assert counted.input_tokens == len(served.engine.requests[-1].prompt_token_ids)


def test_calls_are_blocks_and_their_results_come_back(start: Callable[..., Served]) -> None:
    served = start(*AUTO)
    says(served, "Let me see.\n", CALL, '<tool_call>{"name": "now", "arguments": {}}</tool_call>')
    answer = both(served, tools=TOOLS)
    _, weather, now = answer.content
    assert weather.type == now.type == "tool_use"
    assert (weather.name, weather.input, now.name, now.input) == ("weather", {"city": "Rome"}, "now", {})
    assert weather.id != now.id
    assert answer.stop_reason == "tool_use"
    says(served, "Sunny.")
    results: Any = [
        {"type": "tool_result", "tool_use_id": weather.id, "content": "It is 20 degrees."},
        {"type": "tool_result", "tool_use_id": now.id, "is_error": True,
         "content": [{"type": "text", "text": "no clock"}]},
        {"type": "text", "text": "And?"},
    ]  # fmt: skip
    turns = [*SAY, {"role": "assistant", "content": answer.content}, {"role": "user", "content": results}]
    assert both(served, messages=turns, tools=TOOLS).content[0].text == "Sunny."  # type: ignore[union-attr]
    words = ("Tell me", "Let me see.", "20 degrees", "Error: no clock", "And?")
    order = [prompt(served).index(one) for one in words]
    assert order == sorted(order)


def test_the_input_of_a_call_is_streamed_as_it_arrives(start: Callable[..., Served]) -> None:
    served = start(*AUTO)
    says(served, CALL)
    with client(served).messages.stream(model=MODEL, **BODY, tools=TOOLS) as stream:
        parts = [event.partial_json for event in stream if event.type == "input_json"]
    assert "".join(parts) == '{"city": "Rome"}'
    assert len(parts) > 1


def test_a_call_that_is_cut_is_text_where_the_answer_is_whole(start: Callable[..., Served]) -> None:
    served = start(*AUTO)
    says(served, "So: ", CALL[:60])
    whole = client(served).messages.create(model=MODEL, **BODY, tools=TOOLS)
    assert [block.text for block in whole.content] == ["So: " + CALL[:60]]  # type: ignore[union-attr]
    said = '{"city": "Bern"}'
    says(served, said)
    cut = client(served).messages.create(
        model=MODEL, messages=SAY, max_tokens=3, tools=TOOLS, tool_choice={"type": "tool", "name": "weather"}
    )
    (block,) = cut.content
    assert (block.type, cut.stop_reason) == ("text", "max_tokens")
    assert said.startswith(block.text)


def test_a_stream_that_breaks_off_within_a_call_asks_for_none(start: Callable[..., Served]) -> None:
    served = start(*AUTO)
    says(served, CALL[:60])
    assert client(served).messages.create(model=MODEL, **BODY, tools=TOOLS).stop_reason == "end_turn"
    *_, end, _ = raw_events(served, tools=TOOLS)
    assert end["delta"]["stop_reason"] == "end_turn"


@pytest.mark.parametrize("number", ["18446744073709551616", "1e999", '"\\ud83d"'])
def test_arguments_are_handed_on_as_the_model_wrote_them(start: Callable[..., Served], number: str) -> None:
    served = start(*AUTO)
    says(served, '<tool_call>\n{"name": "now", "arguments": {"id": ' + number + "}}\n</tool_call>")
    answer = served.post("/v1/messages", {"model": MODEL, **BODY, "tools": TOOLS})
    assert f'"input":{{"id": {number}}}' in answer.text
    assert answer.json()["stop_reason"] == "tool_use"
    assert [event["type"] for event in raw_events(served, tools=TOOLS)][-1] == "message_stop"


def test_arguments_too_deep_to_be_read_are_text(served: Served) -> None:
    says(served, '{"a": ' + "[" * 2000 + "]" * 2000 + "}")
    choice = {"type": "tool", "name": "now"}
    answer = served.post("/v1/messages", BODY | {"tools": TOOLS, "tool_choice": choice, "max_tokens": 400})
    assert (answer.status_code, answer.json()["content"][0]["type"]) == (200, "text")


def test_turns_of_one_side_are_one(served: Served) -> None:
    says(served, "Yes.")
    both(served, messages=[*SAY, {"role": "user", "content": "and more"}])
    assert prompt(served).count("<|im_start|>user") == 1
    assert prompt(served).index("Tell me") < prompt(served).index("and more")
    asked = [{"role": "assistant", "content": text} for text in ("One.", "Two.")]
    both(served, messages=[*SAY, *asked, *SAY])
    assert prompt(served).count("<|im_start|>assistant") == 2  # with the one to come


@pytest.mark.parametrize("choice", [{"type": "any"}, {"type": "tool", "name": "weather"}])
def test_calls_can_be_demanded(served: Served, choice: dict[str, Any]) -> None:
    arguments = '{"city": "Bern"}'
    says(served, arguments if "name" in choice else f'[{{"name": "weather", "parameters": {arguments}}}]')
    answer = both(served, tools=TOOLS, tool_choice=choice | {"disable_parallel_tool_use": True})
    (call,) = answer.content
    assert call.type == "tool_use"
    assert (call.name, call.input, answer.stop_reason) == ("weather", {"city": "Bern"}, "tool_use")
    assert "Bern" in served.engine.requests[-1].grammar


def test_thinking_is_a_block_unless_it_is_turned_off(start: Callable[..., Served]) -> None:
    served = start("--reasoning-parser", "deepseek_r1")
    says(served, "I think", "</think>", "So it is.")
    answer = both(served)
    thinking, text = answer.content
    assert (thinking.type, text.type) == ("thinking", "text")
    assert (thinking.thinking, text.text) == ("I think", "So it is.")
    assert thinking.signature
    details = answer.usage.output_tokens_details
    assert details is not None
    assert details.thinking_tokens == len(served.tokenizer.encode("I think", add_special_tokens=False))
    deltas = [e["delta"]["type"] for e in raw_events(served) if e["type"] == "content_block_delta"]
    assert list(dict.fromkeys(deltas)) == ["thinking_delta", "signature_delta", "text_delta"]
    assert [block.type for block in both(served, thinking={"type": "disabled"}).content] == ["text"]
    thinking, text = both(served, thinking={"type": "adaptive", "display": "omitted"}).content
    assert (thinking.thinking, bool(thinking.signature), text.text) == ("", True, "So it is.")
    # What it thought goes back to it.
    both(served, messages=[*SAY, {"role": "assistant", "content": answer.content}, *SAY])


def test_a_budget_is_kept_where_there_is_thinking_to_bound(
    start: Callable[..., Served], monkeypatch: pytest.MonkeyPatch
) -> None:
    thinking: Any = {"type": "enabled", "budget_tokens": 7}
    both(start(), thinking=thinking)  # no thinking is told apart, and none is over budget
    begin, end = "<|endoftext|>", "<|im_start|>"
    monkeypatch.setitem(FORMATS, "qwen3", ReasoningFormat((begin,), (end,)))
    served = start("--reasoning-parser", "qwen3")
    ids = [served.tokenizer.token_id(text) for text in (begin, end)]
    both(served, thinking=thinking)
    assert served.engine.requests[-1].reasoning == ReasoningBounds(*ids, False, 7)  # type: ignore[arg-type]
    with pytest.raises(anthropic.BadRequestError, match=r"thinking.budget_tokens is 7"):
        both(start("--reasoning-parser", "deepseek_r1"), thinking=thinking)


def test_effort_and_thinking_reach_the_template(start: Callable[..., Served]) -> None:
    thoughts = "{% for m in messages %}{{ m.reasoning_content }}{% endfor %}"
    template = thoughts + "|{{ reasoning_effort }}|{{ enable_thinking }}"
    served = start("--chat-template", template)
    both(served, thinking={"type": "disabled"})
    assert prompt(served) == "|none|False"
    thought: Any = {
        "role": "assistant",
        "content": [{"type": "thinking", "thinking": "so", "signature": "x"}],
    }
    both(served, output_config={"effort": "max"}, messages=[*SAY, thought, *SAY])
    assert prompt(served) == "so|max|"


class City(BaseModel):
    name: str


def test_a_form_is_held_to_and_parsed(served: Served) -> None:
    says(served, '{"name": "Paris"}')
    parsed = client(served).messages.parse(model=MODEL, **BODY, output_format=City)
    assert parsed.parsed_output == City(name="Paris")
    assert '"name"' in served.engine.requests[-1].grammar


def test_a_message_starts_before_its_first_token(served: Served) -> None:
    served.engine.gate.clear()
    try:
        with httpx.stream("POST", f"{served.url}/v1/messages", json=BODY | {"stream": True}) as answer:
            lines = answer.iter_lines()
            assert next(lines) == "event: message_start"
            served.engine.gate.set()
            assert "event: message_stop" in lines
    finally:
        served.engine.gate.set()


@pytest.mark.parametrize("content", ["", " ", [], [{"type": "text", "text": ""}]])
def test_an_empty_last_message_of_the_assistant_is_no_beginning(served: Served, content: Any) -> None:
    both(served)
    asked = prompt(served)
    both(served, messages=[*SAY, {"role": "assistant", "content": content}])
    assert prompt(served) == asked


def test_a_prompt_that_is_too_long_is_refused_in_the_words_that_agents_know(served: Served) -> None:
    said = r"prompt is too long: \d+ tokens > 512 maximum"
    with pytest.raises(anthropic.BadRequestError, match=said) as refused:
        both(served, messages=[{"role": "user", "content": "Tell me " * 1000}])
    assert refused.value.body["error"]["type"] == "invalid_request_error"  # type: ignore[index]
    said = r"input length and `max_tokens` exceed context limit: \d+ \+ 512 > 512"
    with pytest.raises(anthropic.BadRequestError, match=said):
        both(served, max_tokens=512)


BILLING = "x-anthropic-billing-header: cc_version=2.1.3.a1b; cc_entrypoint=cli; cch={};"


@pytest.mark.parametrize(
    "system",
    [
        lambda header: [{"type": "text", "text": header}, {"type": "text", "text": "Be brief."}],
        lambda header: f"{header}\n\nBe brief.",
        lambda header: [
            {"type": "text", "text": f"{header}\nBe brief.", "cache_control": {"type": "ephemeral"}}
        ],
    ],
)
def test_the_line_that_changes_with_each_request_of_claude_code_is_left_out(
    served: Served, system: Callable[[str], Any]
) -> None:
    both(served, system="Be brief.")
    asked = prompt(served)
    for number in range(2):
        both(served, system=system(BILLING.format(number)))
        assert prompt(served) == asked


def test_an_answer_that_the_client_has_begun_goes_on(served: Served) -> None:
    both(served, messages=[*SAY, {"role": "assistant", "content": "The capital is"}])
    assert prompt(served).endswith("The capital is")


def test_what_goes_on_with_an_answer_is_no_thinking(start: Callable[..., Served]) -> None:
    served = start("--reasoning-parser", "deepseek_r1")
    says(served, " Paris.")
    begun = [*SAY, {"role": "assistant", "content": "The capital is"}]
    assert [(block.type, block.text) for block in both(served, messages=begun).content] == [
        ("text", " Paris.")
    ]  # type: ignore[union-attr]
    says(served, " Paris.</think>So it is.")
    begun = [*SAY, {"role": "assistant", "content": "<think>The capital is"}]
    assert [block.type for block in both(served, messages=begun).content] == ["thinking", "text"]


def test_fields_reach_the_engine(served: Served) -> None:
    both(served, extra_body={"temperature": 0.5, "top_p": 0.25, "top_k": 7, "seed": 5})
    params = served.engine.requests[-1].params
    assert (params.temperature, params.top_p, params.top_k, params.seed) == (0.5, 0.25, 7, 5)


BAD = [
    ({"max_tokens": None}, "max_tokens"),
    ({"max_tokens": 0}, "max_tokens must be at least 1"),
    ({"max_tokens": 5000}, "exceed context limit: 18 + 5000 > 512"),
    ({"messages": []}, "messages"),
    ({"messages": [{"role": "user"}]}, "messages[0].content is missing"),
    ({"messages": [{"role": "king", "content": ""}]}, "king"),
    ({"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]}, '"image"'),
    ({"messages": [{"role": "user", "content": [{"type": "txt", "text": "a"}]}]}, '"txt"'),
    ({"messages": [{"role": "user", "content": 5}]}, "content is 5 but should be a text or a list"),
    ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "text is missing; text needs it"),
    ({"messages": [{"role": "user", "content": [{"type": "thinking", "thinking": "x"}]}]},
     "a message of the user may have text, tool_result"),
    ({"messages": [{"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "f"}]}]},
     "input is missing"),
    ({"system": 5}, "system"),
    ({"tools": TOOLS}, "with --tool-call-parser"),
    ({"tool_choice": {"type": "any"}}, "the request has no function"),
    ({"tool_choice": {"type": "tool"}, "tools": TOOLS}, "name is missing; tool needs it"),
    ({"tool_choice": {"type": "tool", "name": "f"}, "tools": TOOLS}, "'f'"),
    ({"thinking": {"type": "enabled"}}, "budget_tokens is missing"),
    ({"thinking": {"type": "between_tools"}}, "between_tools"),
    ({"stop_sequences": [""]}, "stop_sequences[0]"),
    ({"stop": ["a"]}, "use stop_sequences"),
    ({"output_config": {"format": {"type": "json_schema", "schema": {"not": {}}}}},
     "output_config.format.schema cannot be followed"),
    ({"mcp_servers": [{}]}, "not supported yet"),
    ({"speed": "fast"}, "not supported yet"),
    ({"n": 2}, "not supported yet"),
    ({"temperature": -1}, "temperature must be at least 0"),
]  # fmt: skip


@pytest.mark.parametrize(("fields", "words"), BAD, ids=lambda case: str(case)[:60])
def test_what_is_wrong_is_said_in_anthropics_form(served: Served, fields: dict[str, Any], words: str) -> None:
    answer = served.post("/v1/messages", BODY | fields, headers={"X-Request-Id": "mine"})
    assert answer.status_code == 400, answer.text
    told = answer.json()
    assert set(told) == {"type", "error", "request_id"}
    assert (told["type"], told["error"]["type"]) == ("error", "invalid_request_error")
    assert words in told["error"]["message"]
    assert told["request_id"] == answer.headers["request-id"] == "req_mine"


def test_errors_of_every_kind_have_that_form(served: Served) -> None:
    asking = client(served)
    with pytest.raises(anthropic.NotFoundError, match="The model `claude` does not exist") as missing:
        asking.messages.create(model="claude", **BODY)
    assert missing.value.request_id
    assert missing.value.body["error"]["type"] == "not_found_error"  # type: ignore[index]
    with pytest.raises(anthropic.NotFoundError):
        asking.messages.count_tokens(model="claude", messages=SAY)
    wrong = served.get("/v1/messages")
    assert (wrong.status_code, wrong.json()["type"]) == (405, "error")
    served.engine.failing = "out of luck"
    with pytest.raises(anthropic.InternalServerError, match="out of luck"):
        asking.messages.create(model=MODEL, **BODY)
    *_, error = raw_events(served)
    assert error["error"]["type"] == "api_error"
    with (
        pytest.raises(anthropic.APIStatusError, match="out of luck"),
        asking.messages.stream(model=MODEL, **BODY) as stream,
    ):
        stream.until_done()


def test_over_the_limit_and_while_loading_too(start: Callable[..., Served]) -> None:
    with pytest.raises(anthropic.ServiceUnavailableError, match="still loading") as loading:
        client(start(loaded=False)).messages.create(model=MODEL, **BODY)
    assert loading.value.body["error"]["type"] == "overloaded_error"  # type: ignore[index]
    assert loading.value.response.headers["retry-after"]
    served = start("--max-concurrency", "1")
    served.engine.held = 1
    served.engine.gate.clear()
    with client(served).messages.create(model=MODEL, **BODY, stream=True) as stream:
        next(iter(stream))
        with pytest.raises(anthropic.RateLimitError):
            client(served).messages.create(model=MODEL, **BODY)
        served.engine.gate.set()


def test_the_key_may_come_as_anthropics_clients_send_it(start: Callable[..., Served]) -> None:
    served = start("--api-key", "s3cret")
    assert client(served, api_key="s3cret").messages.create(model=MODEL, **BODY).content
    bearer = client(served, api_key=None, auth_token="s3cret")
    assert bearer.messages.count_tokens(model=MODEL, messages=SAY).input_tokens
    with pytest.raises(anthropic.AuthenticationError) as refused:
        client(served, api_key="wrong").messages.create(model=MODEL, **BODY)
    assert refused.value.body["error"]["type"] == "authentication_error"  # type: ignore[index]
    # On these paths only.
    elsewhere = served.get("/v1/models", headers={"x-api-key": "s3cret"})
    assert elsewhere.status_code == 401


@pytest.fixture(scope="module")
def live(demo_model: Path) -> Iterator[LiveServer]:
    with live_server(demo_model, "--max-model-len", "1024", "--disable-log-requests") as server:
        yield server


@pytest.mark.slow
def test_a_session_with_the_demo_model(live: LiveServer) -> None:
    asking = client(live)
    ask: Any = {"model": "", "extra_body": {"temperature": 0}}
    question: Any = [{"role": "user", "content": "What is the capital of France?"}]
    first = asking.messages.create(messages=question, max_tokens=40, **ask)
    assert "Paris" in first.content[0].text  # type: ignore[union-attr]
    with asking.messages.stream(messages=question, max_tokens=40, **ask) as stream:
        assert "".join(stream.text_stream) == first.content[0].text  # type: ignore[union-attr]
        usage = stream.get_final_message().usage
    counted = asking.messages.count_tokens(model="", messages=question).input_tokens
    assert usage.input_tokens + (usage.cache_read_input_tokens or 0) == counted
    begun = [*question, {"role": "assistant", "content": "It is Par"}]
    assert asking.messages.create(messages=begun, max_tokens=5, **ask).content[0].text.startswith("is")  # type: ignore[union-attr]
    called = asking.messages.create(
        messages=question, max_tokens=100, tools=TOOLS[:1],
        tool_choice={"type": "any", "disable_parallel_tool_use": True}, **ask
    )  # fmt: skip
    (call,) = called.content
    assert call.type == "tool_use"
    assert call.input["city"] in ("Rome", "Bern")
    result: Any = [{"type": "tool_result", "tool_use_id": call.id, "content": "20 degrees"}]
    turns: Any = [
        *question,
        {"role": "assistant", "content": called.content},
        {"role": "user", "content": result},
    ]
    told = asking.messages.create(
        messages=turns, max_tokens=20, tools=TOOLS[:1], tool_choice={"type": "none"}, **ask
    )
    assert told.content[0].type == "text"
