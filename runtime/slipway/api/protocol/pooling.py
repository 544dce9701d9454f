"""What requests that pool share, and the bodies of their routes."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, StringConstraints, WithJsonSchema

from slipway.api.errors import ApiError
from slipway.api.protocol.base import (
    MAX_PROMPT_TOKENS,
    MAX_TEXT,
    Body,
    Count,
    Elsewhere,
    Int,
    ModelName,
    OrText,
    Text,
    TokenIds,
    Unbuilt,
    or_say,
)
from slipway.api.protocol.chat import MAX_MESSAGES, Message, TemplateFields

MAX_INPUTS = 2048
OfOutput = Annotated[Any, Elsewhere("nothing is written, and no token drawn", (None, False, "", "none"))]
"""A field about an output, which there is none of."""


class PooledFields(Body):
    model: ModelName | None = None
    user: Annotated[str, StringConstraints(max_length=1024)] | None = None
    request_id: Annotated[str, StringConstraints(pattern=r"^[\x21-\x7e]{1,128}$")] | None = None
    truncate_prompt_tokens: Annotated[Int, Field(ge=-1, le=1 << 30)] | None = None
    """How many tokens of each prompt to keep, its first; -1: as many as the context holds."""
    priority: Annotated[Int, Field(ge=-(1 << 31), le=(1 << 31) - 1)] | None = None
    cache_salt: Annotated[str, StringConstraints(min_length=1, max_length=1024)] | None = None

    prompt_embeds: Annotated[Any, Elsewhere("inputs are texts or tokens")] = None
    logprobs: OfOutput = None
    top_logprobs: OfOutput = None
    prompt_logprobs: OfOutput = None
    logits_processors: OfOutput = None
    tool_choice: OfOutput = None
    response_format: OfOutput = None
    structured_outputs: OfOutput = None
    guided_json: OfOutput = None
    guided_regex: OfOutput = None
    guided_choice: OfOutput = None
    guided_grammar: OfOutput = None

    @property
    def is_quick(self) -> bool:
        """Preparing it takes no longer than its texts let expect."""
        return True


class InputRequest(PooledFields, TemplateFields):
    """Either inputs or messages, which the chat template turns into one."""

    input: (
        Annotated[
            Text
            | Annotated[list[Text], Field(min_length=1, max_length=MAX_INPUTS, fail_fast=True)]
            | Annotated[TokenIds, Field(min_length=1)]
            | Annotated[list[TokenIds], Field(min_length=1, max_length=MAX_INPUTS, fail_fast=True)],
            or_say(
                "input should be a string, a list of strings, a list of token ids or a list of such lists; "
                f"not empty, at most {MAX_INPUTS} inputs of {MAX_PROMPT_TOKENS} tokens."
            ),
        ]
        | None
    ) = None
    messages: (
        Annotated[list[Message], Field(min_length=1, max_length=MAX_MESSAGES, fail_fast=True)] | None
    ) = None
    add_special_tokens: bool | None = None
    """Unset: of inputs, but not of messages, whose template writes them."""

    @property
    def inputs(self) -> list[str | list[int]]:
        """Each input by itself."""
        match self.input:
            case str():
                return [self.input]
            case [int(), *_]:
                return [self.input]  # type: ignore[list-item]
            case _:
                return list(self.input or ())  # type: ignore[arg-type]

    @property
    def is_quick(self) -> bool:
        return self.chat_template is None

    @property
    def prompt_ends_open(self) -> bool:
        """Nothing is answered: only who asks for it has the beginning of an answer in the prompt."""
        return bool(self.add_generation_prompt)

    def check(self) -> None:
        """What one field cannot know of another. Raises ApiError."""
        if (self.input is None) == (self.messages is None):
            has = "neither" if self.input is None else "both"
            message = f"Give either input or messages; this body has {has}."
            raise ApiError(message, param="input", code="invalid_value")
        for name in TemplateFields.model_fields:
            if self.messages is None and getattr(self, name):
                message = f"{name} is told to the chat template, which writes messages and not input: "
                raise ApiError(f"{message}leave it out.", param=name, code="invalid_value")
        self.check_end()


class EmbeddingRequest(InputRequest):
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Annotated[Int, Field(ge=1, le=1 << 20)] | None = None
    normalize: bool | None = None


class PoolingRequest(InputRequest):
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Annotated[Int, Field(ge=1, le=1 << 20)] | None = None
    activation: bool | None = None


class ClassifyRequest(InputRequest):
    activation: bool | None = None


class ScoreRequest(PooledFields):
    """Pairs of texts: one with each of the other side, or one by one."""

    text_1: Annotated[
        list[Text], Field(min_length=1, max_length=MAX_INPUTS, fail_fast=True), OrText(lambda text: text)
    ]
    text_2: Annotated[
        list[Text], Field(min_length=1, max_length=MAX_INPUTS, fail_fast=True), OrText(lambda text: text)
    ]
    activation: bool | None = None

    @property
    def pairs(self) -> list[tuple[str, str]]:
        """Raises ApiError where the sides do not fit each other."""
        ones, others = self.text_1, self.text_2
        if len(ones) == 1:
            ones = ones * len(others)
        if len(ones) != len(others):
            message = (
                f"text_1 has {len(self.text_1)} texts and text_2 {len(self.text_2)}: text_1 has one, or both "
                "have the same number."
            )
            raise ApiError(message, param="text_1", code="invalid_value")
        return list(zip(ones, others, strict=True))


class Document(Body):
    text: Text


_EITHER = WithJsonSchema(
    {
        "anyOf": [
            {"type": "string", "maxLength": MAX_TEXT},
            {
                "type": "object",
                "properties": {"text": {"type": "string", "maxLength": MAX_TEXT}},
                "required": ["text"],
            },
        ]
    }
)


def _as_document(value: object) -> object:
    """A text is a document of nothing else."""
    return {"text": value} if isinstance(value, str) else value


class RerankRequest(PooledFields):
    """As Jina's and Cohere's clients ask."""

    query: Text
    documents: Annotated[
        list[Annotated[Document, BeforeValidator(_as_document), _EITHER]],
        Field(min_length=1, max_length=MAX_INPUTS, fail_fast=True),
    ]
    top_n: Count | None = None
    """How many of the best are answered; 0 and unset: all."""
    return_documents: bool | None = None
    """Unset: yes."""
    max_tokens_per_doc: Annotated[Int, Field(ge=1, le=1 << 30)] | None = None
    """Tokens of each document that are read, the first ones."""
    activation: bool | None = None
    rank_fields: Annotated[Any, Unbuilt("documents with several fields")] = None
