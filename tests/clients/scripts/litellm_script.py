"""LiteLLM in front of the server: `litellm_script.py URL MODEL`."""

from __future__ import annotations

import asyncio
import json
import sys

import litellm

URL, MODEL = sys.argv[1:]
ASKED = [{"role": "user", "content": "What is the capital of France?"}]
WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"enum": ["Paris", "Bern"]}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}


def common(provider: str) -> dict[str, object]:
    return {"model": f"{provider}/{MODEL}", "api_base": f"{URL}/v1", "api_key": "none", "temperature": 0}


for provider in ("openai", "hosted_vllm"):
    answer = litellm.completion(messages=ASKED, max_tokens=30, **common(provider))
    text = answer.choices[0].message.content
    assert "Paris" in text
    assert answer.usage.completion_tokens > 0

    chunks = list(litellm.completion(messages=ASKED, max_tokens=30, stream=True, **common(provider)))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == text
    assert litellm.stream_chunk_builder(chunks, messages=ASKED).choices[0].message.content == text

    called = litellm.completion(messages=ASKED, tools=[WEATHER], tool_choice="required", **common(provider))
    call = called.choices[0].message.tool_calls[0]
    assert call.function.name == "weather"
    assert json.loads(call.function.arguments)["city"] in ("Paris", "Bern")

    shaped = litellm.completion(
        messages=ASKED, response_format={"type": "json_object"}, max_tokens=60, **common(provider)
    )
    assert shaped.choices[0].message.content.lstrip().startswith("{")

plain = litellm.text_completion(
    model=f"text-completion-openai/{MODEL}",
    prompt="The capital of France is",
    max_tokens=5,
    temperature=0,
    api_base=f"{URL}/v1",
    api_key="none",
)
assert "Paris" in plain.choices[0].text

later = asyncio.run(litellm.acompletion(messages=ASKED, max_tokens=30, **common("openai")))
assert "Paris" in later.choices[0].message.content

try:
    litellm.completion(messages=ASKED, **common("openai") | {"model": "openai/no-such-model"})
except litellm.NotFoundError as error:
    told = str(error)
else:
    raise AssertionError("a model that is not there answered")
assert "does not exist" in told
