"""LangChain's chat model, bound to tools and to a form: `langchain_script.py URL MODEL`."""

from __future__ import annotations

import asyncio
import sys
from typing import Any, Literal

from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAI
from pydantic import BaseModel

URL, MODEL = sys.argv[1:]
ASKED = HumanMessage("What is the capital of France?")


class Place(BaseModel):
    """A place."""

    city: Literal["Paris", "Bern"]


@tool
def weather(city: Literal["Paris", "Bern"]) -> str:
    """The weather of a city."""
    return f"It is sunny in {city}."


settings: dict[str, Any] = {
    "model": MODEL,
    "base_url": f"{URL}/v1",
    "api_key": "none",
    "temperature": 0,
    "max_retries": 0,
}
chat = ChatOpenAI(**settings, max_completion_tokens=40)

whole = chat.invoke([ASKED])
assert "Paris" in whole.content
assert whole.usage_metadata["output_tokens"] > 0
assert "".join(chunk.content for chunk in chat.stream([ASKED])) == whole.content
assert [answer.content for answer in chat.batch([[ASKED], [ASKED]])] == [whole.content] * 2
assert (asyncio.run(chat.ainvoke([ASKED]))).content == whole.content

for method in ("json_schema", "function_calling"):
    place = chat.with_structured_output(Place, method=method).invoke([ASKED])
    assert isinstance(place, Place), method

agent = chat.bind_tools([weather], tool_choice="required", parallel_tool_calls=False)
asked = HumanMessage("How is the weather in Paris?")
called = agent.invoke([asked])
(call,) = called.tool_calls
assert call["name"] == "weather"
result = weather.invoke(call)
assert isinstance(result, ToolMessage)
after = chat.bind_tools([weather], tool_choice="none").invoke([asked, called, result])
assert after.content

assert "Paris" in OpenAI(**settings, max_tokens=5).invoke("The capital of France is")
