"""Reasoning in front of what a grammar bounds: there everything may come, but for its own end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from slipway.engine.matcher import Matcher
from slipway.engine.messages import ReasoningBounds

State = Literal["start", "reasoning", "answer"]


class ReasoningFirst:
    """A matcher whose grammar begins behind the token that ends the reasoning.

    Where the output does not begin within it, its first token decides: the one that begins reasoning, or one
    that the grammar allows.
    """

    def __init__(self, bounds: ReasoningBounds, matcher: Matcher | None, num_words: int) -> None:
        """matcher  None: the answer is free, and only the reasoning's length is bounded"""
        self._bounds = bounds
        self._matcher = matcher
        self._num_words = num_words
        self._state: State = "reasoning" if bounds.inside else "start"
        self._left = bounds.budget
        """Tokens of reasoning before it is ended; below 0: any number."""

    def advance(self, tokens: Sequence[int]) -> int | None:
        for count, token in enumerate(tokens, 1):
            if self._state == "answer" or (self._state == "start" and token != self._bounds.begin):
                self._state = "answer"
                if self._matcher is not None and self._matcher.advance([token]) is not None:
                    return count
            else:
                self._state, self._left = self._behind(self._state, self._left, token)
        return None

    def forced(self) -> list[int]:
        if self._state == "answer":
            return [] if self._matcher is None else self._matcher.forced()
        return [self._bounds.end] if self._state == "reasoning" and self._left == 0 else []

    def masks(self, drafts: Sequence[int]) -> NDArray[np.uint32]:
        rows = np.full((1 + len(drafts), self._num_words), 0xFFFFFFFF, np.uint32)
        state, left = self._state, self._left
        for number, row in enumerate(rows):
            if state == "reasoning":
                if left == 0:
                    row[:] = 0
                    _allow(row, self._bounds.end)
            elif self._matcher is not None:
                begins = state == "start" and list(drafts[number : number + 1]) == [self._bounds.begin]
                rows[number:] = self._matcher.masks(() if begins else drafts[number:])
                if state == "start":
                    _allow(row, self._bounds.begin)
                if not begins:
                    break
                rows[number + 1 :] = 0xFFFFFFFF
            if number < len(drafts):
                state, left = self._behind(state, left, drafts[number])
        return rows

    def _behind(self, state: State, left: int, token: int) -> tuple[State, int]:
        """The state behind a token, and what is left of the budget."""
        if state == "start":
            return ("reasoning" if token == self._bounds.begin else "answer"), left
        if state == "reasoning" and token == self._bounds.end:
            return "answer", left
        return state, left - (left > 0 and state == "reasoning")


def _allow(row: NDArray[np.uint32], token: int) -> None:
    if token >= 0:
        row[token // 32] |= np.uint32(1 << token % 32)
