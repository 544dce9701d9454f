"""One request to many outputs: submits its prompts, follows their tokens, gives out text."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field

import msgspec

from slipway.api.admission import asleep
from slipway.api.errors import ApiError
from slipway.api.protocol.beam import Beams
from slipway.api.sampling import child_seed
from slipway.api.structured import Grammar
from slipway.api.transcript import Piece, Transcript, TranscriptRules, joined
from slipway.dist.frames import FrameTooLarge
from slipway.engine.client import Client
from slipway.engine.messages import (
    AdapterRef,
    AddRequest,
    Delta,
    ReasoningBounds,
    RequestTiming,
    TokenLogprobs,
    Work,
)
from slipway.engine.params import PoolingParams, SamplingParams
from slipway.engine.stream import EngineDead, Stream
from slipway.metrics.registry import ServerMetrics
from slipway.text.parse.output import Parser

serial = itertools.count()
"""Makes the engine's request ids unique where clients choose equal ones."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """One prompt, ready for the engine."""

    token_ids: list[int]
    params: SamplingParams
    text: str = ""
    """Where it is to stand before its outputs."""
    offsets: list[int] = field(default_factory=list)
    """Where its tokens begin in `text`, where that is wanted."""
    embeds: bytes = b""
    """What it is instead of tokens, as `AddRequest` has it."""
    type_from: int | None = None
    """As `PoolingParams` has it."""


@dataclass(frozen=True, slots=True)
class Order:
    """Everything that one HTTP request wants generated: `n` outputs of each prompt."""

    request_id: str
    prompts: list[Prompt]
    n: int
    rules: TranscriptRules
    priority: int = 0
    cache_salt: str = ""
    grammar: Grammar | None = None
    parser: Callable[[], Parser] | None = None
    """Makes what reads one output; None: all of it is content."""
    reasoning: ReasoningBounds | None = None
    beams: Beams | None = None
    """How the likeliest outputs are searched for; None: they are drawn."""
    pooling: PoolingParams | None = None
    """The prompts' rows are the answer; None: they are generated from."""

    @property
    def prompt_tokens(self) -> int:
        return sum(len(prompt.token_ids) for prompt in self.prompts)


class Output:
    """One output in the making; its number is prompt × n + child."""

    def __init__(self, number: int, engine_id: str, prompt: Prompt, order: Order, stream: Stream) -> None:
        self.number = number
        self.engine_id = engine_id
        self.prompt = prompt
        self.transcript = Transcript(number, order.rules, prompt.params, prompt.token_ids)
        self.timing: RequestTiming | None = None
        self.work: Work | None = None
        self.num_cached_tokens = 0
        self.finish_reason = ""
        """The engine's, or `abort`; empty until it has ended."""
        self.last_news: float | None = None
        """`time.monotonic()` of the latest token."""
        self.stream = stream


class Run:
    """An order on the engine. Whoever starts one calls `abort` in the end, whatever happened.

    `model` is its name in the answer, that of the `adapter` where there is one. `arrival` is when the request
    came, on `time.monotonic()`: latencies count from there.
    """

    def __init__(
        self,
        order: Order,
        engine: Client,
        metrics: ServerMetrics,
        arrival: float,
        model: str,
        adapter: AdapterRef | None = None,
    ) -> None:
        self.order = order
        self.model = model
        self.adapter = adapter
        self.arrival = arrival
        self.first_news: float | None = None
        """`time.monotonic()` of the first token of any output."""
        self.last_end = arrival
        """Of the latest end of one."""
        self.error = ""
        """What kept the server from answering."""
        self.outputs: list[Output] = []
        self.num_cached_tokens = 0
        """Prompt tokens that prefix hits spared, over all prompts."""
        self.prompt_logprobs: list[list[TokenLogprobs | None] | None] = [None] * len(order.prompts)
        """Of each prompt, where they are asked for: there before the first piece of its outputs."""
        self._engine = engine
        self._metrics = metrics
        self.ends: list[Callable[[Run], None]] = []
        """Each is called once, after the last output has ended."""
        self.stream_interval = 1
        """Tokens of an output in each piece between the first one and the last, at least."""
        self.texts: list[list[str]] | None = None
        """Of each output what has been given out of it, where that is to be kept."""

    @property
    def num_tokens(self) -> int:
        """Of all outputs, as far as they were delivered."""
        return sum(output.transcript.num_tokens for output in self.outputs)

    def start(self) -> None:
        """Hand all outputs to the engine. Raises ApiError where it has gone or they are too large for it."""
        order = self.order
        for index, prompt in enumerate(order.prompts):
            pooling = order.pooling
            if pooling is not None and prompt.type_from is not None:
                pooling = msgspec.structs.replace(pooling, type_from=prompt.type_from)
            for child in range(order.n):
                number = index * order.n + child
                engine_id = f"{order.request_id}-{number}-{next(serial)}"
                seed = child_seed(prompt.params.seed, child)
                params = msgspec.structs.replace(prompt.params, seed=seed)
                if child:  # they would all have the same
                    params = msgspec.structs.replace(params, num_prompt_logprobs=-1)
                request = AddRequest(
                    engine_id,
                    prompt.token_ids,
                    params,
                    order.priority,
                    order.cache_salt,
                    self.arrival,
                    order.grammar.text if order.grammar else "",
                    self.adapter,
                    reasoning=order.reasoning,
                    pooling=pooling,
                    prompt_embeds=prompt.embeds,
                )
                try:
                    stream = self._engine.submit(request)
                except EngineDead as dead:
                    self.error = str(dead)
                    self.abort()
                    raise engine_gone(dead) from None
                except FrameTooLarge as error:
                    self.abort()
                    message = f"The request is too large: {error}."
                    raise ApiError(message, code="request_too_large") from None
                if not self.outputs:
                    self._metrics.of[stream.engine].record_request(order.n)
                self.outputs.append(Output(number, engine_id, prompt, order, stream))

    def pieces(self) -> AsyncIterator[Piece]:
        """News of all outputs as they come, until all have ended. Raises ApiError where the engine
        fails."""
        found = self._found()
        if self.texts is not None:
            found = _kept(found, self.texts)
        return found if self.stream_interval == 1 else _in_steps(found, self.stream_interval)

    async def _found(self) -> AsyncIterator[Piece]:
        try:
            if len(self.outputs) == 1:
                output = self.outputs[0]
                async for delta in output.stream:
                    self._observe(output, len(delta.token_ids))
                    yield self._take(output, delta)
                    if output.finish_reason:
                        return
            else:
                n = self.order.n
                groups = [self.outputs[begin : begin + n] for begin in range(0, len(self.outputs), n)]
                async for output, delta in _merged(groups):
                    self._observe(output, len(delta.token_ids))
                    yield self._take(output, delta)
        except EngineDead as dead:
            self.error = str(dead)
            raise engine_gone(dead, logged=True) from None

    def abort(self) -> None:
        """Have the engine drop what has not ended; nothing where all has."""
        for output in self.outputs:
            if not output.finish_reason:
                self._end(output, None, "error" if self._engine.state == "dead" else "abort")
        ends, self.ends = self.ends, []
        for end in ends:
            end(self)

    def _take(self, output: Output, delta: Delta) -> Piece:
        output.timing = delta.timing or output.timing
        output.work = delta.work or output.work
        if delta.finish_reason == "error":
            raise self._failed(delta, [output])
        piece = output.transcript.take(delta)
        if delta.prompt_logprobs is not None:
            self.prompt_logprobs[output.number // self.order.n] = delta.prompt_logprobs
        if delta.num_cached_tokens:
            output.num_cached_tokens = delta.num_cached_tokens
            if output.number % self.order.n == 0:
                self.num_cached_tokens += delta.num_cached_tokens
        if piece.finish_reason is not None:
            self._end(output, delta, piece.finish_reason)
        return piece

    def _failed(self, delta: Delta, outputs: list[Output]) -> ApiError:
        """Ends those outputs that the engine could not go on with, and says so."""
        for output in outputs:
            self._end(output, delta, "error")
        if delta.unfit:
            return ApiError(f"The request cannot be answered: {delta.error}.", code="invalid_value")
        self.error = delta.error
        if self._engine.asleep:  # it fell asleep while the request was on its way
            return asleep(logged=True)
        message = f"The request failed in the engine: {delta.error}"
        return ApiError(message, status=500, code="request_failed", logged=True)

    def _end(self, output: Output, delta: Delta | None, reason: str) -> None:
        output.finish_reason = reason
        self.last_end = time.monotonic()
        if delta is None or delta.finish_reason is None:
            self._engine.abort(output.engine_id)
            if output.timing is not None:
                output.timing = msgspec.structs.replace(output.timing, last_token=self.last_end)
        self._metrics.of[output.stream.engine].record_finished(
            output.timing,
            len(output.prompt.token_ids),
            output.num_cached_tokens,
            output.transcript.num_tokens,
            output.prompt.params.max_tokens,
            reason,
        )

    def _observe(self, output: Output, num_tokens: int) -> None:
        """Latency histograms. Tokens that merged while the reader was slow share their time evenly."""
        if num_tokens == 0:
            return
        now, metrics = time.monotonic(), self._metrics.of[output.stream.engine]
        if output.last_news is None:
            self.first_news = self.first_news or now
            metrics.record_first_token(now - self.arrival)
        else:
            between = (now - output.last_news) / num_tokens
            for _ in range(num_tokens):
                metrics.record_inter_token(between)
        output.last_news = now


def engine_gone(dead: EngineDead, logged: bool = False) -> ApiError:
    """The answer to a request that the engine took with it; `logged` where its own line says so."""
    message = f"The engine has gone: {dead.failure.message}"
    return ApiError(message, status=503, code="engine_dead", headers={"Retry-After": "5"}, logged=logged)


async def _kept(pieces: AsyncIterator[Piece], texts: list[list[str]]) -> AsyncIterator[Piece]:
    """The same pieces. The text of each is added to those of its output."""
    async for piece in pieces:
        texts[piece.number].append(piece.text)
        yield piece


async def _in_steps(pieces: AsyncIterator[Piece], tokens: int) -> AsyncIterator[Piece]:
    """The same, joined to pieces of at least so many tokens. An output's first and last may have less."""
    held: dict[int, Piece] = {}
    begun: set[int] = set()
    try:
        async for piece in pieces:
            if (earlier := held.pop(piece.number, None)) is not None:
                piece = joined(earlier, piece)
            if piece.finish_reason is None and piece.number in begun and len(piece.token_ids) < tokens:
                held[piece.number] = piece
            else:
                begun.add(piece.number)
                yield piece
    except ApiError:
        for piece in held.values():
            yield piece
        raise


async def _merged(groups: list[list[Output]]) -> AsyncIterator[tuple[Output, Delta]]:
    """Deltas of many streams in the order in which they come, until every output has ended. The outputs of a
    prompt wait for news of its first one, which brings what is known of the prompt."""
    waiting = {_next(first): first for first, *_ in groups}
    behind = {first.number: others for first, *others in groups}
    try:
        while waiting:
            done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                output = waiting.pop(task)
                yield output, task.result()
                if not output.finish_reason:
                    waiting[_next(output)] = output
                for other in behind.pop(output.number, ()):
                    waiting[_next(other)] = other
    finally:
        for task in waiting:
            task.cancel()


def _next(output: Output) -> asyncio.Task[Delta]:
    return asyncio.ensure_future(anext(output.stream))
