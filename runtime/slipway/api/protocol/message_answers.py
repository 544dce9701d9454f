"""What `/v1/messages` answers: a message, the events of a streamed one, and errors in Anthropic's form."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import UNSET, Meta, Raw, UnsetType

from slipway.api.protocol.answers import AnswerPart


class TextBlock(AnswerPart, kw_only=True, tag_field="type", tag="text"):
    text: str


class ThinkingBlock(AnswerPart, kw_only=True, tag_field="type", tag="thinking"):
    thinking: str
    signature: str


class ToolUseBlock(AnswerPart, kw_only=True, tag_field="type", tag="tool_use"):
    id: str
    name: str
    input: Annotated[Raw, Meta(extra_json_schema={"type": "object"})]
    """As the model wrote it."""


Block = TextBlock | ThinkingBlock | ToolUseBlock
StopReason = Literal["end_turn", "max_tokens", "stop_sequence", "tool_use"]


class ThinkingTokens(AnswerPart, kw_only=True):
    thinking_tokens: int


class MessageUsage(AnswerPart, kw_only=True):
    """The prompt has `input_tokens` and, beside them, those that the prefix cache had."""

    input_tokens: int
    cache_read_input_tokens: int
    cache_creation_input_tokens: int = 0
    output_tokens: int
    output_tokens_details: ThinkingTokens | UnsetType = UNSET


class AnthropicMessage(AnswerPart, kw_only=True, tag_field="type", tag="message"):
    id: str
    role: Literal["assistant"] = "assistant"
    model: str
    content: list[Block]
    stop_reason: StopReason | None = None
    stop_sequence: str | None = None
    usage: MessageUsage


class TokensCount(AnswerPart, kw_only=True):
    input_tokens: int


class AnthropicErrorDetail(AnswerPart, kw_only=True):
    type: str
    message: str


class AnthropicError(AnswerPart, kw_only=True, tag_field="type", tag="error"):
    """Every answer that is not a success, and the last event of a stream that failed."""

    error: AnthropicErrorDetail
    request_id: str


class MessageStart(AnswerPart, kw_only=True, tag_field="type", tag="message_start"):
    message: AnthropicMessage


class Ping(AnswerPart, kw_only=True, tag_field="type", tag="ping"):
    pass


class BlockStart(AnswerPart, kw_only=True, tag_field="type", tag="content_block_start"):
    index: int
    content_block: Block


class TextDelta(AnswerPart, kw_only=True, tag_field="type", tag="text_delta"):
    text: str


class ThinkingDelta(AnswerPart, kw_only=True, tag_field="type", tag="thinking_delta"):
    thinking: str


class SignatureDelta(AnswerPart, kw_only=True, tag_field="type", tag="signature_delta"):
    signature: str


class InputJsonDelta(AnswerPart, kw_only=True, tag_field="type", tag="input_json_delta"):
    partial_json: str


class BlockDelta(AnswerPart, kw_only=True, tag_field="type", tag="content_block_delta"):
    index: int
    delta: TextDelta | ThinkingDelta | SignatureDelta | InputJsonDelta


class BlockStop(AnswerPart, kw_only=True, tag_field="type", tag="content_block_stop"):
    index: int


class StopDelta(AnswerPart, kw_only=True):
    stop_reason: StopReason
    stop_sequence: str | None


class MessageDelta(AnswerPart, kw_only=True, tag_field="type", tag="message_delta"):
    delta: StopDelta
    usage: MessageUsage


class MessageStop(AnswerPart, kw_only=True, tag_field="type", tag="message_stop"):
    pass


MessageEvent = (
    MessageStart | Ping | BlockStart | BlockDelta | BlockStop | MessageDelta | MessageStop | AnthropicError
)
