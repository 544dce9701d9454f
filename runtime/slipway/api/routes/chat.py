"""`POST /v1/chat/completions`."""

from __future__ import annotations

from collections.abc import AsyncIterator

from msgspec import UNSET
from starlette.requests import Request
from starlette.responses import Response

from slipway.api.answer import GeneratedAnswer
from slipway.api.frontend import Frontend
from slipway.api.gather import Whole
from slipway.api.generate import Run
from slipway.api.message import Message
from slipway.api.prepare import chat_order
from slipway.api.protocol.answers import (
    ChatChoice,
    ChatChunk,
    ChatChunkChoice,
    ChatCompletion,
    ChatDelta,
    ChatLogprobs,
    ChatMessage,
)
from slipway.api.protocol.chat import ChatRequest, NamedTool
from slipway.api.responses import DONE, event
from slipway.api.routes.inference import Form, InferenceRoute, generate
from slipway.api.transcript import Piece
from slipway.engine.messages import TokenLogprobs
from slipway.text.messages import flat


async def create_chat_completion(request: Request) -> Response:
    return await generate(request, FORM)


class ChatAnswer(GeneratedAnswer):
    """Writes the outputs of a run as a `chat.completion`."""

    def __init__(self, front: Frontend, body: ChatRequest, run: Run) -> None:
        super().__init__(front, body, run)
        last = body.messages[-1]
        self._role = front.settings.response_role if body.prompt_ends_open else last.role
        self._echo = flat(last.content) if body.echo and last.role == self._role else ""
        self._shows_logprobs = bool(body.logprobs)
        self._messages: list[Message] = []
        """Of each output; empty where all of them are content."""
        if (make := run.order.parser) is not None:
            shown, named = body.include_reasoning is not False, isinstance(body.tool_choice, NamedTool)
            self._messages = [Message(make(), reasoning=shown, named=named) for _ in run.outputs]

    async def whole(self) -> ChatCompletion:
        """The body of an answer that is not streamed."""
        return await self._in_one_piece(self._completion)

    def _completion(self, wholes: list[Whole]) -> ChatCompletion:
        return ChatCompletion(
            **self._head,
            choices=[self._choice(index, whole) for index, whole in enumerate(wholes)],
            usage=self._usage(),
            metrics=self._metrics(),
            prompt_logprobs=self._logprobs_of_prompt(0),
            prompt_token_ids=self._run.order.prompts[0].token_ids if self._shows_ids else UNSET,
        )

    async def events(self) -> AsyncIterator[bytes]:
        """The same, as server-sent events."""
        usage = None if self._ends_with_usage else UNSET
        chunk = ChatChunk(**self._head, choices=[], usage=usage)

        def written(choice: ChatChunkChoice) -> bytes:
            chunk.choices = [choice]
            if self._counts_always:
                chunk.usage = self._usage(delivered)
            return event(chunk)

        begun = [False] * len(self._run.outputs)
        delivered = 0
        async for piece in self._run.pieces():
            if not begun[piece.number]:
                begun[piece.number] = True
                if self._shows_ids:
                    chunk.prompt_token_ids = self._run.order.prompts[0].token_ids
                opening = ChatDelta(role=self._role, content=self._echo)
                yield written(ChatChunkChoice(index=piece.number, delta=opening))
                chunk.prompt_token_ids = UNSET
            delivered += len(piece.token_ids)
            for choice in self._chunk_choices(piece):
                yield written(choice)
        if self._ends_with_usage:
            yield event(ChatChunk(**self._head, choices=[], usage=self._usage(), metrics=self._metrics()))
        yield DONE

    def _choice(self, index: int, whole: Whole) -> ChatChoice:
        finish_reason = whole.finish_reason
        if self._messages:
            message = self._messages[index].whole(whole.text, role=self._role, echo=self._echo)
            finish_reason = self._messages[index].finish_reason(finish_reason)
        else:
            message = ChatMessage(role=self._role, content=self._echo + whole.text)
        return ChatChoice(
            index=index,
            message=message,
            logprobs=self._logprobs(whole.token_ids, whole.logprobs),
            finish_reason=finish_reason,
            stop_reason=whole.stop_reason,
            token_ids=whole.token_ids if self._shows_ids else UNSET,
        )

    def _chunk_choices(self, piece: Piece) -> list[ChatChunkChoice]:
        """News of one output: a choice for each delta, of which the first tells of the tokens and the last
        of the end."""
        last = piece.finish_reason is not None
        finish_reason = piece.finish_reason
        if self._messages:
            message = self._messages[piece.number]
            deltas = message.deltas(piece.text, last=last)
            finish_reason = message.finish_reason(finish_reason)
        else:
            deltas = [ChatDelta(content=piece.text)] if piece.text else []
        logprobs = self._logprobs(piece.token_ids, piece.logprobs)
        if not deltas and (last or logprobs or self._shows_ids):
            deltas = [ChatDelta()]
        choices = [ChatChunkChoice(index=piece.number, delta=delta) for delta in deltas]
        if choices:
            choices[0].logprobs = logprobs
            choices[0].token_ids = piece.token_ids if self._shows_ids else UNSET
        if last:
            choices[-1].finish_reason, choices[-1].stop_reason = finish_reason, piece.stop_reason
        return choices

    def _logprobs(self, token_ids: list[int], logprobs: list[TokenLogprobs] | None) -> ChatLogprobs | None:
        if not self._shows_logprobs or logprobs is None:
            return None
        return self._format.chat(token_ids, logprobs)


FORM = Form("chatcmpl-", ChatRequest, chat_order, ChatAnswer, name="Chat Completions")
routes = [
    InferenceRoute(
        "/v1/chat/completions",
        create_chat_completion,
        "POST",
        body=ChatRequest,
        answer=ChatCompletion,
        chunk=ChatChunk,
    )
]
