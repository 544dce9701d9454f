"""`/v1/responses` through the `openai` package, from what the engine writes to what clients get."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from openai.types.responses import (
    Response,
    ResponseFunctionToolCall,
    ResponseReasoningItem,
    ResponseStreamEvent,
)
from pydantic import BaseModel, TypeAdapter
from serving import MODEL, SENTENCE, Served, prompt, says

from live_server import LiveServer, live_server

WEATHER: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"enum": ["Rome", "Bern"]}},
    "required": ["city"],
    "additionalProperties": False,
}
TOOLS: Any = [
    {"type": "function", "name": "weather", "parameters": WEATHER, "strict": True, "description": "Now"},
    {"type": "function", "name": "now", "parameters": None, "strict": None},
]
AUTO = ("--enable-auto-tool-choice", "--tool-call-parser", "hermes")
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Rome"}}\n</tool_call>'
EVENT = TypeAdapter[Any](ResponseStreamEvent)


def raw_events(served: Served, **fields: Any) -> Iterator[dict[str, Any]]:
    """The events of a stream, each as strict as the package's types."""
    answer = served.post("/v1/responses", {"input": "Hi", "stream": True, **fields})
    assert answer.status_code == 200, answer.text
    *blocks, end = answer.text.split("\n\n")
    assert end == ""
    for number, block in enumerate(blocks):
        name, data = block.split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        assert event["sequence_number"] == number
        EVENT.validate_python(event)
        yield event


def both(served: Served, **fields: Any) -> Response:
    """An answer, which is the same whole and streamed but for its ids and times."""
    client = served.openai()
    whole = client.responses.create(model=MODEL, **fields)
    Response.model_validate(whole.model_dump(by_alias=True))
    *_, last = client.responses.create(model=MODEL, stream=True, **fields)
    assert without_ids(last.response) == without_ids(whole)
    return whole


def without_ids(response: Any) -> dict[str, Any]:
    shown: dict[str, Any] = response.model_dump()
    for thing in (shown, *shown["output"]):
        for name in ("id", "call_id", "created_at", "completed_at"):
            thing.pop(name, None)
    return shown


def test_a_text_is_answered(served: Served) -> None:
    answer = both(served, input="Tell me", max_output_tokens=200, instructions="Be brief.", user="me")
    assert (answer.output_text, answer.status) == (SENTENCE, "completed")
    assert answer.id.startswith("resp_")
    assert answer.model == MODEL
    (message,) = answer.output
    assert (message.type, message.status) == ("message", "completed")
    assert answer.instructions == "Be brief."
    assert answer.usage is not None
    request = served.engine.requests[-1]
    assert answer.usage.input_tokens == len(request.prompt_token_ids)
    assert answer.usage.input_tokens_details.cached_tokens == 2
    assert answer.usage.total_tokens == answer.usage.input_tokens + answer.usage.output_tokens
    assert "Be brief." in prompt(served)
    assert prompt(served).index("Be brief.") < prompt(served).index("Tell me")


def test_a_stream_tells_each_step(served: Served) -> None:
    events = list(raw_events(served, max_output_tokens=200))
    kinds = [event["type"].removeprefix("response.") for event in events]
    assert kinds[:4] == ["created", "in_progress", "output_item.added", "content_part.added"]
    assert kinds[-4:] == ["output_text.done", "content_part.done", "output_item.done", "completed"]
    assert set(kinds[4:-4]) == {"output_text.delta"}
    assert "".join(event["delta"] for event in events[4:-4]) == SENTENCE == events[-4]["text"]
    created, completed = events[0]["response"], events[-1]["response"]
    assert (created["status"], created["output"], created["usage"]) == ("in_progress", [], None)
    assert (completed["id"], completed["status"]) == (created["id"], "completed")
    assert completed["output"] == [events[-2]["item"]]
    assert {event["item_id"] for event in events[3:-2]} == {completed["output"][0]["id"]}
    assert events[2]["item"]["content"] == []


def test_the_packages_helpers_follow_a_stream(served: Served) -> None:
    with served.openai().responses.stream(model=MODEL, input="Hi", max_output_tokens=200) as stream:
        texts = [event.delta for event in stream if event.type == "response.output_text.delta"]
        assert "".join(texts) == SENTENCE
        assert stream.get_final_response().output_text == SENTENCE


async def test_the_packages_async_client_works_too(served: Served) -> None:
    async with served.async_openai() as client:
        answer = await client.responses.create(model=MODEL, input="Hi", max_output_tokens=200)
        assert answer.output_text == SENTENCE
        async with client.responses.stream(model=MODEL, input="Hi", max_output_tokens=200) as stream:
            assert (await stream.get_final_response()).output_text == SENTENCE


def test_what_max_output_tokens_cuts_is_incomplete(served: Served) -> None:
    answer = both(served, input="Hi", max_output_tokens=3)
    assert answer.status == "incomplete"
    assert answer.incomplete_details is not None
    assert answer.incomplete_details.reason == "max_output_tokens"
    assert answer.output[0].status == "incomplete"  # type: ignore[union-attr]
    assert list(raw_events(served, max_output_tokens=3))[-1]["type"] == "response.incomplete"


def test_an_answer_without_a_word_has_a_text(served: Served) -> None:
    served.engine.answer = lambda request: [2]
    assert both(served, input="Hi").output[0].content[0].text == ""  # type: ignore[union-attr]


def test_calls_are_items_and_their_results_come_back(start: Callable[..., Served]) -> None:
    served = start(*AUTO)
    says(served, "Let me see.\n", CALL, '<tool_call>{"name": "now", "arguments": {}}</tool_call>')
    answer = both(served, input="Weather?", tools=TOOLS)
    text, weather, now = answer.output
    assert answer.output_text == "Let me see.\n"
    assert isinstance(weather, ResponseFunctionToolCall)
    assert isinstance(now, ResponseFunctionToolCall)
    assert (weather.name, weather.arguments, now.name, now.arguments) == (
        "weather", '{"city": "Rome"}', "now", "{}"
    )  # fmt: skip
    assert weather.call_id != now.call_id
    says(served, "Sunny.")
    said: Any = [
        {"role": "user", "content": "Weather?"},
        *(item.model_dump() for item in (text, weather, now)),
        {"type": "function_call_output", "call_id": weather.call_id, "output": "It is 20 degrees."},
        {"type": "function_call_output", "call_id": now.call_id,
         "output": [{"type": "input_text", "text": "Noon"}]},
    ]  # fmt: skip
    assert both(served, input=said, tools=TOOLS).output_text == "Sunny."
    order = [prompt(served).index(words) for words in ("Weather?", "Let me see.", "20 degrees", "Noon")]
    assert order == sorted(order)


def test_the_stream_of_a_call_joins_to_its_arguments(start: Callable[..., Served]) -> None:
    served = start(*AUTO)
    says(served, CALL)
    with served.openai().responses.stream(model=MODEL, input="Hi", tools=TOOLS) as stream:
        events = list(stream)
        final = stream.get_final_response()
    deltas = [event.delta for event in events if event.type == "response.function_call_arguments.delta"]
    assert "".join(deltas) == '{"city": "Rome"}'
    assert len(deltas) > 1
    assert final.output[0].parsed_arguments == {"city": "Rome"}  # type: ignore[union-attr]
    kinds = [event["type"] for event in raw_events(served, tools=TOOLS)]
    assert kinds[-3:] == [
        "response.function_call_arguments.done", "response.output_item.done", "response.completed"
    ]  # fmt: skip


def test_a_call_that_is_cut_is_text_where_the_answer_is_whole(start: Callable[..., Served]) -> None:
    served = start(*AUTO)
    says(served, "So: ", CALL[:60])
    whole = served.openai().responses.create(model=MODEL, input="Hi", tools=TOOLS)
    assert whole.output_text == "So: " + CALL[:60]
    assert len(whole.output) == 1
    done = [event["item"] for event in raw_events(served, tools=TOOLS) if event["type"].endswith("item.done")]
    assert [(item["type"], item["status"]) for item in done] == [
        ("message", "completed"), ("function_call", "incomplete")
    ]  # fmt: skip


@pytest.mark.parametrize("choice", ["required", {"type": "function", "name": "weather"}])
def test_calls_can_be_demanded(served: Served, choice: Any) -> None:
    arguments = '{"city": "Bern"}'
    says(
        served,
        arguments if isinstance(choice, dict) else f'[{{"name": "weather", "parameters": {arguments}}}]',
    )
    answer = both(served, input="Hi", tools=TOOLS, tool_choice=choice, parallel_tool_calls=False)
    (call,) = answer.output
    assert isinstance(call, ResponseFunctionToolCall)
    assert (call.name, call.arguments) == ("weather", arguments)
    assert "Bern" in served.engine.requests[-1].grammar
    assert answer.parallel_tool_calls is False


def test_reasoning_is_an_item_of_its_own(start: Callable[..., Served]) -> None:
    served = start("--reasoning-parser", "deepseek_r1")
    says(served, "I think", "</think>", "So it is.")
    answer = both(served, input="Hi", reasoning={"effort": "xhigh", "summary": "auto"})
    reasoning, _ = answer.output
    assert isinstance(reasoning, ResponseReasoningItem)
    assert reasoning.content is not None
    assert (reasoning.content[0].text, answer.output_text) == ("I think", "So it is.")
    assert answer.usage is not None
    counted = answer.usage.output_tokens_details.reasoning_tokens
    assert counted == len(served.tokenizer.encode("I think", add_special_tokens=False))
    events = list(raw_events(served))
    kinds = [event["type"].removeprefix("response.") for event in events]
    for kind in ("reasoning_text.delta", "reasoning_text.done"):
        assert kind in kinds
    added = [event["part"]["type"] for event in events if event["type"].endswith("part.added")]
    assert added == ["reasoning_text", "output_text"]
    # It goes back to the model's template as the assistant's.
    served = start("--chat-template", "{% for m in messages %}[{{ m.reasoning_content }}]{% endfor %}")
    says(served, "Yes.")
    said: Any = [item.model_dump(exclude_none=True) for item in answer.output]
    assert both(served, input=[*said, {"role": "user", "content": "Why?"}]).status == "completed"
    assert prompt(served) == "[I think][]"


class Answer(BaseModel):
    city: str
    people: int


def test_a_form_is_held_to_and_parsed(served: Served) -> None:
    says(served, '{"city": "Paris", "people": 2}')
    parsed = served.openai().responses.parse(model=MODEL, input="Hi", text_format=Answer)
    assert parsed.output_parsed == Answer(city="Paris", people=2)
    assert '"people"' in served.engine.requests[-1].grammar
    with served.openai().responses.stream(model=MODEL, input="Hi", text_format=Answer) as stream:
        assert stream.get_final_response().output_parsed == parsed.output_parsed
    both(served, input="Hi", text={"format": {"type": "json_object"}})
    assert served.engine.requests[-1].grammar
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    form: Any = {"type": "json_schema", "name": "x", "schema": schema, "strict": True}
    told = both(served, input="Hi", text={"format": form}).text
    assert told is not None
    assert told.format is not None
    assert told.format.model_dump(exclude_none=True, by_alias=True) == form
    both(served, input="Hi", text={"format": {"type": "text"}})
    assert not served.engine.requests[-1].grammar


def test_log_probabilities_are_of_the_text(served: Served) -> None:
    fields: Any = {"max_output_tokens": 3, "include": ["message.output_text.logprobs"], "top_logprobs": 2}
    answer = both(served, input="Hi", **fields)
    told = answer.output[0].content[0].logprobs  # type: ignore[union-attr]
    assert [one.logprob for one in told] == [-0.5] * 3
    assert [len(one.top_logprobs) for one in told] == [2] * 3
    assert "".join(one.token for one in told) == answer.output_text
    events = list(raw_events(served, **fields))
    assert events[3]["part"]["logprobs"] == []
    deltas = [event for event in events if event["type"].endswith("text.delta")]
    assert [one["logprob"] for event in deltas for one in event["logprobs"]] == [-0.5] * 3
    assert both(served, input="Hi", max_output_tokens=3).output[0].content[0].logprobs == []  # type: ignore[union-attr]


@pytest.mark.parametrize("size", range(1, 9))
def test_log_probabilities_of_reasoning_are_not_the_texts(start: Callable[..., Served], size: int) -> None:
    served = start("--reasoning-parser", "deepseek_r1")
    says(served, "I think</think>So it is.")
    served.engine.together = size
    answer = both(served, input="Hi", include=["message.output_text.logprobs"], top_logprobs=1)
    text = answer.output[1].content[0]  # type: ignore[union-attr, index]
    assert text.text == "So it is."  # type: ignore[union-attr]
    assert "".join(one.token for one in text.logprobs) == "So it is."  # type: ignore[union-attr]


@pytest.mark.parametrize("size", range(1, 12))
@pytest.mark.parametrize("as_ids", [False, True])
def test_log_probabilities_of_a_character_are_those_of_all_its_tokens(
    start: Callable[..., Served], as_ids: bool, size: int
) -> None:
    """However many tokens of it a step gave: the first ones may come with the end of the reasoning."""
    flag = ["--return-tokens-as-token-ids"] if as_ids else []
    served = start("--reasoning-parser", "deepseek_r1", *flag)
    says(served, "I think</think>😀 So 😀 it is.")
    served.engine.together = size
    answer = both(served, input="Hi", include=["message.output_text.logprobs"], top_logprobs=1)
    (text,) = answer.output[1].content  # type: ignore[union-attr]
    written = b"".join(bytes(one.bytes) for one in text.logprobs)  # type: ignore[union-attr, arg-type]
    assert written.decode() == text.text == "😀 So 😀 it is."  # type: ignore[union-attr]
    assert text.logprobs[0].token.startswith("token_id:" if as_ids else "\ufffd")  # type: ignore[union-attr, index]


def test_a_call_that_is_whole_is_complete_whatever_ends_the_output(start: Callable[..., Served]) -> None:
    served = start(*AUTO)
    says(served, CALL, "\n\n\n")
    length = len(served.tokenizer.encode(CALL, add_special_tokens=False)) + 1
    answer = both(served, input="Hi", tools=TOOLS, max_output_tokens=length)
    assert (answer.status, answer.output[0].type) == ("incomplete", "function_call")
    assert answer.output[0].status == "completed"  # type: ignore[union-attr]


def test_fields_reach_the_engine_and_come_back(served: Served) -> None:
    answer = both(
        served, input="Hi", temperature=0.5, top_p=0.25, metadata={"a": "b"}, truncation="auto", store=True,
        prompt_cache_key="k", max_tool_calls=3, service_tier="priority",
        include=["reasoning.encrypted_content"], extra_body={"top_k": 7, "seed": 5},
    )  # fmt: skip
    params = served.engine.requests[-1].params
    assert (params.temperature, params.top_p, params.top_k, params.seed) == (0.5, 0.25, 7, 5)
    assert (answer.temperature, answer.top_p, answer.metadata) == (0.5, 0.25, {"a": "b"})
    assert (answer.truncation, answer.max_tool_calls, answer.prompt_cache_key) == ("auto", 3, "k")
    assert answer.service_tier == "default"
    assert answer.store is False  # type: ignore[attr-defined]  # this server stores none


def test_what_is_too_long_is_cut_where_the_client_says_so(served: Served) -> None:
    with pytest.raises(openai.BadRequestError, match="maximum context length is 512"):
        served.openai().responses.create(model=MODEL, input="word " * 2000)
    answer = both(served, input="word " * 2000, truncation="auto", max_output_tokens=8)
    assert answer.usage is not None
    assert answer.usage.input_tokens == 504
    answer = both(served, input="word " * 2000, truncation="auto")
    assert answer.usage is not None
    assert (answer.usage.input_tokens, answer.output_text) == (512 - 512 // 4, SENTENCE)


def test_a_failure_ends_the_stream_with_its_reason(served: Served) -> None:
    served.engine.failing = "out of luck"
    *_, error, failed = raw_events(served)
    assert (error["type"], failed["type"]) == ("error", "response.failed")
    assert failed["response"]["status"] == "failed"
    assert failed["response"]["error"]["code"] == "server_error"
    assert "out of luck" in failed["response"]["error"]["message"]
    with pytest.raises(openai.InternalServerError, match="out of luck"):
        served.openai().responses.create(model=MODEL, input="Hi")


BAD = [
    ({"input": None}, "input", "null"),
    ({"input": []}, "input", "at least 1"),
    ({"input": 5}, "input", "5"),
    ({"input": [5]}, "input[0]", "5"),
    ({"input": [{}]}, "input[0]", "role is missing; message needs it."),
    ({"input": [{"role": "user"}]}, "input[0]", "content is missing"),
    ({"input": [{"role": "king", "content": ""}]}, "input[0].role", "king"),
    ({"input": [{"role": "user", "content": 5}]}, "input[0].content", "5"),
    ({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]},
     "input[0].content[0].type", "input_image"),
    ({"input": [{"role": "user", "content": [{"type": "input_text"}]}]},
     "input[0].content[0].text", "input_text needs"),
    ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0].type", "item_reference"),
    ({"input": 5}, "input", "a text or a list"),
    ({"input": [{"type": "function_call", "call_id": "a", "name": "f"}]}, "input[0]", "arguments"),
    ({"input": [{"type": "custom_tool_call", "call_id": "a", "name": "f"}]}, "input[0]", "input is missing"),
    ({"tools": [{"type": "function"}]}, "tools[0].name", "missing"),
    ({"tool_choice": {"type": "allowed_tools"}}, "tool_choice", "tool_choice should be"),
    ({"tool_choice": "required"}, "tool_choice", "the request has no function"),
    ({"tools": TOOLS}, "tool_choice", "with --tool-call-parser"),
    ({"text": {"format": {"type": "xml"}}}, "text.format.type", "xml"),
    ({"text": {"format": {"type": "json_schema", "name": "x"}}}, "text.format", "schema is missing"),
    ({"text": {"format": {"type": "json_schema", "name": "x", "schema": {"not": {}}}}},
     "text.format.schema", "text.format.schema cannot be followed"),
    ({"text": {"verbosity": "high"}}, "verbosity", "not supported yet"),
    ({"reasoning": {"effort": "extreme"}}, "reasoning.effort", "extreme"),
    ({"reasoning": {"summary": "short"}}, "summary", "not supported yet"),
    ({"include": ["everything"]}, "include[0]", "everything"),
    ({"top_logprobs": 21}, "top_logprobs", "--max-logprobs"),
    ({"max_output_tokens": 0}, "max_output_tokens", "at least 1"),
    ({"max_output_tokens": 5000}, "input", "lower max_output_tokens"),
    ({"max_tokens": 5}, "max_tokens", "use max_output_tokens"),
    ({"response_format": {"type": "text"}}, "response_format", "use text.format"),
    ({"metadata": {"a": 5}}, "metadata.a", "5"),
    ({"metadata": {str(n): "" for n in range(17)}}, "metadata", "16"),
    ({"background": True}, "background", "not supported yet"),
    ({"conversation": "conv_1"}, "conversation", "previous_response_id"),
    ({"prompt": {"id": "p"}}, "prompt", "not supported yet"),
    ({"stream_options": {"include_obfuscation": True}, "stream": True}, "stream_options", "not supported"),
    ({"truncation": "some"}, "truncation", "some"),
    ({"n": 2}, "n", "not supported yet"),
    ({"echo": True}, "echo", "not supported yet"),
    ({"temperature": -1}, "temperature", "-1"),
]  # fmt: skip


@pytest.mark.parametrize(("fields", "param", "words"), BAD, ids=lambda case: str(case)[:60])
def test_a_bad_field_is_named(served: Served, fields: dict[str, Any], param: str, words: str) -> None:
    answer = served.post("/v1/responses", {"input": "Hi"} | fields)
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert error["param"] == param, error
    assert words in error["message"], error


@pytest.fixture(scope="module")
def live(demo_model: Path) -> Iterator[LiveServer]:
    arguments = ("--max-model-len", "1024", "--disable-log-requests")
    with live_server(demo_model, *arguments, env={"VLLM_ENABLE_RESPONSES_API_STORE": "1"}) as server:
        yield server


@pytest.mark.slow
def test_a_session_with_the_demo_model(live: LiveServer) -> None:
    client = openai.OpenAI(base_url=f"{live.url}/v1", api_key="none", max_retries=0)
    ask: Any = {"model": "", "temperature": 0}
    first = client.responses.create(input="What is the capital of France?", max_output_tokens=40, **ask)
    assert "Paris" in first.output_text
    with client.responses.stream(
        input="What is the capital of France?", max_output_tokens=40, **ask
    ) as stream:
        texts = [event.delta for event in stream if event.type == "response.output_text.delta"]
    assert "".join(texts) == first.output_text
    again = client.responses.create(
        input="Which country did I ask about?", previous_response_id=first.id, max_output_tokens=30, **ask
    )
    assert again.usage is not None
    assert first.usage is not None
    assert again.usage.input_tokens > first.usage.total_tokens
    parsed = client.responses.parse(input="Describe Paris.", text_format=Answer, max_output_tokens=200, **ask)
    assert isinstance(parsed.output_parsed, Answer)
    called = client.responses.create(
        input="Weather?", tools=TOOLS[:1], tool_choice="required", parallel_tool_calls=False, **ask
    )
    (call,) = called.output
    assert json.loads(call.arguments)["city"] in ("Rome", "Bern")  # type: ignore[union-attr]
    after: Any = [{"type": "function_call_output", "call_id": call.call_id, "output": "20 degrees"}]  # type: ignore[union-attr]
    told = client.responses.create(input=after, previous_response_id=called.id, max_output_tokens=20, **ask)
    assert told.output_text
