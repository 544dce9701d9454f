"""`POST /v1/completions`."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import AsyncIterator
from dataclasses import dataclass

from msgspec import UNSET
from starlette.requests import Request
from starlette.responses import Response

from slipway.api.answer import GeneratedAnswer
from slipway.api.frontend import Frontend
from slipway.api.gather import Whole
from slipway.api.generate import Run
from slipway.api.logprobs import likeliest
from slipway.api.prepare import completion_order
from slipway.api.protocol.answers import Completion, CompletionChoice, CompletionLogprobs, Usage
from slipway.api.protocol.completions import CompletionRequest
from slipway.api.responses import DONE, event
from slipway.api.routes.inference import Form, InferenceRoute, generate
from slipway.api.transcript import Piece
from slipway.engine.messages import TokenLogprobs


async def create_completion(request: Request) -> Response:
    return await generate(request, FORM)


@dataclass(frozen=True, slots=True)
class _Entry:
    """What `logprobs` has of one token."""

    token_id: int
    logprob: TokenLogprobs | None
    offset: int


class CompletionAnswer(GeneratedAnswer):
    """Writes the outputs of a run as a `text_completion`."""

    def __init__(self, front: Frontend, body: CompletionRequest, run: Run) -> None:
        super().__init__(front, body, run)
        self._body = body
        self._shows_ids |= run.order.rules.tokenizer is None
        self._lengths = [0] * len(run.outputs)
        """Characters given out of each."""
        self._waiting: list[list[_Entry]] = [[] for _ in run.outputs]
        """Of each, tokens whose text a stop string may yet cut off."""
        self._only_echo = body.max_tokens == 0

    async def whole(self) -> Completion:
        """The body of an answer that is not streamed."""
        return await self._in_one_piece(self._completion)

    def _completion(self, wholes: list[Whole]) -> Completion:
        kept = self._best(wholes)
        choices = [self._choice(index, number, whole) for index, (number, whole) in enumerate(kept)]
        delivered = sum(len(whole.token_ids) for _, whole in kept)
        return Completion(
            **self._head, choices=choices, usage=self._counted(delivered), metrics=self._metrics()
        )

    async def events(self) -> AsyncIterator[bytes]:
        """The same, as server-sent events."""
        begun = [False] * len(self._run.outputs)
        delivered = 0
        chunk = Completion(**self._head, choices=[], usage=None if self._ends_with_usage else UNSET)
        async for piece in self._run.pieces():
            delivered += len(piece.token_ids)
            choice = self._chunk_choice(piece, first=not begun[piece.number])
            if choice is None:
                continue
            begun[piece.number] = True
            chunk.choices = [choice]
            if self._counts_always:
                chunk.usage = self._counted(delivered)
            yield event(chunk)
        if self._ends_with_usage:
            last = Completion(**self._head, choices=[], usage=self._counted(), metrics=self._metrics())
            yield event(last)
        yield DONE

    def _counted(self, delivered: int | None = None) -> Usage:
        return self._usage(0 if self._only_echo else delivered)

    def _best(self, wholes: list[Whole]) -> list[tuple[int, Whole]]:
        """The `n` likeliest of each prompt's candidates, with their number."""
        candidates, n = self._run.order.n, self._body.choices
        numbered = list(enumerate(wholes))
        if candidates == n:
            return numbered
        kept = []
        for start in range(0, len(wholes), candidates):
            of_prompt = numbered[start : start + candidates]
            # Python's sort is stable: equally likely ones stay in the order of their seeds.
            kept += sorted(of_prompt, key=lambda one: -one[1].cumulative_logprob)[:n]
        return kept

    def _choice(self, index: int, number: int, whole: Whole) -> CompletionChoice:
        piece = Piece(
            number,
            whole.text,
            whole.token_ids,
            whole.logprobs,
            whole.finish_reason,
            whole.stop_reason,
            whole.offsets,
        )
        choice = self._chunk_choice(piece, first=True)
        assert choice is not None
        choice.index = index
        choice.prompt_logprobs = self._logprobs_of_prompt(number // self._run.order.n)
        return choice

    def _chunk_choice(self, piece: Piece, *, first: bool) -> CompletionChoice | None:
        """One entry of `choices`; None where there is nothing to tell. The first carries the echo."""
        if self._only_echo:  # what the engine computed all the same
            piece = Piece(piece.number, "", [], finish_reason=piece.finish_reason and "length")
        last = piece.finish_reason is not None
        prompt, text = self._run.outputs[piece.number].prompt, piece.text
        if first and self._body.echo:
            text = prompt.text + text
        logprobs = None
        if self._body.logprobs is not None:
            logprobs = self._logprobs(piece, len(text), first=first, last=last)
        tells_tokens = bool(self._shows_ids and piece.token_ids) or bool(logprobs and logprobs.tokens)
        if not (text or last or tells_tokens):
            return None
        choice = CompletionChoice(
            index=piece.number, text=text, logprobs=logprobs, finish_reason=piece.finish_reason
        )
        if last:
            choice.stop_reason = piece.stop_reason
        if self._shows_ids:
            choice.token_ids = piece.token_ids
            choice.prompt_token_ids = prompt.token_ids if first else UNSET
        return choice

    def _logprobs(self, piece: Piece, num_chars: int, *, first: bool, last: bool) -> CompletionLogprobs:
        """Of the tokens that the text has reached: of a stop string's, the text ends before them.

        num_chars  the text that goes out with them
        """
        prompt, waiting = self._run.outputs[piece.number].prompt, self._waiting[piece.number]
        if first and self._body.echo:
            echoed = zip(prompt.token_ids, self._echoed(piece.number), prompt.offsets, strict=True)
            waiting += (_Entry(*one) for one in echoed)
        before = len(prompt.text)
        told = zip(piece.token_ids, piece.logprobs or (), piece.offsets, strict=True)
        waiting += (_Entry(token_id, one, before + offset) for token_id, one, offset in told)
        self._lengths[piece.number] += num_chars
        length = self._lengths[piece.number]
        ready = len(waiting) if last else bisect_right(waiting, length, key=lambda entry: entry.offset)
        reached, self._waiting[piece.number] = waiting[:ready], waiting[ready:]
        return self._format.completion(
            [entry.token_id for entry in reached],
            [entry.logprob for entry in reached],
            [min(entry.offset, length) for entry in reached],
        )

    def _echoed(self, number: int) -> list[TokenLogprobs | None]:
        """Log-probabilities of an output's prompt."""
        shown, found = self._body.logprobs or 0, self._run.prompt_logprobs[number // self._run.order.n]
        return [one and likeliest(one, shown) for one in found or ()]


FORM = Form("cmpl-", CompletionRequest, completion_order, CompletionAnswer)
routes = [
    InferenceRoute(
        "/v1/completions",
        create_completion,
        "POST",
        body=CompletionRequest,
        answer=Completion,
        chunk=Completion,
    )
]
