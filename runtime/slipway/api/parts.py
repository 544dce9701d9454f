"""One output as a list of parts, for forms whose answers are one; whole, or as events of a stream."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Literal

from slipway.api.errors import ApiError, of_stream
from slipway.api.frontend import Frontend
from slipway.api.generate import Run
from slipway.api.message import new_call_id
from slipway.api.protocol.answers import AnswerPart, ChatTokenLogprob
from slipway.api.responses import named_event
from slipway.api.transcript import Piece
from slipway.text.parse.events import Arguments, CallBegin, Content, Event, Reasoning
from slipway.text.parse.output import Plain

Kind = Literal["text", "reasoning", "call"]


@dataclass(slots=True)
class Part:
    """A stretch of an output that is of one kind; of a call, `text` are its arguments."""

    index: int
    kind: Kind
    name: str = ""
    call_id: str = ""
    pieces: list[str] = field(default_factory=list)
    logprobs: list[ChatTokenLogprob] = field(default_factory=list)
    cut: bool = False
    """The output ended within it."""

    @property
    def text(self) -> str:
        return "".join(self.pieces)

    @property
    def arguments(self) -> str | None:
        """Of a call, a JSON object as the model wrote it; None where the output's end has cut them."""
        try:
            # Of Python's own reader, which takes what models write: numbers and escapes that others refuse.
            return self.text or "{}" if isinstance(json.loads(self.text or "{}"), dict) else None
        except (ValueError, RecursionError):
            return None


class PartsAnswer(ABC):
    """Writes the output of a run. Each step of it is told as events, which a whole answer does not send."""

    def __init__(self, front: Frontend, run: Run) -> None:
        make = run.order.parser
        self._front = front
        self._run = run
        self._parser = Plain() if make is None else make()
        self._parts: list[Part] = []
        self._open: Part | None = None
        """The one that grows: the last, or none."""
        self._shows_reasoning = True
        self._reasoning: list[str] = []
        self._finish_reason: str | None = None
        self._stop_reason: int | str | None = None

    async def whole(self) -> AnswerPart:
        """The body of an answer that is not streamed."""
        async for piece in self._run.pieces():
            self._take(piece)
        if self._parser.broken_off is not None:
            self._call_back(self._parser.broken_off)
        self._end()
        return self._finished(await self._count_reasoning())

    async def events(self) -> AsyncIterator[bytes]:
        """The same, as server-sent events."""
        try:
            for event in self._begin():
                yield named_event(event)
            async for piece in self._run.pieces():
                for event in self._take(piece):
                    yield named_event(event)
            for event in [*self._end(), *self._over(await self._count_reasoning())]:
                yield named_event(event)
        except Exception as error:
            for event in self._failed(of_stream(error)):
                yield named_event(event)

    @abstractmethod
    def _begin(self) -> list[AnswerPart]:
        """What comes before the first token."""

    @abstractmethod
    def _begun(self, part: Part) -> list[AnswerPart]:
        """A part opens."""

    @abstractmethod
    def _grown(self, part: Part, text: str) -> list[AnswerPart]:
        """It has more text, which it holds already."""

    @abstractmethod
    def _ended(self, part: Part) -> list[AnswerPart]:
        """It is complete, or cut by the output's end."""

    @abstractmethod
    def _over(self, reasoning_tokens: int) -> list[AnswerPart]:
        """All parts have ended."""

    @abstractmethod
    def _finished(self, reasoning_tokens: int) -> AnswerPart:
        """The whole answer."""

    @abstractmethod
    def _failed(self, error: ApiError) -> list[AnswerPart]:
        """The stream ends early."""

    def _read(self, piece: Piece) -> list[Event]:
        events = self._parser.push(piece.text)
        if piece.finish_reason is not None:
            self._finish_reason, self._stop_reason = piece.finish_reason, piece.stop_reason
            events += self._parser.finish()
        return events

    def _take(self, piece: Piece) -> list[AnswerPart]:
        return [told for event in self._read(piece) for told in self._add(event)]

    def _add(self, event: Event) -> list[AnswerPart]:
        match event:
            case CallBegin(name, call_id):
                return self._next("call", name, call_id or new_call_id())
            case Arguments(text):
                return self._more("call", text)
            case Content(text):
                return self._more("text", text)
            case Reasoning(text):
                self._reasoning.append(text)
                return self._more("reasoning", text) if self._shows_reasoning else []

    def _more(self, kind: Kind, text: str) -> list[AnswerPart]:
        begun = [] if self._open is not None and self._open.kind == kind else self._next(kind)
        assert self._open is not None
        self._open.pieces.append(text)
        return [*begun, *self._grown(self._open, text)]

    def _next(self, kind: Kind, name: str = "", call_id: str = "") -> list[AnswerPart]:
        ended = self._close()
        self._open = Part(len(self._parts), kind, name, call_id)
        self._parts.append(self._open)
        return [*ended, *self._begun(self._open)]

    def _close(self) -> list[AnswerPart]:
        ended = [] if self._open is None else self._ended(self._open)
        self._open = None
        return ended

    def _end(self) -> list[AnswerPart]:
        """The output is over; where it said nothing, clients still look for its text."""
        begun = [] if self._parts else self._next("text")
        if self._open is not None:
            in_call = self._open.kind == "call"
            broken = self._parser.broken_off is not None or self._open.arguments is None
            self._open.cut = broken if in_call else self._finish_reason == "length"
        return [*begun, *self._close()]

    def _call_back(self, text: str) -> None:
        """The last call is content after all."""
        while self._parts.pop().kind != "call":
            pass
        self._open = self._parts[-1] if self._parts else None
        self._add(Content(text))

    async def _count_reasoning(self) -> int:
        tokenizer = self._run.order.rules.tokenizer
        if not self._reasoning or tokenizer is None:
            return 0
        text = "".join(self._reasoning)

        def counted() -> int:
            return len(tokenizer.encode(text, add_special_tokens=False))

        return min(await self._front.in_thread(counted, len(text)), self._run.num_tokens)
