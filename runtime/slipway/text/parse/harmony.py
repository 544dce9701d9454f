"""Harmony, in which the gpt-oss models write: an output is a run of messages, each in a channel.

<|channel|>analysis<|message|>They want rain.<|end|>
<|start|>assistant<|channel|>commentary to=functions.f <|constrain|>json<|message|>{}<|call|>

The channel `analysis` is reasoning, a message to a function is a call, and all others are content. The prompt
ends within the first message. Source: OpenAI's description of the format.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from slipway.text.parse.calls import CallFormat, CallParser, OpenCall
from slipway.text.parse.events import Content, Reasoning
from slipway.text.parse.json_text import read_value
from slipway.text.parse.reader import Broken, Reading
from slipway.text.parse.shapes import Tools

START, CHANNEL, CONSTRAIN, MESSAGE = "<|start|>", "<|channel|>", "<|constrain|>", "<|message|>"
BEGINS = (START, CHANNEL, MESSAGE)
"""A message begins with one of these: what stands before may be left out, or be the prompt's."""
END = "<|end|>"
ENDS = (END, "<|call|>", "<|return|>")
MARKERS = frozenset((*BEGINS, CONSTRAIN, *ENDS))

_FUNCTION = re.compile(r"\bto=functions\.([^\s<]+)")
_ANALYSIS = re.compile(rf"{re.escape(CHANNEL)}\s*analysis\b")


@dataclass(frozen=True, slots=True)
class HarmonyFormat(CallFormat):
    """Calls among messages of other kinds, so that one parser reads it all."""

    def parser(self, tools: Tools, prompt: str) -> CallParser:
        return HarmonyParser(tools, prompt)


class HarmonyParser(CallParser):
    """Reads one output: reasoning, content and calls."""

    def __init__(self, tools: Tools | None, prompt: str = "") -> None:
        """tools   None: nothing is a call, and messages to functions are content
        prompt  what the output follows; it has begun the first message
        """
        super().__init__(HARMONY, tools or {})
        self._with_calls = tools is not None
        begun = prompt.rpartition(START)[2] if START in prompt else ""
        header, message, text = begun.partition(MESSAGE)
        over = any(end in text for end in ENDS)
        self._header = "" if over else header
        """What the prompt has of the first message's header."""
        self._inside = bool(message) and not over
        """All of it, and perhaps some of the text."""
        self._kinds: set[type[Content | Reasoning]] = set()
        """Of the messages that have had text."""

    def __str__(self) -> str:
        return "the parser of channels"

    def _read(self) -> Reading[None]:
        """The whole output: messages, and what else may stand between them, which is content."""
        reader = self._reader
        if self._inside:
            yield from self._text(self._header)
        else:
            yield from reader.skip_space()
            begun = yield from reader.take("to=")
            reader.go_back()
            if begun:
                yield from self._one()
        while self._call is None:
            reader.passing = True
            found = yield from reader.before((*BEGINS, *ENDS), self._say)
            reader.passing = False
            if found is None:
                break
            if found in ENDS:
                reader.at += len(found)
            else:
                yield from self._one()
        if self._call is None and not self.num_calls:
            self._tell_space()

    def _one(self) -> Reading[None]:
        """A message from its beginning on; one whose header does not end is content."""
        reader = self._reader
        reader.forget()
        yield from reader.take(START)
        if (yield from reader.before((MESSAGE, START, *ENDS), lambda text: None)) != MESSAGE:
            self._say(reader.kept)
            return
        header, self._header = self._header + reader.kept, ""
        reader.at += len(MESSAGE)
        function = _FUNCTION.search(header)
        if function is None or not self._with_calls:
            self._space = ""
            yield from self._text(header)
            return
        body = reader.at
        try:
            yield from self._function(function[1])
        except Broken:
            if self._call is not None and self._call.begun:
                return  # it stays open: nothing follows
            reader.at = body
            self._say(reader.kept)
        self._call = None

    def _function(self, name: str) -> Reading[None]:
        """The arguments of a call, to the end of its message. Raises Broken where they are no object."""
        reader = self._reader
        self._call = call = OpenCall(self)
        yield from reader.skip_space()
        if (yield from reader.take_one(ENDS)) is not None:
            call.begin(name)
            call.arguments("{}")
            return
        if (yield from reader.peek()) != "{":
            raise Broken("arguments are an object")
        call.begin(name)
        yield from read_value(reader, call.arguments)
        yield from reader.skip_space()
        end = yield from reader.take_one((*ENDS, *BEGINS))
        if end in BEGINS:
            reader.at -= len(end)
        elif end is None and (yield from reader.peek()):
            raise Broken("the call does not end behind its arguments")

    def _text(self, header: str) -> Reading[None]:
        """The rest of a message that is no call; a line end parts it from the one before of its kind."""
        reader = self._reader
        kind = Reasoning if _ANALYSIS.search(header) and not _FUNCTION.search(header) else Content
        between = "\n" if kind in self._kinds else ""

        def emit(text: str) -> None:
            nonlocal between
            if text:
                self.tell(kind(between + text))
                self._kinds.add(kind)
                between = ""

        reader.passing = True
        found = yield from reader.before((*BEGINS, *ENDS), emit)
        reader.passing = False
        if found in ENDS:
            reader.at += len(found)


HARMONY = HarmonyFormat((), (), tokens=tuple(MARKERS), channels=True)
