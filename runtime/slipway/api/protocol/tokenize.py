"""`POST /tokenize` and `POST /detokenize`."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from slipway.api.errors import ApiError
from slipway.api.protocol.base import Body, ModelName, Text, TokenIds
from slipway.api.protocol.chat import MAX_MESSAGES, Message, TemplateFields


class TokenizeRequest(TemplateFields):
    """Either a prompt or messages, which the chat template turns into one."""

    model: ModelName | None = None
    prompt: Text | None = None
    messages: (
        Annotated[list[Message], Field(min_length=1, max_length=MAX_MESSAGES, fail_fast=True)] | None
    ) = None
    add_special_tokens: bool | None = None
    return_token_strs: bool | None = None

    def check(self) -> None:
        if (self.prompt is None) == (self.messages is None):
            message = "Give either prompt or messages; this body has " + (
                "neither." if self.prompt is None else "both."
            )
            raise ApiError(message, param="prompt", code="invalid_value")
        self.check_end()


class DetokenizeRequest(Body):
    model: ModelName | None = None
    tokens: TokenIds
