"""`POST /v1/completions`."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from slipway.api.frontend import FINGERPRINT, Frontend
from slipway.api.gather import Whole, gather
from slipway.api.generate import Run
from slipway.api.logprobs import LogprobFormat
from slipway.api.prepare import completion_order
from slipway.api.protocol.completions import CompletionRequest
from slipway.api.responses import DONE, event
from slipway.api.routes.inference import InferenceRoute, generate
from slipway.api.transcript import Piece
from slipway.api.usage import usage
from slipway.engine.messages import TokenLogprobs


async def create_completion(request: Request) -> Response:
    return await generate(request, "cmpl", CompletionRequest, completion_order, CompletionAnswer)


class CompletionAnswer:
    """Writes the outputs of a run as a `text_completion`."""

    def __init__(self, front: Frontend, body: CompletionRequest, run: Run) -> None:
        tokenizer = run.order.rules.tokenizer
        as_ids = body.return_tokens_as_token_ids
        if as_ids is None:
            as_ids = front.settings.tokens_as_ids
        self._body = body
        self._run = run
        self._prompts = [self._written(prompt) for prompt in body.prompts] if body.echo else []
        self._format = LogprobFormat(tokenizer, as_ids=as_ids)
        self._with_ids = tokenizer is None
        self._details = front.settings.prompt_tokens_details
        self._offsets = [0] * len(run.outputs)
        self._only_echo = body.max_tokens == 0
        self._head: dict[str, Any] = {
            "id": run.order.request_id,
            "object": "text_completion",
            "created": int(time.time()),
            "model": front.settings.name,
            "system_fingerprint": FINGERPRINT,
        }

    def _written(self, prompt: str | list[int]) -> str:
        """A prompt as text, to stand before its output."""
        tokenizer = self._run.order.rules.tokenizer
        if isinstance(prompt, str) or tokenizer is None:
            return prompt if isinstance(prompt, str) else ""
        return tokenizer.decode(prompt, skip_special_tokens=False)

    async def whole(self) -> dict[str, Any]:
        """The body of an answer that is not streamed."""
        wholes = await gather(self._run)
        kept = self._best(wholes)
        choices = [self._choice(index, number, whole) for index, (number, whole) in enumerate(kept)]
        delivered = 0 if self._only_echo else sum(len(whole.token_ids) for _, whole in kept)
        counted = usage(self._run, with_details=self._details, completion_tokens=delivered)
        return {**self._head, "choices": choices, "usage": counted}

    async def events(self) -> AsyncIterator[bytes]:
        """The same, as server-sent events."""
        options = self._body.stream_options
        with_usage = options is not None and bool(options.include_usage)
        continuous = with_usage and options is not None and bool(options.continuous_usage_stats)
        begun = [False] * len(self._run.outputs)
        chunk = {**self._head, "choices": []}
        if with_usage:
            chunk["usage"] = None
        async for piece in self._run.pieces():
            choice = self._chunk_choice(piece, first=not begun[piece.number])
            if choice is None:
                continue
            begun[piece.number] = True
            chunk["choices"] = [choice]
            if continuous:
                chunk["usage"] = self._usage()
            yield event(chunk)
        if with_usage:
            yield event({**self._head, "choices": [], "usage": self._usage()})
        yield DONE

    def _usage(self) -> dict[str, Any]:
        delivered = 0 if self._only_echo else None
        return usage(self._run, with_details=self._details, completion_tokens=delivered)

    def _best(self, wholes: list[Whole]) -> list[tuple[int, Whole]]:
        """The `n` likeliest of each prompt's candidates, with their number."""
        candidates, n = self._body.candidates, self._body.choices
        numbered = list(enumerate(wholes))
        if candidates == n:
            return numbered
        kept = []
        for start in range(0, len(wholes), candidates):
            of_prompt = numbered[start : start + candidates]
            # Python's sort is stable: equally likely ones stay in the order of their seeds.
            kept += sorted(of_prompt, key=lambda one: -one[1].cumulative_logprob)[:n]
        return kept

    def _choice(self, index: int, number: int, whole: Whole) -> dict[str, Any]:
        piece = Piece(
            number,
            whole.text,
            whole.token_ids,
            whole.logprobs,
            whole.prompt_logprobs,
            whole.finish_reason,
            whole.stop_reason,
        )
        choice = self._chunk_choice(piece, first=True)
        assert choice is not None
        choice["index"] = index
        if self._body.prompt_logprobs is not None and whole.prompt_logprobs is not None:
            prompt_ids = self._run.outputs[number].prompt.token_ids
            choice["prompt_logprobs"] = self._format.prompt(prompt_ids, whole.prompt_logprobs)
        return choice

    def _chunk_choice(self, piece: Piece, *, first: bool) -> dict[str, Any] | None:
        """One entry of `choices`; None where there is nothing to tell. The first carries the echo."""
        with_logprobs = self._body.logprobs is not None
        text, token_ids, logprobs = piece.text, piece.token_ids, piece.logprobs or ()
        if self._only_echo:
            text, token_ids, logprobs = "", [], ()
        if first and self._body.echo:
            text = self._prompts[piece.number // self._run.order.n] + text
            if with_logprobs:
                token_ids = [*self._run.outputs[piece.number].prompt.token_ids, *token_ids]
                logprobs = [*(piece.prompt_logprobs or ()), *logprobs]
        ids_shown = with_logprobs or self._with_ids
        if not text and piece.finish_reason is None and not (ids_shown and token_ids):
            return None
        choice: dict[str, Any] = {
            "index": piece.number,
            "text": text,
            "logprobs": self._logprobs(piece.number, token_ids, logprobs) if with_logprobs else None,
            "finish_reason": piece.finish_reason,
        }
        if self._only_echo and piece.finish_reason is not None:
            choice["finish_reason"] = "length"
        if piece.finish_reason is not None:
            choice["stop_reason"] = piece.stop_reason
        if self._with_ids:
            choice["token_ids"] = token_ids
        return choice

    def _logprobs(
        self, number: int, token_ids: list[int], logprobs: Sequence[TokenLogprobs | None]
    ) -> dict[str, Any]:
        offset = self._offsets[number]
        written = self._format.completion(token_ids, logprobs, offset=offset)
        self._offsets[number] += sum(map(len, written["tokens"]))
        return written


routes = [InferenceRoute("/v1/completions", create_completion, "POST", body=CompletionRequest)]
