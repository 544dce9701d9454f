"""`POST /v1/completions`."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, StringConstraints

from slipway.api.errors import ApiError
from slipway.api.protocol.base import MAX_PROMPT_TOKENS, Elsewhere, Int, Text, TokenIds, Unbuilt, or_say
from slipway.api.protocol.common import MAX_CHOICES, Generation

MAX_PROMPTS = 1024
DEFAULT_MAX_TOKENS = 16
MAX_EMBEDS_TEXT = 256 << 20
OfChat = Annotated[Any, Elsewhere("tools are called in a chat", (None, False, "", "none"))]
EmbedsText = Annotated[str, StringConstraints(min_length=1, max_length=MAX_EMBEDS_TEXT)]


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
    ] = ""
    prompt_embeds: (
        Annotated[
            EmbedsText
            | Annotated[list[EmbedsText], Field(min_length=1, max_length=MAX_PROMPTS, fail_fast=True)],
            or_say(
                "prompt_embeds should be the base64 text of a tensor's file or a list of such texts; not "
                f"empty, at most {MAX_PROMPTS} of {MAX_EMBEDS_TEXT >> 20} Mi characters."
            ),
        ]
        | None
    ) = None
    best_of: Annotated[Int, Field(ge=1, le=MAX_CHOICES)] | None = None
    logprobs: Annotated[Int, Field(ge=0, le=1 << 20)] | None = None
    suffix: Annotated[Any, Unbuilt("a suffix")] = None
    tools: OfChat = None
    tool_choice: OfChat = None

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
    def embeds(self) -> list[str]:
        """Each prompt of embeddings by itself; none where prompts have tokens."""
        given = self.prompt_embeds
        return [] if given is None else [given] if isinstance(given, str) else given

    @property
    def candidates(self) -> int:
        """Outputs to generate for each prompt; the best `n` are returned."""
        return max(self.best_of or 0, self.choices)

    @property
    def is_quick(self) -> bool:
        return self.prompt_embeds is None and super().is_quick  # numpy may have to be imported

    def check(self) -> None:
        """What one field cannot know of another. Raises ApiError."""
        self.check_shared()
        if self.prompt_embeds is None and "prompt" not in self.model_fields_set:
            raise ApiError("prompt is missing; it is required.", param="prompt", code="missing")
        if self.prompt_embeds is not None:
            self._check_embeds()
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

    def _check_embeds(self) -> None:
        """Raises ApiError for what asks for the tokens of a prompt that has none."""
        asks = {
            "prompt": bool(self.prompt),
            "echo": bool(self.echo),
            "prompt_logprobs": self.prompt_logprobs is not None,
            "truncate_prompt_tokens": self.truncate_prompt_tokens is not None,
            "return_token_ids": bool(self.return_token_ids),
            "use_beam_search": bool(self.use_beam_search),
        }
        for name, asked in asks.items():
            if asked:
                message = (
                    f"{name} does not go with prompt_embeds: such a prompt has no tokens. Send one of them."
                )
                raise ApiError(message, param=name, code="invalid_value")
