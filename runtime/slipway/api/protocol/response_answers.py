"""What `/v1/responses` answers: a response, and the events of a streamed one."""

from __future__ import annotations

from typing import Any, Literal

from msgspec import UNSET, UnsetType, field

from slipway.api.protocol.answers import AnswerPart, ChatTokenLogprob

Status = Literal["in_progress", "completed", "incomplete", "failed"]


class OutputText(AnswerPart, kw_only=True, tag_field="type", tag="output_text"):
    text: str
    annotations: list[None] = field(default_factory=list)
    logprobs: list[ChatTokenLogprob] = field(default_factory=list)


class ReasoningText(AnswerPart, kw_only=True, tag_field="type", tag="reasoning_text"):
    text: str


class OutputMessage(AnswerPart, kw_only=True, tag_field="type", tag="message"):
    id: str
    status: Status
    role: Literal["assistant"] = "assistant"
    content: list[OutputText]


class ReasoningItem(AnswerPart, kw_only=True, tag_field="type", tag="reasoning"):
    id: str
    status: Status
    summary: list[None] = field(default_factory=list)
    content: list[ReasoningText]


class FunctionCallItem(AnswerPart, kw_only=True, tag_field="type", tag="function_call"):
    id: str
    status: Status
    call_id: str
    name: str
    arguments: str


class CustomCallItem(AnswerPart, kw_only=True, tag_field="type", tag="custom_tool_call"):
    id: str
    status: Status
    call_id: str
    name: str
    input: str


OutputItem = OutputMessage | ReasoningItem | FunctionCallItem | CustomCallItem


class InputTokensDetails(AnswerPart, kw_only=True):
    cached_tokens: int
    cache_write_tokens: int = 0


class OutputTokensDetails(AnswerPart, kw_only=True):
    reasoning_tokens: int


class ResponseUsage(AnswerPart, kw_only=True):
    input_tokens: int
    input_tokens_details: InputTokensDetails
    output_tokens: int
    output_tokens_details: OutputTokensDetails
    total_tokens: int


class ResponseError(AnswerPart, kw_only=True):
    code: str
    message: str


class IncompleteDetails(AnswerPart, kw_only=True):
    reason: Literal["max_output_tokens"] = "max_output_tokens"


class ResponseObject(AnswerPart, kw_only=True):
    """The answer, with what of the request has a bearing on it."""

    id: str
    object: Literal["response"] = "response"
    created_at: int
    completed_at: int | None = None
    status: Status
    error: ResponseError | None = None
    incomplete_details: IncompleteDetails | None = None
    model: str
    output: list[OutputItem]
    usage: ResponseUsage | None = None
    instructions: str | None
    max_output_tokens: int | None
    max_tool_calls: int | None
    tools: list[dict[str, Any]]
    tool_choice: str | dict[str, Any]
    parallel_tool_calls: bool
    text: dict[str, Any]
    reasoning: dict[str, Any]
    temperature: float
    top_p: float
    top_logprobs: int
    truncation: str
    store: bool
    """Whether it can be asked for again."""
    previous_response_id: str | None
    metadata: dict[str, str]
    prompt_cache_key: str | None
    safety_identifier: str | None
    user: str | None
    service_tier: Literal["default"] = "default"
    background: Literal[False] = False


class DeletedResponse(AnswerPart, kw_only=True):
    id: str
    object: Literal["response"] = "response"
    deleted: Literal[True] = True


class StreamEvent(AnswerPart, kw_only=True):
    """`sequence_number` counts the events of a stream from 0."""

    sequence_number: int = 0


class _Whole(StreamEvent, kw_only=True):
    response: ResponseObject


class ResponseCreated(_Whole, kw_only=True, tag_field="type", tag="response.created"):
    pass


class ResponseInProgress(_Whole, kw_only=True, tag_field="type", tag="response.in_progress"):
    pass


class ResponseCompleted(_Whole, kw_only=True, tag_field="type", tag="response.completed"):
    pass


class ResponseIncomplete(_Whole, kw_only=True, tag_field="type", tag="response.incomplete"):
    pass


class ResponseFailed(_Whole, kw_only=True, tag_field="type", tag="response.failed"):
    pass


class ErrorEvent(StreamEvent, kw_only=True, tag_field="type", tag="error"):
    code: str | None
    message: str
    param: str | None


class OutputItemAdded(StreamEvent, kw_only=True, tag_field="type", tag="response.output_item.added"):
    output_index: int
    item: OutputItem


class OutputItemDone(StreamEvent, kw_only=True, tag_field="type", tag="response.output_item.done"):
    output_index: int
    item: OutputItem


class _OfItem(StreamEvent, kw_only=True):
    item_id: str
    output_index: int
    content_index: int | UnsetType = UNSET
    """Not of calls."""


class ContentPartAdded(_OfItem, kw_only=True, tag_field="type", tag="response.content_part.added"):
    part: OutputText | ReasoningText


class ContentPartDone(_OfItem, kw_only=True, tag_field="type", tag="response.content_part.done"):
    part: OutputText | ReasoningText


class OutputTextDelta(_OfItem, kw_only=True, tag_field="type", tag="response.output_text.delta"):
    delta: str
    logprobs: list[ChatTokenLogprob]


class OutputTextDone(_OfItem, kw_only=True, tag_field="type", tag="response.output_text.done"):
    text: str
    logprobs: list[ChatTokenLogprob]


class ReasoningDelta(_OfItem, kw_only=True, tag_field="type", tag="response.reasoning_text.delta"):
    delta: str


class ReasoningDone(_OfItem, kw_only=True, tag_field="type", tag="response.reasoning_text.done"):
    text: str


class ArgumentsDelta(_OfItem, kw_only=True, tag_field="type", tag="response.function_call_arguments.delta"):
    delta: str


class ArgumentsDone(_OfItem, kw_only=True, tag_field="type", tag="response.function_call_arguments.done"):
    name: str
    arguments: str


class CustomInputDelta(_OfItem, kw_only=True, tag_field="type", tag="response.custom_tool_call_input.delta"):
    delta: str


class CustomInputDone(_OfItem, kw_only=True, tag_field="type", tag="response.custom_tool_call_input.done"):
    input: str


ResponseEvent = (
    ResponseCreated
    | ResponseInProgress
    | ResponseCompleted
    | ResponseIncomplete
    | ResponseFailed
    | ErrorEvent
    | OutputItemAdded
    | OutputItemDone
    | ContentPartAdded
    | ContentPartDone
    | OutputTextDelta
    | OutputTextDone
    | ReasoningDelta
    | ReasoningDone
    | ArgumentsDelta
    | ArgumentsDone
    | CustomInputDelta
    | CustomInputDone
)
