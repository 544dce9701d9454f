"""The bodies of answers: what they hold, how they are written, what the API's document says of them.

A field that is UNSET is left out; None is written as null.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from slipway import __version__

FINGERPRINT = f"slipway-{__version__}"


class AnswerPart(msgspec.Struct, kw_only=True):
    """The body of an answer, or a part of one."""


class PromptTokensDetails(AnswerPart, kw_only=True):
    cached_tokens: int


class Usage(AnswerPart, kw_only=True):
    """Tokens of the prompts and of what was delivered."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails | UnsetType = UNSET


class RequestMetrics(AnswerPart, kw_only=True):
    """Times of a request with one output; null where it did not come so far."""

    time_to_first_token_ms: float | None = None
    """From when it began to be computed."""
    generation_time_ms: float | None = None
    """From the first token to the last."""
    queue_time_ms: float | None = None
    """From its arrival until it began to be computed."""
    mean_itl_ms: float | None = None
    """Between two tokens."""
    tokens_per_second: float | None = None
    """Of the whole time in which it was computed."""


class Head(AnswerPart, kw_only=True):
    """With what the answers of chat and plain completions begin, and each chunk of a stream."""

    id: str
    created: int
    model: str
    system_fingerprint: str = FINGERPRINT


class PromptTokenLogprob(AnswerPart, kw_only=True):
    logprob: float
    rank: int
    decoded_token: str


PromptLogprobs = list[dict[str, PromptTokenLogprob] | None]
"""For each prompt token, its own and the likeliest by token id; null for the first one."""


class CompletionLogprobs(AnswerPart, kw_only=True):
    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class CompletionChoice(AnswerPart, kw_only=True):
    index: int
    text: str
    logprobs: CompletionLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: int | str | UnsetType | None = UNSET
    token_ids: list[int] | UnsetType = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET
    prompt_logprobs: PromptLogprobs | UnsetType = UNSET


class Completion(Head, kw_only=True):
    """The body of a completion, and each chunk of a streamed one."""

    object: Literal["text_completion"] = "text_completion"
    choices: list[CompletionChoice]
    usage: Usage | UnsetType | None = UNSET
    metrics: RequestMetrics | UnsetType = UNSET


class TopLogprob(AnswerPart, kw_only=True):
    token: str
    logprob: float
    bytes: list[int] | None
    """Its UTF-8; null where the server has no tokenizer."""


class ChatTokenLogprob(TopLogprob, kw_only=True):
    top_logprobs: list[TopLogprob]


class ChatLogprobs(AnswerPart, kw_only=True):
    content: list[ChatTokenLogprob]
    refusal: None = None


class FunctionCall(AnswerPart, kw_only=True):
    name: str | UnsetType = UNSET
    arguments: str


class ToolCall(AnswerPart, kw_only=True):
    id: str
    type: Literal["function"] = "function"
    function: FunctionCall


class ToolCallDelta(AnswerPart, kw_only=True):
    """`id`, `type` and the name come once, with the call's begin."""

    index: int
    id: str | UnsetType = UNSET
    type: Literal["function"] | UnsetType = UNSET
    function: FunctionCall


class ChatMessage(AnswerPart, kw_only=True):
    role: str
    content: str | None
    refusal: None = None
    tool_calls: list[ToolCall] | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    """The same by its newer name."""


class ChatDelta(AnswerPart, kw_only=True):
    role: str | UnsetType = UNSET
    content: str | UnsetType = UNSET
    tool_calls: list[ToolCallDelta] | UnsetType = UNSET
    reasoning_content: str | UnsetType = UNSET
    reasoning: str | UnsetType = UNSET


class ChatChoice(AnswerPart, kw_only=True):
    index: int
    message: ChatMessage
    logprobs: ChatLogprobs | None = None
    finish_reason: str | None
    stop_reason: int | str | None = None
    token_ids: list[int] | UnsetType = UNSET


class ChatChunkChoice(AnswerPart, kw_only=True):
    index: int
    delta: ChatDelta
    logprobs: ChatLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: int | str | UnsetType | None = UNSET
    token_ids: list[int] | UnsetType = UNSET


class ChatCompletion(Head, kw_only=True):
    object: Literal["chat.completion"] = "chat.completion"
    choices: list[ChatChoice]
    usage: Usage
    metrics: RequestMetrics | UnsetType = UNSET
    prompt_logprobs: PromptLogprobs | UnsetType = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET


class ChatChunk(Head, kw_only=True):
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    choices: list[ChatChunkChoice]
    usage: Usage | UnsetType | None = UNSET
    metrics: RequestMetrics | UnsetType = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET


class ModelCard(AnswerPart, kw_only=True):
    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str = "slipway"
    root: str
    parent: str | None = None
    max_model_len: int


class ModelList(AnswerPart, kw_only=True):
    object: Literal["list"] = "list"
    data: list[ModelCard]


class Tokens(AnswerPart, kw_only=True):
    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None = None


class TokenizerInfo(AnswerPart, kw_only=True):
    """Beside these, what the model's tokenizer_config.json says, and the special tokens by their names."""

    tokenizer_class: str | None
    chat_template: str | None
    """The one in effect."""
    vocab_size: int
    model_max_length: int | None


class DetokenizedText(AnswerPart, kw_only=True):
    prompt: str


class ErrorDetail(AnswerPart, kw_only=True):
    message: str
    type: str
    param: str | None = None
    code: str | None = None


class Error(AnswerPart, kw_only=True):
    """Every answer that is not a success, and the last event of a stream that failed."""

    error: ErrorDetail


class ServerMemory(AnswerPart, kw_only=True):
    """What the model takes in bytes, as estimated before it was read and as measured: of the first device, or
    of the host."""

    capacity: int
    estimated: int
    at_rest: int
    """Of a host, before the first request; of a device as much as `estimated`."""
    measured: int | UnsetType = UNSET
    """When the server had become ready; absent before, and where nobody can tell."""
    kv_tokens: int
    max_model_len: int
    """The largest that fits."""
    short: str | UnsetType = UNSET
    """Which part is too large, as `fit.short.Part` names them; absent where the model fits."""


class Progress(AnswerPart, kw_only=True):
    """What /ready says."""

    phase: str
    done: int = 0
    total: int = 0
    memory: ServerMemory | UnsetType = UNSET
    """Absent where nobody knows how much such a model needs."""


class Sleeping(AnswerPart, kw_only=True):
    is_sleeping: bool


class Version(AnswerPart, kw_only=True):
    version: str


class ServerLoad(AnswerPart, kw_only=True):
    server_load: int


class ServerState(AnswerPart, kw_only=True):
    """How the server was started, without secrets, and what the engine made of it."""

    version: str
    arguments: dict[str, Any]
    engine: dict[str, Any] | None
