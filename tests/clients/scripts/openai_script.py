"""The `openai` package: `openai_script.py URL MODEL`."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any, Literal

import openai
from pydantic import BaseModel

URL, MODEL = sys.argv[1:]
ASKED: list[Any] = [{"role": "user", "content": "What is the capital of France?"}]
client = openai.OpenAI(base_url=f"{URL}/v1", api_key="none", max_retries=0)


class Place(BaseModel):
    city: Literal["Paris", "Bern"]


class Weather(BaseModel):
    """The weather of a city."""

    city: Literal["Paris", "Bern"]


def lists_and_shows_models() -> None:
    assert MODEL in [model.id for model in client.models.list()]
    assert client.models.retrieve(MODEL).id == MODEL


def completes() -> None:
    answer = client.completions.create(
        model=MODEL, prompt="The capital of France is", max_tokens=5, temperature=0, logprobs=2, n=2
    )
    assert all("Paris" in choice.text for choice in answer.choices)
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    assert len(logprobs.tokens or ()) == 5
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 10
    streamed = client.completions.create(
        model=MODEL, prompt="The capital of France is", max_tokens=5, temperature=0, stream=True
    )
    assert "".join(chunk.choices[0].text for chunk in streamed) == answer.choices[0].text


def chats() -> None:
    answer = client.chat.completions.create(
        model=MODEL, messages=ASKED, temperature=0, max_completion_tokens=40, logprobs=True, top_logprobs=3
    )
    (choice,) = answer.choices
    assert "Paris" in (choice.message.content or "")
    assert choice.logprobs is not None
    assert [len(one.top_logprobs) for one in choice.logprobs.content or ()][:1] == [3]
    with client.chat.completions.stream(
        model=MODEL, messages=ASKED, temperature=0, max_completion_tokens=40
    ) as stream:
        deltas = [event.delta for event in stream if event.type == "content.delta"]
        final = stream.get_final_completion()
    assert "".join(deltas) == final.choices[0].message.content == choice.message.content


def parses() -> None:
    parsed = client.chat.completions.parse(model=MODEL, messages=ASKED, temperature=0, response_format=Place)
    assert parsed.choices[0].message.parsed is not None
    assert parsed.choices[0].message.parsed.city in ("Paris", "Bern")
    with client.chat.completions.stream(
        model=MODEL, messages=ASKED, temperature=0, response_format=Place
    ) as stream:
        message = stream.get_final_completion().choices[0].message
    assert message.parsed == parsed.choices[0].message.parsed


def calls_tools() -> None:
    tool = openai.pydantic_function_tool(Weather)
    messages: list[Any] = [{"role": "user", "content": "How is the weather in Paris?"}]
    answer = client.chat.completions.parse(
        model=MODEL,
        messages=messages,
        tools=[tool],
        tool_choice="required",
        parallel_tool_calls=False,
        temperature=0,
    )
    (choice,) = answer.choices
    assert choice.finish_reason == "tool_calls"
    assert choice.message.tool_calls
    (call,) = choice.message.tool_calls
    assert isinstance(call.function.parsed_arguments, Weather)
    messages += [
        choice.message.model_dump(exclude_none=True, exclude={"parsed"}),
        {"role": "tool", "tool_call_id": call.id, "content": "sunny"},
    ]
    after = client.chat.completions.create(
        model=MODEL, messages=messages, tools=[tool], tool_choice="none", temperature=0, max_tokens=20
    )
    assert after.choices[0].message.content
    named = client.chat.completions.create(
        model=MODEL,
        messages=messages[:1],
        tools=[tool],
        tool_choice={"type": "function", "function": {"name": "Weather"}},
        temperature=0,
        stream=True,
    )
    arguments = ""
    for chunk in named:
        for more in chunk.choices[0].delta.tool_calls or ():
            arguments += (more.function and more.function.arguments) or ""
    Weather.model_validate(json.loads(arguments))


def says_what_is_wrong() -> None:
    for fields, kind in (
        ({"model": "no-such-model"}, openai.NotFoundError),
        ({"temperature": 1000}, openai.BadRequestError),
        ({"max_tokens": 10**6}, openai.BadRequestError),
    ):
        try:
            client.chat.completions.create(**({"model": MODEL, "messages": ASKED} | fields))
        except kind as error:
            told = error.body
        else:
            raise AssertionError(f"{fields} was taken")
        assert told


async def works_asynchronously() -> None:
    async with openai.AsyncOpenAI(base_url=f"{URL}/v1", api_key="none", max_retries=0) as own:
        answers = await asyncio.gather(
            *(
                own.chat.completions.create(model=MODEL, messages=ASKED, temperature=0, max_tokens=20)
                for _ in range(8)
            )
        )
        assert len({answer.choices[0].message.content for answer in answers}) == 1
        async with own.chat.completions.stream(
            model=MODEL, messages=ASKED, temperature=0, max_tokens=20
        ) as stream:
            final = await stream.get_final_completion()
        assert final.choices[0].message.content == answers[0].choices[0].message.content


lists_and_shows_models()
completes()
chats()
parses()
calls_tools()
says_what_is_wrong()
asyncio.run(works_asynchronously())
