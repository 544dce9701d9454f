"""Reasoning in front of an answer, told apart as it arrives."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from slipway.text.parse.events import Content, Reasoning
from slipway.text.parse.harmony import MARKERS, HarmonyParser
from slipway.text.parse.incremental import Incremental
from slipway.text.parse.plugin import formats_of
from slipway.text.parse.reader import Reading


@dataclass(frozen=True, slots=True)
class ReasoningFormat:
    """Between which texts a family of models reasons.

    begins  any of these begins it, where the output begins with it
    ends    any of these ends it; what follows is the answer. The first is the one that may be a token
    inside  an output begins with reasoning, whether `begins` is there or not
    midway  any of these begins it behind other text, too, which is part of the answer; what ends it there
            without a beginning is left out
    stops   any of these ends it, too, and is part of the answer, such as a call
    wraps   what may stand round the answer
    switch  the template's keyword that turns reasoning on, and whether it is on without that
    kept    it stays in the content, between its marks, which are put there where the prompt has them
    channels  it is a message among others
    """

    begins: tuple[str, ...] = ("<think>",)
    ends: tuple[str, ...] = ("</think>",)
    inside: bool = False
    midway: tuple[str, ...] = ()
    stops: tuple[str, ...] = ()
    wraps: tuple[str, str] | None = None
    switch: tuple[str, bool] | None = None
    kept: bool = False
    channels: bool = False

    def parser(self, prompt: str, said: str | None = None) -> Incremental:
        """What reads an output that follows this prompt, and in that what the assistant has `said` of it."""
        return ReasoningParser(self, inside=self.begins_inside(prompt, said))

    @property
    def markers(self) -> frozenset[str]:
        """Texts that are looked for; special tokens of these spellings must not be left out."""
        return frozenset((*self.begins, *self.ends, *self.stops, *(self.wraps or ())))

    def is_on(self, keywords: Mapping[str, object]) -> bool:
        """Whether these keywords of the template let the model reason."""
        return self.switch is None or bool(keywords.get(*self.switch))

    def begins_inside(self, prompt: str, said: str | None = None) -> bool:
        """Whether the output goes on with reasoning: the prompt has begun it, or the model does unsaid.

        said  what the prompt ends with, where the output goes on with that
        """
        if said is not None:
            begun, ended = (max(map(said.rfind, marks), default=-1) for marks in (self.begins, self.ends))
            return begun > ended
        prompt = prompt.rstrip()
        if prompt.endswith(self.ends):  # a template says so that there is none
            return False
        return self.inside or prompt.endswith(self.begins)


@dataclass(frozen=True, slots=True)
class HarmonyReasoning(ReasoningFormat):
    """A channel of its own, any number of times."""

    begins: tuple[str, ...] = ()
    ends: tuple[str, ...] = ()
    channels: bool = True

    def parser(self, prompt: str, said: str | None = None) -> Incremental:
        return HarmonyParser(None, prompt)

    @property
    def markers(self) -> frozenset[str]:
        return MARKERS


THINK = ReasoningFormat()
INSIDE = ReasoningFormat(inside=True)
_LINED = ("</think>", "\n</think>", "</think>\n", "\n</think>\n")
"""With the line ends that Step 3.5 and Hunyuan write round the mark."""
FORMATS: dict[str, ReasoningFormat] = {
    "deepseek_r1": INSIDE,
    "deepseek_v3": ReasoningFormat(inside=True, switch=("thinking", False)),
    "ernie45": ReasoningFormat(inside=True, wraps=("<response>", "</response>")),
    "glm45": THINK,
    "granite": ReasoningFormat(
        begins=("Here is my thought process:", "Here's my thought process:"),
        ends=("Here is my response:", "Here's my response:"),
    ),
    "holo2": ReasoningFormat(inside=True, switch=("thinking", True)),
    "hunyuan_a13b": ReasoningFormat(
        begins=("<think>", "<think>\n"),
        midway=("<think>\n",),
        ends=_LINED,
        wraps=("<answer>", "</answer>"),
    ),
    "kimi_k2": ReasoningFormat(inside=True, stops=("<|tool_calls_section_begin|>",)),
    "minimax_m2": INSIDE,
    "minimax_m2_append_think": ReasoningFormat(inside=True, kept=True),
    "mistral": ReasoningFormat(begins=("[THINK]",), midway=("[THINK]",), ends=("[/THINK]",)),
    "olmo3": INSIDE,
    "openai_gptoss": HarmonyReasoning(),
    "qwen3": THINK,
    "seed_oss": ReasoningFormat(begins=("<seed:think>",), ends=("</seed:think>",), inside=True),
    "step3": INSIDE,
    "step3p5": ReasoningFormat(ends=_LINED, inside=True),
}
"""By the names of `--reasoning-parser`. Source: the models' chat templates and cards."""


def reasoning_format(name: str, plugin: Path | None = None) -> ReasoningFormat:
    """The format of a name. Those of a plugin, a Python file with FORMATS like the one here, go first.

    Raises ValueError where neither has it, and what the plugin raises.
    """
    own: dict[str, ReasoningFormat] = formats_of(plugin) if plugin is not None else {}
    if (found := own.get(name) or FORMATS.get(name)) is None:
        raise ValueError(
            f"there is no reasoning parser {name!r} in {plugin}, whose FORMATS has {sorted(own)}"
        )
    return found


class ReasoningParser(Incremental):
    """Reads one output; what is no reasoning comes out as content."""

    def __init__(self, format_: ReasoningFormat, *, inside: bool) -> None:
        """inside  the output begins within the reasoning, as where the prompt ends with its beginning"""
        self._format = format_
        self._inside = inside
        super().__init__()

    def __str__(self) -> str:
        begins = "goes on" if self._inside else f"begins with {' or '.join(map(repr, self._format.begins))}"
        return f"the parser of reasoning that {begins} and ends with {self._format.ends[0]!r}"

    def _read(self) -> Reading[None]:
        reader, form = self._reader, self._format
        yield from reader.skip_space()
        begun = yield from reader.take_one(form.begins)
        if begun is None:
            reader.go_back()
        if begun is not None or self._inside:
            if form.kept:
                self._reason(begun or form.begins[0])
            reader.passing = True
            found = yield from reader.before((*form.ends, *form.stops), self._reason)
            reader.passing = False
            if found in form.ends:
                reader.at += len(found or "")
                if form.kept:
                    self._reason(found or "")
        elif form.midway:
            yield from self._midway()
        yield from self._answer()

    def _midway(self) -> Reading[None]:
        """Reasoning behind other text, unless the answer begins in its wrapping."""
        reader, form = self._reader, self._format
        if form.wraps is not None:
            yield from reader.skip_space()
            wrapped = yield from reader.take(form.wraps[0])
            reader.go_back()
            if wrapped:
                return
        strays = () if form.wraps is not None else form.ends
        reader.passing = True
        found = yield from reader.before((*form.midway, *strays), self._say)
        reader.at += len(found or "")
        if found in form.midway:
            found = yield from reader.before(form.ends, self._reason)
            reader.at += len(found or "")
        reader.passing = False

    def _answer(self) -> Reading[None]:
        reader, wraps = self._reader, self._format.wraps
        reader.forget()
        if wraps is not None:
            yield from reader.skip_space()
            if (yield from reader.take(wraps[0])):
                yield from reader.skip_space()
                yield from reader.until((f"\n{wraps[1]}", wraps[1]), self._say)
                yield from reader.skip_space()
            else:
                reader.go_back()
        reader.passing = True
        yield from reader.before((), self._say)

    def _reason(self, text: str) -> None:
        if text:
            self._events.append(Reasoning(text))

    def _say(self, text: str) -> None:
        if text:
            self._events.append(Content(text))
