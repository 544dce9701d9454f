"""`POST /v1/chat/completions`."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from slipway.api.frontend import FINGERPRINT, Frontend
from slipway.api.gather import Whole, gather
from slipway.api.generate import Run
from slipway.api.logprobs import LogprobFormat
from slipway.api.message import Message
from slipway.api.prepare import chat_order
from slipway.api.protocol.chat import ChatRequest, NamedTool
from slipway.api.responses import DONE, event
from slipway.api.routes.inference import InferenceRoute, generate
from slipway.api.transcript import Piece
from slipway.api.usage import usage
from slipway.text.messages import flat


async def create_chat_completion(request: Request) -> Response:
    return await generate(request, "chatcmpl", ChatRequest, chat_order, ChatAnswer)


class ChatAnswer:
    """Writes the outputs of a run as a `chat.completion`."""

    def __init__(self, front: Frontend, body: ChatRequest, run: Run) -> None:
        settings = front.settings
        tokenizer = run.order.rules.tokenizer
        as_ids = body.return_tokens_as_token_ids
        self._body = body
        self._run = run
        self._format = LogprobFormat(tokenizer, as_ids=settings.tokens_as_ids if as_ids is None else as_ids)
        self._details = settings.prompt_tokens_details
        last = body.messages[-1]
        self._role = settings.response_role if body.prompt_ends_open else last.role
        self._echo = flat(last.content) if body.echo and last.role == self._role else ""
        self._messages: list[Message] = []
        """Of each output; empty where all of them are content."""
        if (make := run.order.parser) is not None:
            shown, named = body.include_reasoning is not False, isinstance(body.tool_choice, NamedTool)
            self._messages = [Message(make(), reasoning=shown, named=named) for _ in run.outputs]
        self._head: dict[str, Any] = {
            "id": run.order.request_id,
            "object": "chat.completion",
            "created": int(time.time()),
            "model": settings.name,
            "system_fingerprint": FINGERPRINT,
        }

    async def whole(self) -> dict[str, Any]:
        """The body of an answer that is not streamed."""
        wholes = await gather(self._run)
        answer = {
            **self._head,
            "choices": [self._choice(index, whole) for index, whole in enumerate(wholes)],
            "usage": self._usage(),
        }
        prompt_logprobs = wholes[0].prompt_logprobs
        if self._body.prompt_logprobs is not None and prompt_logprobs is not None:
            answer["prompt_logprobs"] = self._format.prompt(
                self._run.order.prompts[0].token_ids, prompt_logprobs
            )
        return answer

    async def events(self) -> AsyncIterator[bytes]:
        """The same, as server-sent events."""
        options = self._body.stream_options
        with_usage = options is not None and bool(options.include_usage)
        continuous = with_usage and options is not None and bool(options.continuous_usage_stats)
        head = {**self._head, "object": "chat.completion.chunk"}
        chunk: dict[str, Any] = {**head, "choices": []}
        if with_usage:
            chunk["usage"] = None
        begun = [False] * len(self._run.outputs)
        delivered = 0
        async for piece in self._run.pieces():
            if not begun[piece.number]:
                begun[piece.number] = True
                chunk["choices"] = [self._opening(piece.number)]
                if continuous:
                    chunk["usage"] = self._usage(delivered)
                yield event(chunk)
            delivered += len(piece.token_ids)
            for choice in self._chunk_choices(piece):
                chunk["choices"] = [choice]
                if continuous:
                    chunk["usage"] = self._usage(delivered)
                yield event(chunk)
        if with_usage:
            yield event({**head, "choices": [], "usage": self._usage()})
        yield DONE

    def _usage(self, delivered: int | None = None) -> dict[str, Any]:
        return usage(self._run, with_details=self._details, completion_tokens=delivered)

    def _choice(self, index: int, whole: Whole) -> dict[str, Any]:
        message: dict[str, Any] = {"role": self._role, "refusal": None}
        finish_reason = whole.finish_reason
        if self._messages:
            message |= self._messages[index].whole(whole.text)
            message["content"] = (self._echo + (message["content"] or "")) or message["content"]
            finish_reason = self._messages[index].finish_reason(finish_reason)
        else:
            message |= {"content": self._echo + whole.text, "tool_calls": None}
        return {
            "index": index,
            "message": message,
            "logprobs": self._logprobs(whole.token_ids, whole.logprobs),
            "finish_reason": finish_reason,
            "stop_reason": whole.stop_reason,
        }

    def _opening(self, number: int) -> dict[str, Any]:
        delta = {"role": self._role, "content": self._echo}
        return {"index": number, "delta": delta, "logprobs": None, "finish_reason": None}

    def _chunk_choices(self, piece: Piece) -> list[dict[str, Any]]:
        """News of one output: a choice for each delta, of which the first has the log-probabilities."""
        last = piece.finish_reason is not None
        finish_reason = piece.finish_reason
        if self._messages:
            message = self._messages[piece.number]
            deltas = message.deltas(piece.text, last=last)
            finish_reason = message.finish_reason(finish_reason)
        else:
            deltas = [{"content": piece.text}] if piece.text else []
        if not deltas and (piece.logprobs or last):
            deltas = [{}]
        choices: list[dict[str, Any]] = [
            {"index": piece.number, "delta": delta, "logprobs": None, "finish_reason": None}
            for delta in deltas
        ]
        if choices:
            choices[0]["logprobs"] = self._logprobs(piece.token_ids, piece.logprobs)
        if last:
            choices[-1] |= {"finish_reason": finish_reason, "stop_reason": piece.stop_reason}
        return choices

    def _logprobs(self, token_ids: list[int], logprobs: list[Any] | None) -> Any:
        if not self._body.logprobs or logprobs is None:
            return None
        return self._format.chat(token_ids, logprobs)


routes = [InferenceRoute("/v1/chat/completions", create_chat_completion, "POST", body=ChatRequest)]
