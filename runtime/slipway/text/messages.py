"""Messages as a chat template sees them: plain JSON values, contents in one format."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from slipway.text.sandbox import TemplateError

Message = Mapping[str, Any]

REASONING = ("reasoning_content", "reasoning", "thinking")
"""Names of a message's reasoning; templates read the first or the last, clients send any."""
_DEEPEST = 100
TEXT_PARTS = {"text": "text", "input_text": "text", "output_text": "text", "refusal": "refusal"}
"""Types of parts that are text, and the field that holds it."""


def copied(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """A copy for the template. Keys without a value are left out, templates test for the key; so is an empty
    list of calls."""
    chat = []
    for message in messages:
        own = {key: plain(value) for key, value in message.items() if value is not None}
        if not own.get("tool_calls", True):
            del own["tool_calls"]
        if own.get("role") == "assistant":
            _name_reasoning(own)
        chat.append(own)
    return chat


def plain(value: Any, depth: int = 0) -> Any:
    """Copy JSON values into plain types, so that a template meets no methods but theirs."""
    if depth > _DEEPEST:
        raise TemplateError(f"A value of the chat is nested more than {_DEEPEST} deep. Send a flatter one.")
    if value is None or type(value) in (str, int, float, bool):
        return value
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, Mapping):
        return {str(key): plain(item, depth + 1) for key, item in value.items()}
    if isinstance(value, Sequence):
        return [plain(item, depth + 1) for item in value]
    raise TemplateError(
        f"A chat template takes JSON values only, not {type(value).__name__}. "
        "Send text, numbers, lists or objects."
    )


def flat(content: Any) -> str:
    """The text of a content: its text parts, one per line."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    return "\n".join(_text(part) for part in content)


def parts(content: Any) -> list[Any]:
    """A content as typed parts; templates know one type of text."""
    if content is None:
        return []
    if isinstance(content, str):
        content = [content]
    return [
        {"type": "text", "text": _text(part)}
        if isinstance(part, str) or part.get("type") in TEXT_PARTS
        else part
        for part in content
    ]


def _text(part: Any) -> str:
    if isinstance(part, str):
        return part
    field = TEXT_PARTS.get(part.get("type"), "")
    if not isinstance(part.get(field), str):
        raise TemplateError(
            f"A content part of type {part.get('type')!r} cannot be part of this chat: "
            "the model's template takes text. Send parts of type 'text'."
        )
    text: str = part[field]
    return text


def arguments_as_object(given: Any) -> dict[str, Any] | None:
    """A call's arguments, which clients send as JSON text; {} for none, None for what is no object.

    A text that some clients encode twice is one text.
    """
    for _ in range(2):
        if given is None or (isinstance(given, str) and not given.strip()):
            return {}
        if not isinstance(given, str):
            break
        try:
            given = plain(json.loads(given))
            json.dumps(given, ensure_ascii=False).encode()  # half a character has no bytes
        except (ValueError, RecursionError):
            return None
    if given is None:
        return {}
    return given if isinstance(given, dict) else None


def arguments_as_text(given: Any) -> str:
    """The same as text: as sent where it is one."""
    if arguments_as_object(given) == {}:
        return "{}"
    return given if isinstance(given, str) else json.dumps(given, ensure_ascii=False)


def _name_reasoning(message: dict[str, Any]) -> None:
    reasoning = next((message[name] for name in REASONING if name in message), None)
    if reasoning is not None:
        for name in REASONING:
            message.setdefault(name, reasoning)
