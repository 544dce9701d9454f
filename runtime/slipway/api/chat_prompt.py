"""Messages of a chat request as the template sees them."""

from __future__ import annotations

from typing import Any

from slipway.api.errors import ApiError, not_supported
from slipway.api.model import ServedModel
from slipway.api.protocol.chat import Json, Message, TemplateFields
from slipway.text.messages import TEXT_PARTS
from slipway.text.template import WrittenChat


def render_chat(
    body: TemplateFields, messages: list[Message], model: ServedModel, *, defaults: Json
) -> WrittenChat:
    """The prompt. Raises ApiError where the template refuses the messages."""
    template = model.template_of(body.chat_template)
    for index, message in enumerate(messages):
        _check_parts(message, index)
    try:
        return template.write(
            [message.model_dump(exclude_none=True) for message in messages],
            tools=[tool.model_dump(exclude_none=True) for tool in body.tools] if body.tools else None,
            add_generation_prompt=body.prompt_ends_open,
            continue_final_message=bool(body.continue_final_message),
            documents=body.documents,
            kwargs=body.variables(defaults),
        )
    except ValueError as error:
        raise ApiError(str(error), param="messages", code="invalid_value") from None
    except RecursionError:
        sentence = "The arguments of a tool call nest too deeply."
        raise ApiError(sentence, param="messages", code="invalid_value") from None


def _check_parts(message: Message, index: int) -> None:
    """Raises ApiError where a part is no text, with its place."""
    parts: list[Any] = message.content if isinstance(message.content, list) else []
    for position, part in enumerate(parts):
        kind = part.get("type")
        if not isinstance(kind, str) or kind not in TEXT_PARTS:
            param = f"messages[{index}].content[{position}]"
            raise not_supported(f"{param}: content of type {kind!r}", param)
        field = TEXT_PARTS[kind]
        if not isinstance(part.get(field), str):
            param = f"messages[{index}].content[{position}].{field}"
            raise ApiError(f"{param} should be a string.", param=param, code="invalid_value")
