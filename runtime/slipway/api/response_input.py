"""From a request of `/v1/responses` to the chat request that says the same."""

from __future__ import annotations

from collections.abc import Sequence

from slipway.api.as_chat import (
    assistant_turn,
    chat_request,
    content_of,
    held_to_schema,
    missing,
    tool,
    tool_call,
)
from slipway.api.protocol.chat import ChatRequest, Json
from slipway.api.protocol.responses import (
    InputItem,
    InputPart,
    NamedToolParam,
    ResponsesRequest,
    TextFormat,
    ToolParam,
)

NAMES = {
    "response_format.json_schema.schema": "text.format.schema",
    "response_format.schema": "text.format.schema",
    "response_format": "text.format",
    "max_tokens": "max_output_tokens",
    "messages": "input",
}
"""Fields of a chat request → what they are called here."""


_CUSTOM = {
    "type": "object",
    "properties": {"input": {"type": "string"}},
    "required": ["input"],
    "additionalProperties": False,
}
"""What a custom tool takes, as the parameters of a function."""
ANSWER_SHARE = 4
"""Of the context, one part in so many is left for an answer without a maximum where its input is cut."""


def chat_of(body: ResponsesRequest, messages: Sequence[Json], max_model_len: int) -> ChatRequest:
    """The request as a chat of these messages, for a context of so many tokens. Raises ApiError."""
    instructions = [{"role": "system", "content": body.instructions}] if body.instructions else []
    effort = body.reasoning.effort if body.reasoning else None
    shared = body.shared()
    if body.truncation == "auto" and body.truncate_prompt_tokens is None:
        room = body.max_output_tokens or max_model_len // ANSWER_SHARE
        shared |= {"truncate_prompt_tokens": max(max_model_len - room, 1)}
    chat = chat_request(
        **shared,
        messages=[*instructions, *messages],
        max_tokens=body.max_output_tokens,
        tools=[_tool(one) for one in body.tools or ()],
        tool_choice=_choice(body.tool_choice),
        parallel_tool_calls=body.parallel_tool_calls,
        reasoning_effort=effort,
        response_format=_form(body.text.format if body.text else None),
        logprobs=body.num_logprobs is not None,
        top_logprobs=body.num_logprobs,
        chat_template_kwargs=body.chat_template_kwargs,
    )
    chat.draw_seeds_like(body)
    return chat


def _tool(offered: ToolParam) -> Json:
    if offered.type == "function":
        return tool(offered.name, offered.description, offered.parameters, offered.strict)
    form = offered.format or {}
    said = [offered.description or ""]
    if isinstance(definition := form.get("definition"), str):
        said.append(f"The input is written by this {form.get('syntax', 'lark')} grammar:\n{definition}")
    return tool(offered.name, "\n\n".join(filter(None, said)), _CUSTOM, None)


def _choice(choice: str | NamedToolParam | None) -> str | Json | None:
    if isinstance(choice, NamedToolParam):
        return {"type": "function", "function": {"name": choice.name}}
    return choice


def _form(wanted: TextFormat | None) -> Json | None:
    if wanted is None or wanted.type == "text":
        return None
    if wanted.type == "json_object":
        return {"type": "json_object", "schema": wanted.schema_}
    return held_to_schema(wanted.name or "", wanted.schema_ or {})


def messages_of(items: Sequence[InputItem]) -> list[Json]:
    """The items as messages of a chat: what the assistant thought, said and called is one of them.

    Raises ApiError for a part without its text.
    """
    messages: list[Json] = []
    turn = _Turn()
    for index, item in enumerate(items):
        if not item.is_of_assistant or turn.ends_before(item):
            messages += turn.messages
            turn = _Turn()
        if item.is_of_assistant:
            turn.add(item, f"input[{index}]")
        else:
            messages.append(_message(item, f"input[{index}]"))
    return messages + turn.messages


def _message(item: InputItem, place: str) -> Json:
    if item.type == "message":
        return {"role": item.role, "content": content_of(_texts(item.content, f"{place}.content"))}
    output = content_of(_texts(item.output, f"{place}.output"))
    return {"role": "tool", "tool_call_id": item.call_id or item.id, "content": output}


def _texts(parts: Sequence[InputPart] | None, place: str) -> list[str]:
    found = []
    for index, part in enumerate(parts or ()):
        text = part.get("refusal") if part["type"] == "refusal" else part.get("text")
        if text is None:
            field = "refusal" if part["type"] == "refusal" else "text"
            raise missing(f"{place}[{index}].{field}", part["type"])
        found.append(text)
    return found


class _Turn:
    """What the assistant did between two messages of others."""

    def __init__(self) -> None:
        self._texts: list[str] = []
        self._reasoning: list[str] = []
        self._calls: list[Json] = []

    @property
    def messages(self) -> list[Json]:
        """The turn as a message; none where there was nothing."""
        if not (self._texts or self._reasoning or self._calls):
            return []
        return [assistant_turn(self._texts, self._reasoning, self._calls)]

    def ends_before(self, item: InputItem) -> bool:
        """Reasoning comes first, and there is one text."""
        if item.type == "reasoning":
            return bool(self._texts or self._calls)
        return item.type == "message" and bool(self._texts)

    def add(self, item: InputItem, place: str) -> None:
        called: dict[str, tuple[str, str | Json]] = {
            "function_call": (item.name or "", item.arguments or ""),
            "custom_tool_call": (item.name or "", {"input": item.input}),
            "local_shell_call": ("local_shell", item.action or {}),
        }
        if item.type in called:
            self._calls.append(tool_call(item.call_id or "", *called[item.type]))
            return
        said = _texts(item.content, f"{place}.content")
        if item.type == "reasoning":
            self._reasoning += said or _texts(item.summary, f"{place}.summary")
        else:
            self._texts += said
