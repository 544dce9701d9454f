"""Fields that all generating endpoints share."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, PrivateAttr, StringConstraints
from pydantic import field_validator as check

from slipway.api.errors import ApiError
from slipway.api.protocol.base import (
    Body,
    Count,
    Int,
    ModelName,
    Stops,
    StopString,
    TokenIds,
    Unbuilt,
    at_most,
    or_say,
)
from slipway.api.protocol.beam import BeamFields
from slipway.api.protocol.structured import Structured
from slipway.api.seeds import Draw, random_seed

MAX_CHOICES = 128


class StreamOptions(Body):
    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


QualifiedName = Annotated[str, StringConstraints(pattern=r"^\w+(\.\w+)+$", max_length=256)]


class LogitsProcessor(Body):
    """What makes one of arguments, which are any JSON."""

    qualname: QualifiedName
    args: Annotated[list[Any], Field(max_length=64, fail_fast=True)] | None = None
    kwargs: Annotated[dict[str, Any], Field(max_length=64), at_most(64)] | None = None


class Generation(Structured, BeamFields):
    """What chat and plain completions have in common: sampling, stopping, reporting, form."""

    model: ModelName | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: Annotated[Int, Field(ge=1, le=MAX_CHOICES)] | None = None
    user: Annotated[str, StringConstraints(max_length=1024)] | None = None
    request_id: Annotated[str, StringConstraints(pattern=r"^[\x21-\x7e]{1,128}$")] | None = None

    temperature: Annotated[float, Field(ge=0, le=100)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[Int, Field(ge=-1, le=1 << 30)] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    typical_p: Annotated[float, Field(gt=0, le=1)] | None = None
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    repetition_penalty: Annotated[float, Field(ge=0.01, le=100)] | None = None
    seed: Annotated[Int, Field(ge=-(1 << 63), le=(1 << 63) - 1)] | None = None
    logit_bias: Annotated[dict[str, float], Field(max_length=4096), at_most(4096)] | None = None
    allowed_token_ids: Annotated[TokenIds, Field(min_length=1)] | None = None
    bad_words: Annotated[list[StopString], Field(max_length=1024, fail_fast=True)] | None = None

    max_tokens: Count | None = None
    min_tokens: Count | None = None
    stop: Stops | None = None
    stop_token_ids: Annotated[TokenIds, Field(max_length=1024)] | None = None
    include_stop_str_in_output: bool | None = None
    ignore_eos: bool | None = None

    echo: bool | None = None
    add_special_tokens: bool | None = None
    skip_special_tokens: bool | None = None
    spaces_between_special_tokens: bool | None = None
    truncate_prompt_tokens: Annotated[Int, Field(ge=-1, le=1 << 30)] | None = None
    prompt_logprobs: Annotated[Int, Field(ge=0, le=1 << 20)] | None = None
    return_tokens_as_token_ids: bool | None = None
    return_token_ids: bool | None = None
    priority: Annotated[Int, Field(ge=-(1 << 31), le=(1 << 31) - 1)] | None = None
    cache_salt: Annotated[str, StringConstraints(min_length=1, max_length=1024)] | None = None

    prompt_embeds: Annotated[Any, Unbuilt("a prompt of embeddings")] = None
    logits_processors: Annotated[
        Annotated[list[QualifiedName | LogitsProcessor], Field(max_length=16, fail_fast=True)] | None,
        or_say(
            "logits_processors should be a list of at most 16 qualified names such as "
            '"package.module.name", or of {"qualname": …, "args": […], "kwargs": {…}}.'
        ),
    ] = None
    kv_transfer_params: Annotated[Any, Unbuilt("KV cache transfer")] = None

    _draw_seed: Draw = PrivateAttr(default_factory=lambda: random_seed)

    @check("logit_bias")
    @classmethod
    def _clipped_bias(cls, value: dict[str, float] | None) -> dict[str, float] | None:
        """A bias beyond 100 means a token that must come or must not, which 100 says already."""
        for token_id in value or {}:
            if not (token_id.isascii() and token_id.isdecimal() and len(token_id) <= 10):
                raise ValueError(f"logit_bias has the key {token_id[:40]!r}; keys are token ids.")
        return value and {token_id: min(max(bias, -100.0), 100.0) for token_id, bias in value.items()}

    @property
    def choices(self) -> int:
        return self.n or 1

    @property
    def is_quick(self) -> bool:
        """Preparing it takes no longer than the length of its body lets expect."""
        return not self.is_held

    def shared(self) -> dict[str, Any]:
        """Those of these fields that are given, by their names."""
        return {name: value for name in Generation.model_fields if (value := getattr(self, name)) is not None}

    def draw_seeds(self, draw: Draw) -> None:
        """Have prompts without a seed take the one that this gives."""
        self._draw_seed = draw

    def draw_seeds_like(self, other: Generation) -> None:
        """For the translation of another request."""
        self._draw_seed = other._draw_seed

    def seed_of_prompt(self) -> int:
        """Of the next prompt, as unsigned 64 bits; -1 is an old way to ask for a random one."""
        return self._draw_seed() if self.seed in (None, -1) else self.seed % (1 << 64)

    def check_shared(self) -> None:
        """What one field cannot know of another. Raises ApiError."""
        self.check_beams()
        if self.use_beam_search and self.stream:
            message = "use_beam_search cannot be streamed: the likeliest outputs are known only at the end."
            raise ApiError(message, param="use_beam_search", code="invalid_value")
        if self.stream_options is not None and not self.stream:
            message = "stream_options is given without stream: true, and has a meaning only with it."
            raise ApiError(message, param="stream_options", code="invalid_value")
        if self.prompt_logprobs is not None and self.stream:
            message = "prompt_logprobs is given with stream: true; only an answer in one piece has them."
            raise ApiError(message, param="prompt_logprobs", code="invalid_value")


class OneOutput(Generation):
    """Of endpoints whose answers have one output, and no place for the rest."""

    n: Annotated[Any, Unbuilt("more than one output", nothing=(None, 1))] = None
    echo: Annotated[Any, Unbuilt("an echo of the prompt")] = None
    prompt_logprobs: Annotated[Any, Unbuilt("log-probabilities of the prompt")] = None
    return_token_ids: Annotated[Any, Unbuilt("token ids in the answer")] = None
