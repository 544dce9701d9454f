"""Tool calls in what a model writes: one machine, and a table for each format.

For complete output the events of all pushes, joined, are those of the whole text, however it was cut. Where a
call breaks off, a whole answer has its text as content; a stream keeps what it sent and says nothing more.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from slipway.text.parse import loose
from slipway.text.parse.events import Arguments, CallBegin, Content, Event
from slipway.text.parse.incremental import Incremental
from slipway.text.parse.json_text import read_value
from slipway.text.parse.reader import Broken, Reading
from slipway.text.parse.shapes import Shape, Tools
from slipway.text.parse.written import Written

THINK, THOUGHT = "<think>", "</think>"
"""Round reasoning that stays in the content, where nothing else reads it."""
_BACKTICKS, _BLANKS = re.compile("`*"), re.compile(r"[ \t]*")


@dataclass(frozen=True, slots=True)
class Section:
    """How calls are written behind a mark. White space may stand between all parts.

    call      how one is written
    enters    what follows the mark, such as the bracket of a list; where a format has several sections, the
              one whose `enters` is there is taken
    begin     stands before each call; end: behind it
    between   what may part it from the next one
    leaves    what ends the section; where it is empty, what parts no other call from the last one
    trails    what may still stand behind it and says nothing
    """

    call: Shape
    enters: str = ""
    begin: str = ""
    end: str = ""
    between: tuple[str, ...] = ()
    leaves: str = ""
    trails: tuple[str, ...] = ()

    @property
    def ends(self) -> tuple[str, ...]:
        """What ends a call or the section, without punctuation that other text has."""
        return tuple(one for one in (self.end, self.leaves, *self.trails) if len(one) > 1)

    @property
    def literals(self) -> tuple[str, ...]:
        return (self.enters, self.begin, self.end, *self.between, self.leaves, *self.trails)


@dataclass(frozen=True, slots=True)
class CallFormat:
    """How a family of models writes its calls.

    opens     each of these in free text is the mark of a section
    bare      an output that begins with one of these is a section from there, without a mark
    implies   each of these in free text begins a section whose mark was left out, where it calls a known tool
    common    of `opens`, those that other text has, too: the first call behind one is of a known tool
    loose     calls of known tools are read without the marks, too, and need no mark that ends them
    thinks    nothing between <think> and </think> is a call, wherever that stands; in other formats marks
              count there, too, as a model may forget to end its reasoning
    trims     white space between words and a call behind them is no content
    tokens    special tokens that are to stay in the text, beside those of the sections
    written   how calls are written where a tool is strict, each of the ways; none where that holds nothing
    channels  calls are messages among others: its parser tells reasoning, too
    """

    opens: tuple[str, ...]
    sections: tuple[Section, ...]
    bare: tuple[str, ...] = ()
    implies: tuple[str, ...] = ()
    common: tuple[str, ...] = ()
    loose: bool = False
    thinks: bool = False
    trims: bool = False
    tokens: tuple[str, ...] = ()
    written: tuple[Written, ...] = ()
    channels: bool = False

    def parser(self, tools: Tools, prompt: str) -> CallParser:
        """What reads an output that follows this prompt."""
        return CallParser(self, tools, prompt)

    @property
    def markers(self) -> frozenset[str]:
        """Texts that are looked for; special tokens of these spellings must not be left out."""
        literals = (literal for section in self.sections for literal in section.literals)
        return frozenset(filter(None, (*self.opens, *self.tokens, *literals)))


class CallParser(Incremental):
    """Reads one output."""

    def __init__(self, format_: CallFormat, tools: Tools, prompt: str = "") -> None:
        """prompt  what the output follows; it may have begun reasoning that nothing else reads"""
        self.tools = tools
        self.num_calls = 0
        """That have begun."""
        self._format = format_
        self._space = ""
        """White space at the end of the content so far, which is kept until more follows."""
        self._said = False
        """There is content that is more than white space."""
        self._thinking = prompt.rstrip().endswith(THINK)
        self._call: OpenCall | None = None
        self._loose = loose.OPENS if format_.loose and tools else ()
        self._around = loose.Surroundings()
        """Of calls without marks."""
        literals = (literal for section in format_.sections for literal in section.ends)
        self._closes = tuple(dict.fromkeys(filter(None, literals)))
        super().__init__()

    def __str__(self) -> str:
        form = self._format
        opening = " or ".join(map(repr, (*form.opens, *form.bare)))
        alone = " or without a mark" if self._loose else ""
        return f"the parser of calls behind {opening}{alone}"

    @property
    def broken_off(self) -> str | None:
        """The text of a call that has begun and not ended, at the output's end."""
        call = self._call
        if call is None or not call.begun:
            return None
        return "".join((call.space, self._reader.unforgotten, *self._unread))

    def _read(self) -> Reading[None]:
        """The whole output: content, and sections of calls."""
        reader, opens, implies = self._reader, self._format.opens, self._format.implies
        yield from reader.skip_space()
        self._thinking = (yield from reader.take(THINK)) or self._thinking
        self._say(reader.kept)
        yield from self._answer()
        thoughts = (THINK, THOUGHT) if self._format.thinks else (THOUGHT,) if self._format.bare else ()
        while self._call is None:
            reader.passing = True
            starts = (*opens, *implies, *self._loose)
            if self._around.fence:
                starts = (*(one for one in opens if not one.startswith(loose.FENCE)), *implies, loose.FENCE)
            marker = yield from reader.before((*starts, *thoughts), self._say)
            reader.passing = False
            if marker is None:
                break
            if marker in thoughts:
                self._thinking = marker == THINK
                reader.at += len(marker)
                self._say(marker)
                yield from self._answer()
            elif marker in opens or marker in implies:
                yield from self._calls("" if marker in implies else marker)
            elif self._around.fence:
                yield from self._end_fence()
            else:
                reader.forget()
                yield from self._loose_calls("")
        if self._call is None and not self.num_calls:
            self._tell_space()

    def _answer(self) -> Reading[None]:
        """Reasoning that has begun, to its end, and calls without a mark that the answer may begin with."""
        reader, opens, bare = self._reader, self._format.opens, self._format.bare
        while self._thinking and self._call is None:
            reader.passing = True
            marks = () if self._format.thinks else opens
            marker = yield from reader.before((*marks, THOUGHT), self._say)
            reader.passing = False
            if marker in opens:
                yield from self._calls(marker or "")
                continue
            self._thinking = False
            reader.at += len(marker or "")
            self._say(marker or "")
        if bare and self._call is None:
            reader.forget()
            yield from reader.skip_space()
            self._say(reader.kept)
            begun = yield from reader.take_one((*bare, *opens))
            reader.at -= len(begun or "")
            if begun in bare:
                yield from self._calls("")

    def _calls(self, marker: str) -> Reading[None]:
        """A section from its marker on; what turns out to be none is content."""
        reader = self._reader
        reader.forget()
        num_calls = self.num_calls
        try:
            reader.go_back(len(marker))
            yield from self._section(bare=not marker or marker in self._format.common)
        except Broken:
            if self._call is not None and self._call.begun:
                return  # it stays open: nothing follows
            self._call = None
            reader.go_back()
            if self.num_calls > num_calls:
                yield from self._skip_ends()
            elif self._loose:
                yield from self._loose_calls(marker)
            else:
                self._say_first(marker)

    def _loose_calls(self, marker: str) -> Reading[None]:
        """Calls outside the marks; what turns out to be none is content."""
        reader, opens = self._reader, self._format.opens
        try:
            if not self._around.allow(first := (yield from reader.peek())):
                raise Broken("no call begins here")
            behind_words = self._around.behind_words
            calls = yield from loose.read_loose(
                reader, self.tools, opens, self._closes, behind_words=behind_words
            )
        except Broken:
            reader.go_back()
            if first == "`" and not self._around.fence:
                yield from self._begin_fence()
            elif not marker and first in ("{", "["):
                yield from self._say_value()
            else:
                self._say_first(marker)
            return
        for kept in calls:
            call = OpenCall(self)
            call.begin(kept.name, kept.id)
            call.arguments("".join(kept.parts))
        reader.forget()
        yield from reader.skip_space()
        self._space = reader.kept

    def _begin_fence(self) -> Reading[None]:
        """Backticks that begin no call are content, and what is no line of code in them begins a fence."""
        reader, in_code = self._reader, self._around.in_code
        count = yield from self._say_backticks()
        if in_code or count < len(loose.FENCE):
            return
        reader.passing = True
        marks = (*self._format.opens, *self._format.implies, THINK, THOUGHT)
        found = yield from reader.before((*marks, "`", "\n"), self._say)
        reader.passing = False
        if found == "\n":
            self._around.fence = count

    def _end_fence(self) -> Reading[None]:
        """Backticks in a fence: they end it where they are as many, and the line ends with them."""
        reader = self._reader
        count = yield from self._say_backticks()
        reader.passing = True
        yield from reader.run(_BLANKS, self._say)
        reader.passing = False
        following = yield from reader.peek()
        if count >= self._around.fence and following in ("", "\n", "\r"):
            self._around.fence = 0

    def _say_backticks(self) -> Reading[int]:
        """How many come next; they are content."""
        reader, count = self._reader, 0

        def say(text: str) -> None:
            nonlocal count
            count += len(text)
            self._say(text)

        reader.passing = True
        yield from reader.run(_BACKTICKS, say)
        reader.passing = False
        return count

    def _say_first(self, marker: str) -> None:
        """What has been looked at is content to the end of the mark, or in its first character alone."""
        self._reader.go_back(len(marker) or 1)
        self._say(self._reader.kept)

    def _say_value(self) -> Reading[None]:
        """Another JSON value is content as it arrives: what looks like a call in it is a part of it."""
        reader = self._reader
        reader.go_back()
        value = read_value(reader, lambda text: None)
        over = False
        while not over:
            try:
                over = next(value, self) is self
            except Broken:
                over = True
            self._say(reader.kept)
            reader.forget()
            if not over:
                yield

    def _skip_ends(self) -> Reading[None]:
        """What ends the calls of other formats, too, says nothing behind one that is read loosely."""
        reader = self._reader
        ends = (*self._closes, *loose.CLOSES) if self._loose else ()
        yield from reader.skip_space()
        while (yield from reader.take_one(ends)) is not None:
            reader.forget()
            yield from reader.skip_space()
        self._space = reader.kept

    def _section(self, *, bare: bool) -> Reading[None]:
        """Raises Broken where a part of it is missing, but for what ends it at the output's end."""
        reader, num_calls = self._reader, self.num_calls
        yield from reader.skip_space()
        sections = {section.enters: section for section in self._format.sections}
        enters = yield from reader.take_one(tuple(filter(None, sections)))
        section = sections.get(enters or "")
        if section is None:
            raise Broken("the mark is followed by nothing that it begins")
        while not (yield from self._left(section)):
            yield from reader.expect(section.begin)
            yield from reader.skip_space()
            self._call = OpenCall(self, known_alone=bare)
            bare = False
            yield from section.call(reader, self._call)
            yield from self._end(section.end)
            self._call = None
            reader.forget()
            yield from reader.skip_space()
            parted = yield from reader.take_one(section.between)
            if not section.leaves and parted is None:
                reader.go_back()
                break
        if self.num_calls == num_calls:
            raise Broken("there is no call")
        reader.forget()
        yield from reader.skip_space()
        while (yield from reader.take_one(section.trails)) is not None:
            reader.forget()
            yield from reader.skip_space()
        yield from self._skip_ends()

    def _left(self, section: Section) -> Reading[bool]:
        """Whether the section is over: by its own end, or by that of the output."""
        reader = self._reader
        yield from reader.skip_space()
        if section.leaves and (yield from reader.take(section.leaves)):
            return True
        return reader.over and reader.at == len(reader.text)

    def _end(self, literal: str) -> Reading[None]:
        """What stands behind a call; a model may leave it out where its output ends there."""
        if literal:
            end = self._reader.at
            yield from self._reader.skip_space()
            if not (yield from self._reader.peek()) or (yield from self._reader.take(literal)):
                return
            if not self._loose:
                raise Broken(f"{literal!r} is missing")
            self._reader.at = end

    def _say(self, text: str) -> None:
        """Content, of which white space at its end is kept until more follows."""
        if not text:
            return
        if self._loose:
            self._around.add(text)
        kept = text.rstrip()
        if kept:
            self._tell_space()
            self._said = True
            self.tell(Content(kept))
        self._space += text[len(kept) :]

    def _tell_space(self) -> None:
        if self._space:
            self.tell(Content(self._space))
        self._space = ""

    def tell(self, event: Event) -> None:
        self._events.append(event)

    def begin(self, call: OpenCall) -> None:
        """A call is sure to be one: white space in front of it is content behind words alone."""
        if self._said and not self.num_calls and not self._format.trims:
            self._tell_space()
        call.space = self._space
        self._space = ""
        self.num_calls += 1
        self._around.begin_line()


class OpenCall:
    """The call that is being read."""

    def __init__(self, parser: CallParser, *, known_alone: bool = False) -> None:
        self.begun = False
        self.space = ""
        """White space in front of it that was left out."""
        self._parser = parser
        self._known_alone = known_alone
        """Where nothing but its name tells it from content."""
        self._held: list[str] = []

    @property
    def tools(self) -> Tools:
        return self._parser.tools

    def begin(self, name: str, id: str | None = None) -> None:
        if self._known_alone and self.tools and name not in self.tools:
            raise Broken(f"there is no tool {name!r}")
        self._parser.begin(self)
        self.begun = True
        self._parser.tell(CallBegin(name, id))
        held, self._held = self._held, []
        for text in held:
            self.arguments(text)

    def arguments(self, text: str) -> None:
        if not self.begun:
            self._held.append(text)
        elif text:
            self._parser.tell(Arguments(text))
