"""From a request of `/v1/messages` to the chat request that says the same."""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import groupby
from typing import Any

from slipway.api.as_chat import (
    assistant_turn,
    chat_request,
    content_of,
    held_to_schema,
    missing,
    tool,
    tool_call,
)
from slipway.api.errors import ApiError
from slipway.api.formats import Formats
from slipway.api.protocol.chat import ChatRequest, Json
from slipway.api.protocol.messages import BlockParam, Conversation, MessageParam, MessagesRequest
from slipway.text.messages import flat

NAMES = {
    "response_format.json_schema.schema": "output_config.format.schema",
    "thinking_token_budget": "thinking.budget_tokens",
    "stop": "stop_sequences",
}
"""Fields of a chat request → what they are called here."""

_SAYS = {
    "user": ("text", "tool_result"),
    "assistant": ("text", "thinking", "tool_use"),
    "system": ("text",),
}
"""Roles → the blocks that their messages may have."""
_NEEDS = {
    "text": ("text",),
    "thinking": ("thinking",),
    "tool_use": ("id", "name", "input"),
    "tool_result": ("tool_use_id",),
}
"""Blocks → the fields that they must have."""
_BILLING = re.compile(r"\Ax-anthropic-billing-header:[^\n]*(\n+|$)")
_CHOICES = {"auto": "auto", "any": "required", "none": "none"}


def chat_of(body: MessagesRequest, found: Formats) -> ChatRequest:
    """The request as a chat. Raises ApiError.

    found  how the model's outputs are read, which says what thinking can be turned off or bounded by
    """
    fields = body.shared() | _conversation(body, found) | {"stop": body.stop_sequences}
    if body.metadata is not None and body.metadata.user_id is not None:
        fields["user"] = body.metadata.user_id
    chat = chat_request(**fields)
    chat.draw_seeds_like(body)
    return chat


def prompt_chat(body: Conversation, found: Formats) -> ChatRequest:
    """A chat with the same prompt. Raises ApiError."""
    return chat_request(**_conversation(body, found))


def _conversation(body: Conversation, found: Formats) -> dict[str, Any]:
    messages: list[Json] = []
    if body.system and (texts := _lasting(one["text"] for one in body.system)):
        messages.append({"role": "system", "content": content_of(texts)})
    for role, turn in groupby(enumerate(body.messages), lambda one: one[1].role):
        messages += _messages_of(role, [block for index, one in turn for block in _blocks(one, index)])
    fields: dict[str, Any] = {"messages": messages}
    last = messages[-1]
    if last["role"] == "assistant" and "tool_calls" not in last:
        if flat(last.get("content")).strip():  # the answer goes on with what the client has begun of it
            fields |= {"continue_final_message": True, "add_generation_prompt": False}
        elif len(messages) > 1:
            messages.pop()
    fields["tools"] = [
        tool(one.name, one.description, one.input_schema, one.strict) for one in body.tools or ()
    ]
    if (choice := body.tool_choice) is not None:
        named = {"type": "function", "function": {"name": choice.name}}
        fields["tool_choice"] = _CHOICES.get(choice.type, named)
        fields["parallel_tool_calls"] = not choice.disable_parallel_tool_use
    if (config := body.output_config) is not None:
        fields["reasoning_effort"] = config.effort
        if config.format is not None:
            fields["response_format"] = held_to_schema("output", config.format.schema_)
    _add_thinking(fields, body, found)
    return fields


def _lasting(texts: Iterable[str]) -> list[str]:
    """Without Claude Code's line about billing. It changes each time, so no prefix would be cached."""
    return [text for one in texts if (text := _BILLING.sub("", one)) or not one]


def _add_thinking(fields: dict[str, Any], body: Conversation, found: Formats) -> None:
    """A budget is kept by the engine; where no model's thinking is told apart, there is none to bound."""
    thinking, kwargs = body.thinking, dict(body.chat_template_kwargs or {})
    if thinking is not None:
        wanted = thinking.type != "disabled"
        if found.reasoning is not None and found.reasoning.switch is not None:
            kwargs.setdefault(found.reasoning.switch[0], wanted)
        if not wanted:
            fields["reasoning_effort"] = "none"
        elif found.reasoning is not None:
            fields["thinking_token_budget"] = thinking.budget_tokens
    fields["chat_template_kwargs"] = kwargs or None


def _blocks(message: MessageParam, index: int) -> list[BlockParam]:
    """Raises ApiError for those that it may not have."""
    for number, block in enumerate(message.content):
        _check(block, message.role, f"messages[{index}].content[{number}]")
    return message.content


def _messages_of(role: str, blocks: list[BlockParam]) -> list[Json]:
    """What one side says until the other does, and before what the user says the results of each tool."""
    if role == "assistant":
        return [_assistant(blocks)]
    messages: list[Json] = []
    texts: list[str] = []
    for block in blocks:
        if block["type"] == "text":
            texts.append(block.get("text") or "")
            continue
        if texts:
            messages.append({"role": role, "content": content_of(texts)})
            texts = []
        messages.append(_result(block))
    if texts or not messages:
        messages.append({"role": role, "content": content_of(texts)})
    return messages


def _check(block: BlockParam, role: str, place: str) -> None:
    kind = block["type"]
    if kind not in _SAYS[role]:
        message = f"{place} is {kind}; a message of the {role} may have {', '.join(_SAYS[role])}."
        raise ApiError(message, param=place, code="invalid_value")
    for name in _NEEDS[kind]:
        if block.get(name) is None:
            raise missing(f"{place}.{name}", kind)


def _result(block: BlockParam) -> Json:
    said = [one["text"] for one in block.get("content") or ()]
    if block.get("is_error"):
        said = ["Error: " + "\n".join(said)]
    return {"role": "tool", "tool_call_id": block.get("tool_use_id"), "content": content_of(said)}


def _assistant(blocks: list[BlockParam]) -> Json:
    return assistant_turn(
        [block.get("text") or "" for block in blocks if block["type"] == "text"],
        [block.get("thinking") or "" for block in blocks if block["type"] == "thinking"],
        [
            tool_call(block.get("id") or "", block.get("name") or "", block.get("input") or {})
            for block in blocks
            if block["type"] == "tool_use"
        ],
    )
