"""`POST /v1/completions`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

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


class CompletionAnswer(GeneratedAnswer):
    """Writes the outputs of a run as a `text_completion`."""

    def __init__(self, front: Frontend, body: CompletionRequest, run: Run) -> None:
        super().__init__(front, body, run)
        self._body = body
        self._shows_ids |= run.order.rules.tokenizer is None
        self._offsets = [0] * len(run.outputs)
        self._only_echo = body.max_tokens == 0

    async def whole(self) -> Completion:
        """The body of an answer that is not streamed."""
        return await self._in_one_piece(self._completion)

    def _completion(self, wholes: list[Whole]) -> Completion:
        kept = self._best(wholes)
        choices = [self._choice(index, number, whole) for index, (number, whole) in enumerate(kept)]
        delivered = sum(len(whole.token_ids) for _, whole in kept)
        return Completion(**self._head, choices=choices, usage=self._counted(delivered))

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
            yield event(Completion(**self._head, choices=[], usage=self._counted()))
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
        num_logprobs, last = self._body.logprobs, piece.finish_reason is not None
        prompt = self._run.outputs[piece.number].prompt
        text, token_ids = piece.text, piece.token_ids
        logprobs: Sequence[TokenLogprobs | None] = piece.logprobs or ()
        own_ids = token_ids
        if first and self._body.echo:
            text = prompt.text + text
            if num_logprobs is not None:
                token_ids = [*prompt.token_ids, *token_ids]
                of_prompt = self._run.prompt_logprobs[piece.number // self._run.order.n] or ()
                logprobs = [*(one and likeliest(one, num_logprobs) for one in of_prompt), *logprobs]
        shows_tokens = num_logprobs is not None or self._shows_ids
        if not text and not last and not (shows_tokens and token_ids):
            return None
        choice = CompletionChoice(
            index=piece.number,
            text=text,
            logprobs=None if num_logprobs is None else self._logprobs(piece.number, token_ids, logprobs),
            finish_reason=piece.finish_reason,
        )
        if last:
            choice.stop_reason = piece.stop_reason
        if self._shows_ids:
            choice.token_ids = own_ids
            choice.prompt_token_ids = prompt.token_ids if first else UNSET
        return choice

    def _logprobs(
        self, number: int, token_ids: list[int], logprobs: Sequence[TokenLogprobs | None]
    ) -> CompletionLogprobs:
        offset = self._offsets[number]
        written = self._format.completion(token_ids, logprobs, offset=offset)
        self._offsets[number] += sum(map(len, written.tokens))
        return written


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
