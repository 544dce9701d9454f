"""Responses that are asked for again, with the store off and on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import openai
import pytest
from openai.types.responses import ResponseFunctionToolCall
from serving import MODEL, Served, prompt, says

from slipway.api.response_store import ResponseStore, Stored

AUTO = ("--enable-auto-tool-choice", "--tool-call-parser", "hermes")
TOOLS: Any = [{"type": "function", "name": "weather", "parameters": {"type": "object"}, "strict": None}]
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Rome"}}\n</tool_call>'


def test_without_a_store_a_response_is_answered_and_forgotten(served: Served) -> None:
    client = served.openai()
    answer = client.responses.create(model=MODEL, input="Hi", store=True)
    for ask in (client.responses.retrieve, client.responses.delete, client.responses.cancel):
        with pytest.raises(openai.NotFoundError, match="VLLM_ENABLE_RESPONSES_API_STORE=1"):
            ask(answer.id)
    with pytest.raises(openai.NotFoundError, match="VLLM_ENABLE_RESPONSES_API_STORE=1") as refused:
        client.responses.create(model=MODEL, input="And?", previous_response_id=answer.id)
    assert refused.value.param == "previous_response_id"


@pytest.fixture
def storing(start: Callable[..., Served], monkeypatch: pytest.MonkeyPatch) -> Served:
    monkeypatch.setenv("VLLM_ENABLE_RESPONSES_API_STORE", "1")
    return start(*AUTO)


@pytest.mark.parametrize("stream", [False, True])
def test_a_stored_response_is_shown_and_forgotten(storing: Served, stream: bool) -> None:
    client = storing.openai()
    if stream:
        *_, last = client.responses.create(model=MODEL, input="Hi", stream=True)
        answer = last.response  # type: ignore[union-attr]
    else:
        answer = client.responses.create(model=MODEL, input="Hi")
    assert answer.store is True  # type: ignore[union-attr]
    assert client.responses.retrieve(answer.id) == answer
    with pytest.raises(openai.BadRequestError, match="has ended"):
        client.responses.cancel(answer.id)
    with pytest.raises(openai.BadRequestError, match="streamed again"):
        list(client.responses.retrieve(answer.id, stream=True))
    client.responses.delete(answer.id)
    with pytest.raises(openai.NotFoundError, match="deleted"):
        client.responses.retrieve(answer.id)
    kept_out = client.responses.create(model=MODEL, input="Hi", store=False)
    with pytest.raises(openai.NotFoundError, match="never stored"):
        client.responses.retrieve(kept_out.id)


def test_numbers_of_any_size_are_stored(
    start: Callable[..., Served], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLLM_ENABLE_RESPONSES_API_STORE", "1")
    storing = start(*AUTO, "--chat-template", "{% for m in messages %}[{{ m.tool_calls }}]{% endfor %}")
    says(storing, CALL.replace('"Rome"', "18446744073709551616"))
    first = storing.openai().responses.create(model=MODEL, input="Hi", tools=TOOLS)
    says(storing, "Well.")
    storing.openai().responses.create(model=MODEL, input="And?", previous_response_id=first.id, tools=TOOLS)
    assert "18446744073709551616" in prompt(storing)


def test_no_client_names_a_response(storing: Served) -> None:
    asked: Any = {"model": MODEL, "input": "Hi", "extra_headers": {"X-Request-Id": "a/b"}}
    first, second = (storing.openai().responses.create(**asked) for _ in range(2))
    third = storing.openai().responses.create(**asked, extra_body={"request_id": "c"})
    assert len({first.id, second.id, third.id}) == 3
    for answer in (first, second, third):
        assert storing.openai().responses.retrieve(answer.id).id == answer.id


def test_a_long_conversation_is_prepared_as_a_long_body(
    storing: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    says(storing, "Well.")
    first = storing.openai().responses.create(model=MODEL, input="word " * 100)
    seen: list[int] = []
    prepare = storing.front.prepare

    async def watched(name: str | None, make: Any, num_bytes: int, *, quick: bool) -> Any:
        seen.append(num_bytes)
        return await prepare(name, make, num_bytes, quick=quick)

    monkeypatch.setattr(storing.front, "prepare", watched)
    storing.openai().responses.create(model=MODEL, input="And?", previous_response_id=first.id)
    assert seen[0] > 500


def test_a_conversation_goes_on_from_a_stored_response(storing: Served) -> None:
    client = storing.openai()
    says(storing, "Let me see.", CALL)
    first = client.responses.create(
        model=MODEL, input="Weather in Rome?", tools=TOOLS, instructions="Be brief."
    )
    call = first.output[1]
    assert isinstance(call, ResponseFunctionToolCall)
    says(storing, "Sunny.")
    result: Any = [{"type": "function_call_output", "call_id": call.call_id, "output": "20 degrees"}]
    second = client.responses.create(model=MODEL, input=result, previous_response_id=first.id, tools=TOOLS)
    client.responses.delete(first.id)  # the second has what it needs
    third = client.responses.create(model=MODEL, input="Sure?", previous_response_id=second.id)
    assert third.previous_response_id == second.id
    words = ("Weather in Rome?", "Let me see.", "20 degrees", "Sunny.", "Sure?")
    order = [prompt(storing).index(one) for one in words]
    assert order == sorted(order)
    assert "Be brief." not in prompt(storing)  # instructions are of one response


def test_the_store_is_bounded() -> None:
    store = ResponseStore(max_responses=3, max_bytes=100)
    for name in "abcd":
        store.put(name, Stored(b"x" * 20, (b"y" * 5,)))
    assert [name for name in "abcd" if store.get(name)] == ["b", "c", "d"]
    store.put("e", Stored(b"x" * 60, ()))
    assert [name for name in "abcde" if store.get(name)] == ["d", "e"]
    store.put("f", Stored(b"x" * 101, ()))
    assert not any(store.get(name) for name in "abcdef")
    store.put("g", Stored(b"x" * 100, ()))
    store.put("g", Stored(b"x" * 90, ()))
    assert store.get("g") is not None
    assert store.delete("g")
    assert not store.delete("g")
