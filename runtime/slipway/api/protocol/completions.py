"""`POST /v1/completions`."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from slipway.api.errors import ApiError
from slipway.api.protocol.base import MAX_PROMPT_TOKENS, Int, Text, TokenIds, Unbuilt, or_say
from slipway.api.protocol.common import MAX_CHOICES, Generation

MAX_PROMPTS = 1024
DEFAULT_MAX_TOKENS = 16


class CompletionRequest(Generation):
    prompt: Annotated[
        Text
        | Annotated[list[Text], Field(min_length=1, max_length=MAX_PROMPTS, fail_fast=True)]
        | Annotated[TokenIds, Field(min_length=1)]
        | Annotated[list[TokenIds], Field(min_length=1, max_length=MAX_PROMPTS, fail_fast=True)],
        or_say(
            "prompt should be a string, a list of strings, a list of token ids or a list of "
            f"such lists; not empty, at most {MAX_PROMPTS} prompts of {MAX_PROMPT_TOKENS} tokens."
        ),
    ]
    best_of: Annotated[Int, Field(ge=1, le=MAX_CHOICES)] | None = None
    logprobs: Annotated[Int, Field(ge=0, le=1 << 20)] | None = None
    suffix: Annotated[Any, Unbuilt("a suffix")] = None

    @property
    def prompts(self) -> list[str | list[int]]:
        """Each prompt by itself."""
        match self.prompt:
            case str():
                return [self.prompt]
            case [int(), *_]:
                return [self.prompt]  # type: ignore[list-item]
            case _:
                return list(self.prompt)  # type: ignore[arg-type]

    @property
    def candidates(self) -> int:
        """Outputs to generate for each prompt; the best `n` are returned."""
        return max(self.best_of or 0, self.choices)

    def check(self) -> None:
        """What one field cannot know of another. Raises ApiError."""
        self.check_shared()
        if self.best_of is not None and self.best_of < self.choices:
            message = f"best_of is {self.best_of}, fewer than the n of {self.choices} to return."
            raise ApiError(message, param="best_of", code="invalid_value")
        if self.stream and self.candidates > self.choices:
            message = (
                f"best_of {self.best_of} with n {self.choices} cannot be streamed: the best are "
                "known only at the end. Leave best_of out, or stream out."
            )
            raise ApiError(message, param="best_of", code="invalid_value")
        if self.max_tokens == 0 and not self.echo:
            message = "max_tokens is 0, which is allowed only with echo: true."
            raise ApiError(message, param="max_tokens", code="invalid_value")
