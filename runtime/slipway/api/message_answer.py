"""The answer of `/v1/messages`, in Anthropic's form."""

from __future__ import annotations

from msgspec import UNSET, Raw
from starlette.exceptions import HTTPException

from slipway.api.errors import ApiError, TooLong
from slipway.api.frontend import Frontend
from slipway.api.generate import Run
from slipway.api.parts import Part, PartsAnswer
from slipway.api.protocol.answers import AnswerPart
from slipway.api.protocol.message_answers import (
    AnthropicError,
    AnthropicErrorDetail,
    AnthropicMessage,
    Block,
    BlockDelta,
    BlockStart,
    BlockStop,
    InputJsonDelta,
    MessageDelta,
    MessageStart,
    MessageStop,
    MessageUsage,
    Ping,
    SignatureDelta,
    StopDelta,
    StopReason,
    TextBlock,
    TextDelta,
    ThinkingBlock,
    ThinkingDelta,
    ThinkingTokens,
    ToolUseBlock,
)
from slipway.api.protocol.messages import MessagesRequest

SIGNATURE = "unsigned"
"""Of thinking: it is taken back without proof that it came from here."""

_ERROR_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}


def anthropic_error(error: HTTPException, request_id: str) -> AnthropicError:
    default = "api_error" if error.status_code >= 500 else "invalid_request_error"
    kind = _ERROR_TYPES.get(error.status_code, default)
    return AnthropicError(error=AnthropicErrorDetail(type=kind, message=error.detail), request_id=request_id)


def too_long(error: TooLong) -> str:
    """In Anthropic's own words, by which agents know to shorten the conversation or to ask for less."""
    prompt, limit = error.prompt_tokens, error.limit
    if prompt >= limit or error.wanted is None:
        return f"prompt is too long: {prompt} tokens > {limit} maximum"
    return (
        f"input length and `max_tokens` exceed context limit: {prompt} + {error.wanted} > {limit}, "
        "decrease input length or `max_tokens` and try again"
    )


class MessageAnswer(PartsAnswer):
    def __init__(self, front: Frontend, body: MessagesRequest, run: Run) -> None:
        super().__init__(front, run)
        thinking = body.thinking
        self._shows_reasoning = thinking is None or thinking.type != "disabled"
        self._omits_reasoning = thinking is not None and thinking.display == "omitted"
        self._message = AnthropicMessage(
            id=run.order.request_id, model=run.model, content=[], usage=self._usage()
        )

    def _begin(self) -> list[AnswerPart]:
        """The message starts at once, so no client waits in silence. Its end says how much was cached."""
        return [MessageStart(message=self._message), Ping()]

    def _begun(self, part: Part) -> list[AnswerPart]:
        empty: dict[str, Block] = {
            "text": TextBlock(text=""),
            "reasoning": ThinkingBlock(thinking="", signature=""),
            "call": ToolUseBlock(id=part.call_id, name=part.name, input=Raw(b"{}")),
        }
        return [BlockStart(index=part.index, content_block=empty[part.kind])]

    def _grown(self, part: Part, text: str) -> list[AnswerPart]:
        match part.kind:
            case "text":
                return [BlockDelta(index=part.index, delta=TextDelta(text=text))]
            case "reasoning" if self._omits_reasoning:
                return []
            case "reasoning":
                return [BlockDelta(index=part.index, delta=ThinkingDelta(thinking=text))]
            case "call":
                return [BlockDelta(index=part.index, delta=InputJsonDelta(partial_json=text))]

    def _ended(self, part: Part) -> list[AnswerPart]:
        stop = BlockStop(index=part.index)
        if part.kind == "reasoning":
            return [BlockDelta(index=part.index, delta=SignatureDelta(signature=SIGNATURE)), stop]
        return [stop]

    def _over(self, reasoning_tokens: int) -> list[AnswerPart]:
        reason, sequence = self._stop()
        delta = StopDelta(stop_reason=reason, stop_sequence=sequence)
        return [MessageDelta(delta=delta, usage=self._usage(reasoning_tokens)), MessageStop()]

    def _finished(self, reasoning_tokens: int) -> AnthropicMessage:
        message = self._message
        message.content = [self._block(part) for part in self._parts]
        message.stop_reason, message.stop_sequence = self._stop()
        message.usage = self._usage(reasoning_tokens)
        return message

    def _failed(self, error: ApiError) -> list[AnswerPart]:
        return [anthropic_error(error, self._message.id.replace("msg_", "req_", 1))]

    def _stop(self) -> tuple[StopReason, str | None]:
        if isinstance(self._stop_reason, str):
            return "stop_sequence", self._stop_reason
        if self._finish_reason == "length":
            return "max_tokens", None
        calls = [part for part in self._parts if part.kind == "call"]
        return "tool_use" if calls and not calls[-1].cut else "end_turn", None

    def _usage(self, reasoning_tokens: int = 0) -> MessageUsage:
        run = self._run
        return MessageUsage(
            input_tokens=run.order.prompt_tokens - run.num_cached_tokens,
            cache_read_input_tokens=run.num_cached_tokens,
            output_tokens=run.num_tokens,
            output_tokens_details=(
                ThinkingTokens(thinking_tokens=reasoning_tokens) if reasoning_tokens else UNSET
            ),
        )

    def _block(self, part: Part) -> Block:
        if part.kind == "reasoning":
            return ThinkingBlock(thinking="" if self._omits_reasoning else part.text, signature=SIGNATURE)
        if part.kind == "call" and (arguments := part.arguments) is not None:
            return ToolUseBlock(id=part.call_id, name=part.name, input=Raw(arguments.encode()))
        return TextBlock(text=part.text)
