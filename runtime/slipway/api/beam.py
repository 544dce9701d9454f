"""Beam search: the likeliest outputs instead of drawn ones.

It finds what `transformers` finds with the same width, length penalty and early stopping. Each running beam
is an engine request of one token whose likeliest alternatives come back, so that it works on every device,
and prefix caching spares what beams share.
"""

from __future__ import annotations

import heapq
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

from slipway.api.generate import Output, Prompt, Run, engine_gone, serial
from slipway.api.logprobs import likeliest
from slipway.api.protocol.beam import Beams
from slipway.api.transcript import Piece
from slipway.engine.messages import AddRequest, Delta, TokenLogprobs
from slipway.engine.params import SamplingParams
from slipway.engine.stream import EngineDead, Stream


@dataclass(frozen=True, slots=True)
class Beam:
    """An output so far, and the log-probabilities of its tokens."""

    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprobs, ...] = ()
    total: float = 0.0


class BeamSearch:
    """The search behind one prompt. Whoever drives it finds the likeliest tokens behind each of `running`,
    until it is `over`."""

    def __init__(self, beams: Beams, ends: frozenset[int], max_tokens: int) -> None:
        self.running = [Beam()]
        self.over = False
        self._beams = beams
        self._ends = ends
        self._max_tokens = max_tokens
        self._finished: list[tuple[float, Beam]] = []
        """At most `width`, best first."""

    @property
    def length(self) -> int:
        """Tokens of each running beam."""
        return len(self.running[0].token_ids)

    @property
    def best(self) -> list[Beam]:
        return [beam for _, beam in self._finished]

    def advance(self, found: Sequence[TokenLogprobs]) -> None:
        """Take the likeliest next tokens of each running beam."""
        width = self._beams.width
        length = self.length + 1
        candidates = heapq.nsmallest(
            max(2, 1 + len(self._ends)) * width,  # `width` of them can run on, whatever ends
            (
                (-(beam.total + value), index, rank)
                for index, (beam, tops) in enumerate(zip(self.running, found, strict=True))
                for rank, (_, value) in enumerate(tops.top)
            ),
        )
        running: list[Beam] = []
        ended: list[tuple[float, Beam]] = []
        for place, (loss, index, rank) in enumerate(candidates):
            beam, top = self.running[index], found[index].top
            token_id, value = top[rank]
            drawn = TokenLogprobs(value, rank + 1, top)
            longer = Beam((*beam.token_ids, token_id), (*beam.logprobs, drawn), -loss)
            if token_id not in self._ends and length < self._max_tokens:
                running.append(longer)
            elif place < width:
                ended.append((self._score(-loss, length), longer))
        self.running = running[:width]
        if not (self._is_full and self._beams.early_stopping is True):
            self._finished = sorted((*self._finished, *ended), key=lambda one: -one[0])[:width]
        self.over = not running or not self._can_improve(length)

    @property
    def _is_full(self) -> bool:
        return len(self._finished) == self._beams.width

    def _score(self, total: float, length: int) -> float:
        return float(total / length**self._beams.length_penalty)

    def _can_improve(self, length: int) -> bool:
        """Whether a running beam may still come in among the finished ones."""
        beams = self._beams
        if not self._is_full:
            return True
        if beams.early_stopping is True:
            return False
        longest = beams.early_stopping == "never" and beams.length_penalty > 0
        reachable = self._score(self.running[0].total, self._max_tokens if longest else length)
        return reachable > self._finished[-1][0]


class BeamRun(Run):
    """Searches all prompts of an order side by side, a token at a time."""

    def start(self) -> None:
        order, first = self.order, self._engine.ranks[0]
        self._metrics.of[first].record_request(order.n)
        self._live: set[str] = set()
        """Engine requests under way."""
        for index, prompt in enumerate(order.prompts):
            self.outputs += [
                Output(index * order.n + child, "", prompt, order, Stream(first)) for child in range(order.n)
            ]

    async def _found(self) -> AsyncIterator[Piece]:
        """Each output in one piece."""
        order, beams = self.order, self.order.beams
        assert beams is not None
        searches = [
            BeamSearch(beams, frozenset(prompt.params.stop_token_ids), prompt.params.max_tokens)
            for prompt in order.prompts
        ]
        num_cached = [0] * len(searches)
        try:
            while under_way := [pair for pair in enumerate(searches) if not pair[1].over]:
                # All are submitted before the first is waited for: the engine computes them in one batch.
                asked = [(pair, self._ask(order.prompts[pair[0]], pair[1], beams)) for pair in under_way]
                for (index, search), streams in asked:
                    outputs = self.outputs[index * order.n : (index + 1) * order.n]
                    news = [await self._news(stream, outputs) for stream in streams]
                    if search.length == 0:
                        num_cached[index] = news[0].num_cached_tokens
                        self.prompt_logprobs[index] = news[0].prompt_logprobs
                    search.advance([delta.logprobs[0] for delta in news if delta.logprobs])
                    for output in outputs:
                        output.stream.engine = streams[0].engine
                        self._observe(output, 1)
        except EngineDead as dead:
            self.error = str(dead)
            raise engine_gone(dead, logged=True) from None
        for output in self.outputs:
            index, child = divmod(output.number, order.n)
            yield self._take(output, self._whole(output, searches[index].best[child], num_cached[index]))

    def abort(self) -> None:
        for engine_id in self._live:
            self._engine.abort(engine_id)
        super().abort()

    def _ask(self, prompt: Prompt, search: BeamSearch, beams: Beams) -> list[Stream]:
        """Has the engine compute what may follow on each running beam."""
        order, streams = self.order, []
        params = SamplingParams(
            max_tokens=1,
            temperature=0.0,
            num_logprobs=beams.num_tops,
            num_prompt_logprobs=-1 if search.length else prompt.params.num_prompt_logprobs,
        )
        for beam in search.running:
            engine_id = f"{order.request_id}-{next(serial)}"
            token_ids = [*prompt.token_ids, *beam.token_ids]
            request = AddRequest(
                engine_id,
                token_ids,
                params,
                order.priority,
                order.cache_salt,
                self.arrival,
                adapter=self.adapter,
            )
            streams.append(self._engine.submit(request))
            self._live.add(engine_id)
        return streams

    async def _news(self, stream: Stream, outputs: list[Output]) -> Delta:
        """What a request of one token answers, for the outputs of its prompt."""
        delta = await anext(stream)
        self._live.discard(delta.request_id)
        if delta.finish_reason == "error":
            raise self._failed(delta, outputs)
        return delta

    def _whole(self, output: Output, beam: Beam, num_cached_tokens: int) -> Delta:
        """A beam as the engine would tell of an output that came at once."""
        params, last = output.prompt.params, beam.token_ids[-1]
        stopped, number = last in params.stop_token_ids, params.num_logprobs
        return Delta(
            self.order.request_id,
            list(beam.token_ids),
            "stop" if stopped else "length",
            last if stopped else None,
            [likeliest(one, number) for one in beam.logprobs] if number >= 0 else None,
            num_cached_tokens=num_cached_tokens,
        )
