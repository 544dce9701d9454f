"""What the translations of other forms into a chat request have in common."""

from __future__ import annotations

from typing import Any

from pydantic import ValidationError

from slipway.api.errors import ApiError, from_validation
from slipway.api.protocol.chat import ChatRequest, Json


def chat_request(**fields: Any) -> ChatRequest:
    """Raises ApiError for what a translation makes too much of, such as more messages than may be."""
    try:
        return ChatRequest(**{name: value for name, value in fields.items() if value is not None})
    except ValidationError as error:
        raise from_validation(error) from None


def missing(param: str, kind: str) -> ApiError:
    """A field that a thing of this kind must have."""
    return ApiError(f"{param} is missing; {kind} needs it.", param=param, code="missing")


def assistant_turn(texts: list[str], reasoning: list[str], calls: list[Json]) -> Json:
    """One message of the assistant. White space alone beside calls is no content."""
    turn: Json = {"role": "assistant"}
    if any(map(str.strip, texts)) or not calls:
        turn["content"] = content_of(texts)
    if reasoning:
        turn["reasoning_content"] = "".join(reasoning)
    if calls:
        turn["tool_calls"] = calls
    return turn


def tool_call(call_id: str, name: str, arguments: str | Json) -> Json:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def tool(name: str, description: str | None, parameters: Json | None, strict: bool | None) -> Json:
    """A tool as chat has it."""
    function = {"name": name, "description": description, "parameters": parameters, "strict": strict}
    return {
        "type": "function",
        "function": {field: value for field, value in function.items() if value is not None},
    }


def content_of(texts: list[str]) -> str | list[Json]:
    """One text as it is, more of them as parts."""
    if len(texts) <= 1:
        return "".join(texts)
    return [{"type": "text", "text": text} for text in texts]


def held_to_schema(name: str, schema: Json) -> Json:
    """The `response_format` of a JSON schema."""
    return {"type": "json_schema", "json_schema": {"name": name, "schema": schema}}
