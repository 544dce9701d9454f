"""The answer of `/v1/responses`."""

from __future__ import annotations

import json
import time
import uuid
from bisect import bisect_left, bisect_right
from itertools import accumulate
from typing import Any

import msgspec
import orjson

from slipway.api.answer import logprob_format
from slipway.api.as_chat import assistant_turn, tool_call
from slipway.api.errors import ApiError
from slipway.api.frontend import Frontend
from slipway.api.generate import Run
from slipway.api.parts import Kind, Part, PartsAnswer
from slipway.api.protocol.answers import AnswerPart, ChatTokenLogprob
from slipway.api.protocol.response_answers import (
    ArgumentsDelta,
    ArgumentsDone,
    ContentPartAdded,
    ContentPartDone,
    CustomCallItem,
    CustomInputDelta,
    CustomInputDone,
    ErrorEvent,
    FunctionCallItem,
    IncompleteDetails,
    InputTokensDetails,
    OutputItem,
    OutputItemAdded,
    OutputItemDone,
    OutputMessage,
    OutputText,
    OutputTextDelta,
    OutputTextDone,
    OutputTokensDetails,
    ReasoningDelta,
    ReasoningDone,
    ReasoningItem,
    ReasoningText,
    ResponseCompleted,
    ResponseCreated,
    ResponseError,
    ResponseFailed,
    ResponseIncomplete,
    ResponseInProgress,
    ResponseObject,
    ResponseUsage,
    Status,
    StreamEvent,
)
from slipway.api.protocol.responses import ResponsesRequest, TextFormat
from slipway.api.response_store import Stored, Turns
from slipway.api.transcript import Piece
from slipway.text.parse.events import Content, Event

_PREFIXES: dict[Kind, str] = {"text": "msg_", "reasoning": "rs_", "call": "fc_"}
_TEXT = TextFormat(type="text")


class ResponseAnswer(PartsAnswer):
    """`turns` is the conversation that the response follows on; None where it is not stored."""

    def __init__(self, front: Frontend, body: ResponsesRequest, run: Run, turns: Turns | None) -> None:
        super().__init__(front, run)
        self._response = described(body, run, stored=turns is not None)
        self._turns = turns
        self._format = logprob_format(front, body, run)
        self._customs = {one.name for one in body.tools or () if one.type == "custom"}
        self._ids: list[str] = []
        """Of the items."""
        self._waiting: list[ChatTokenLogprob] = []
        """Of tokens whose text is still to come, and of others before them."""
        self._silent = 0
        """How many of them came with parts that are no text."""
        self._num_events = 0

    def _begin(self) -> list[AnswerPart]:
        return self._numbered(
            ResponseCreated(response=self._response), ResponseInProgress(response=self._response)
        )

    def _read(self, piece: Piece) -> list[Event]:
        """Log-probabilities go with the text that their tokens brought; other parts have none."""
        if piece.logprobs is not None:
            self._waiting += self._format.chat(piece.token_ids, piece.logprobs).content
        events = super()._read(piece)
        if events and not any(isinstance(event, Content) for event in events):
            # Not dropped: the last ones may have begun a character, or what the parser holds back.
            self._silent = len(self._waiting)
        return events

    def _begun(self, part: Part) -> list[AnswerPart]:
        self._ids[part.index :] = [_PREFIXES[part.kind] + uuid.uuid4().hex]
        item = self._item(part, "in_progress")
        added = OutputItemAdded(output_index=part.index, item=item)
        if isinstance(item, FunctionCallItem | CustomCallItem):
            return self._numbered(added)
        item.content = []
        return self._numbered(added, ContentPartAdded(**self._place(part), part=self._content(part)))

    def _grown(self, part: Part, text: str) -> list[AnswerPart]:
        place = self._place(part)
        match part.kind:
            case "text":
                logprobs, self._waiting = split(self._waiting, text, self._silent)
                self._silent = 0
                part.logprobs += logprobs
                return self._numbered(OutputTextDelta(**place, delta=text, logprobs=logprobs))
            case "reasoning":
                return self._numbered(ReasoningDelta(**place, delta=text))
            case "call" if part.name in self._customs:
                return []  # it is told in one piece, when the JSON around it is complete
            case "call":
                return self._numbered(ArgumentsDelta(**place, delta=text))

    def _ended(self, part: Part) -> list[AnswerPart]:
        place, text = self._place(part), part.text
        item = self._item(part, "incomplete" if part.cut else "completed")
        self._response.output[part.index :] = [item]
        done: list[StreamEvent] = []
        match part.kind:
            case "text":
                done = [OutputTextDone(**place, text=text, logprobs=part.logprobs)]
            case "reasoning":
                done = [ReasoningDone(**place, text=text)]
            case "call" if isinstance(item, CustomCallItem):
                done = [
                    CustomInputDelta(**place, delta=item.input),
                    CustomInputDone(**place, input=item.input),
                ]
            case "call":
                done = [ArgumentsDone(**place, name=part.name, arguments=text)]
        if part.kind != "call":
            done.append(ContentPartDone(**place, part=self._content(part)))
        return self._numbered(*done, OutputItemDone(output_index=part.index, item=item))

    def _over(self, reasoning_tokens: int) -> list[AnswerPart]:
        response = self._finished(reasoning_tokens)
        if response.status == "incomplete":
            return self._numbered(ResponseIncomplete(response=response))
        return self._numbered(ResponseCompleted(response=response))

    def _finished(self, reasoning_tokens: int) -> ResponseObject:
        response, run = self._response, self._run
        if self._finish_reason == "length":
            response.status, response.incomplete_details = "incomplete", IncompleteDetails()
        else:
            response.status, response.completed_at = "completed", int(time.time())
        input_tokens = run.order.prompt_tokens
        response.usage = ResponseUsage(
            input_tokens=input_tokens,
            input_tokens_details=InputTokensDetails(cached_tokens=run.num_cached_tokens),
            output_tokens=run.num_tokens,
            output_tokens_details=OutputTokensDetails(reasoning_tokens=reasoning_tokens),
            total_tokens=input_tokens + run.num_tokens,
        )
        self._store()
        return response

    def _failed(self, error: ApiError) -> list[AnswerPart]:
        response = self._response
        response.status = "failed"
        code = "server_error" if error.status_code >= 500 else "invalid_prompt"
        response.error = ResponseError(code=code, message=error.detail)
        return self._numbered(
            ErrorEvent(code=error.code or code, message=error.detail, param=error.param),
            ResponseFailed(response=response),
        )

    def _store(self) -> None:
        store = self._front.responses
        if store is None or self._turns is None:
            return
        said = {kind: [part.text for part in self._parts if part.kind == kind] for kind in _PREFIXES}
        calls = [
            tool_call(part.call_id, part.name, arguments)  # as text: no number of it is too large
            for part in self._parts
            if part.kind == "call" and (arguments := part.arguments) is not None
        ]
        turn = orjson.dumps(assistant_turn(said["text"], said["reasoning"], calls))
        store.put(self._response.id, Stored(msgspec.json.encode(self._response), (*self._turns, turn)))

    def _numbered(self, *events: StreamEvent) -> list[AnswerPart]:
        for event in events:
            event.sequence_number = self._num_events
            self._num_events += 1
        return list(events)

    def _place(self, part: Part) -> dict[str, Any]:
        """Where something happens, as events say it."""
        place: dict[str, Any] = {"item_id": self._ids[part.index], "output_index": part.index}
        return place if part.kind == "call" else place | {"content_index": 0}

    def _content(self, part: Part) -> OutputText | ReasoningText:
        if part.kind == "reasoning":
            return ReasoningText(text=part.text)
        return OutputText(text=part.text, logprobs=[*part.logprobs])

    def _item(self, part: Part, status: Status) -> OutputItem:
        own_id = self._ids[part.index]
        if part.kind == "call" and part.name in self._customs:
            said = custom_input(part.text)
            return CustomCallItem(id=own_id, status=status, call_id=part.call_id, name=part.name, input=said)
        if part.kind == "call":
            return FunctionCallItem(
                id=own_id, status=status, call_id=part.call_id, name=part.name, arguments=part.text
            )
        content = self._content(part)
        if isinstance(content, ReasoningText):
            return ReasoningItem(id=own_id, status=status, content=[content])
        return OutputMessage(id=own_id, status=status, content=[content])


def split(
    waiting: list[ChatTokenLogprob], text: str, silent: int
) -> tuple[list[ChatTokenLogprob], list[ChatTokenLogprob]]:
    """The tokens that a text is made of, and those behind them. What stands before them was no text.

    silent  tokens at the beginning that are left out where the text is not found
    """
    # In bytes: a character may be several tokens'.
    ends = list(accumulate(len(one.bytes or ()) for one in waiting))
    said = text.encode()
    at = b"".join(bytes(one.bytes or ()) for one in waiting).rfind(said)
    if at < 0:  # a character that its tokens leave broken
        return waiting[silent:], []
    first, last = bisect_right(ends, at), bisect_left(ends, at + len(said))
    return waiting[first : last + 1], waiting[last + 1 :]


def custom_input(arguments: str) -> str:
    """The text that a custom tool is called with; of arguments that are no such object, all."""
    try:
        found = json.loads(arguments)
    except (ValueError, RecursionError):
        return arguments
    texts = [*found.values()] if isinstance(found, dict) else []
    if len(texts) > 1 and "input" in found:
        texts = [found["input"]]
    return texts[0] if len(texts) == 1 and isinstance(texts[0], str) else arguments


def described(body: ResponsesRequest, run: Run, *, stored: bool) -> ResponseObject:
    """A response before it says anything: what was asked for, and what holds where nothing was."""
    params, choice = run.order.prompts[0].params, body.tool_choice
    form = body.text.format if body.text else None
    effort = body.reasoning.effort if body.reasoning else None
    return ResponseObject(
        id=run.order.request_id,
        created_at=int(time.time()),
        status="in_progress",
        model=run.model,
        output=[],
        instructions=body.instructions,
        max_output_tokens=body.max_output_tokens,
        max_tool_calls=body.max_tool_calls,
        tools=[tool.shown for tool in body.tools or ()],
        tool_choice="auto" if choice is None else choice if isinstance(choice, str) else dict(choice),
        parallel_tool_calls=body.parallel_tool_calls is not False,
        text={"format": {name.rstrip("_"): value for name, value in form or _TEXT if value is not None}},
        reasoning={"effort": effort, "summary": None},
        temperature=params.temperature,
        top_p=params.top_p,
        top_logprobs=body.num_logprobs or 0,
        truncation=body.truncation or "disabled",
        store=stored,
        previous_response_id=body.previous_response_id,
        metadata=body.metadata or {},
        prompt_cache_key=body.prompt_cache_key,
        safety_identifier=body.safety_identifier,
        user=body.user,
    )
