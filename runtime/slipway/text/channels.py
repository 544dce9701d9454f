"""Grammars of outputs in channels, as gpt-oss writes them: answers and calls are held, thought is free."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from slipway.text.parse.harmony import CHANNEL, CONSTRAIN, END, MESSAGE, START
from slipway.text.structure import ANY, JsonStyle, arguments_of, of_parts, styled

OPENING = f"{START}assistant"
"""Where prompts end; an output goes on with a channel."""


@dataclass(frozen=True, slots=True)
class Channels:
    """Those of a model with these special tokens.

    budget  tokens of reasoning, which is one message then; below 0: any number
    """

    special_ids: Mapping[str, int]
    budget: int = -1

    def of_answer(self, grammar: str) -> str:
        """Reasoning, then an answer that follows a grammar."""
        first, *others = json.loads(grammar)["grammars"]
        start = self._start(self._final("@answer"))
        return of_parts(start, {"name": "answer"} | first, *others)

    def of_calls(self, tools: Mapping[str, Any], style: JsonStyle, *, forced: bool) -> str:
        """Reasoning and what is said before calling, then a call.

        tools   the schema of each one's arguments, by its name
        forced  there is a call; else there may be an answer instead
        """
        last = [] if forced else [self._final(ANY)]
        for name, schema in tools.items():
            header = self._header(json.dumps(f"commentary to=functions.{name}"), self._json)
            last.append(f"{header} %json {json.dumps(styled(arguments_of(schema), style))}")
        return of_parts(self._start(" | ".join(last), says=True))

    def _start(self, last: str, *, says: bool = False) -> str:
        """says  there may be messages in front of the last that are no reasoning"""
        behind = f'{self._token(END)} {self._token(START)} "assistant"'
        thought = f"{self._header(json.dumps('analysis'))} text {behind}"
        said = f"{self._header(json.dumps('commentary'))} {ANY} {behind}"
        free = "thought*" if self.budget < 0 else "thought?"
        rules = [f"thought: {thought}", f"said: {said}", f"last: {last}"]
        if says:
            free = "(thought | said)*" if self.budget < 0 else "said* thought? said*"
        rules.append(f"text: {ANY}" if self.budget < 0 else self._bounded_text())
        return "\n".join([f"start: {free} last", *rules])

    def _bounded_text(self) -> str:
        return f"text[max_tokens={self.budget}]: {ANY}" if self.budget else 'text: ""'

    def _final(self, text: str) -> str:
        return f"{self._header(json.dumps('final'), self._json)} {text}"

    def _header(self, name: str, form: str = "") -> str:
        return f"{self._token(CHANNEL)} {name} {form} {self._token(MESSAGE)}"

    @property
    def _json(self) -> str:
        return f'(" " {self._token(CONSTRAIN)} "json")?'

    def _token(self, text: str) -> str:
        return f"<[{self.special_ids[text]}]>"
