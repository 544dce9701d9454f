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
    that the grammar allows. A token that stops reasoning is the grammar's first, and forbidden within the
    reasoning where the grammar cannot begin with it.
    """

    def __init__(self, bounds: ReasoningBounds, matcher: Matcher | None, num_words: int) -> None:
        """matcher  None: the answer is free, and only the reasoning's length is bounded"""
        self._bounds = bounds
        self._matcher = matcher
        self._num_words = num_words
        self._state: State = "reasoning" if bounds.inside else "start"
        self._left = bounds.budget
        """Tokens of reasoning before it is ended; below 0: any number."""
        self._stops = frozenset(bounds.stops)
        if matcher is not None and bounds.stops:
            (first,) = matcher.masks(())
            self._stops = frozenset(token for token in bounds.stops if _allows(first, token))
        self._forbidden = frozenset(bounds.stops) - self._stops

    def advance(self, tokens: Sequence[int]) -> int | None:
        for count, token in enumerate(tokens, 1):
            before = self._state
            self._state, self._left = self._behind(before, self._left, token)
            if self._matcher is None or not self._answers(before, token):
                continue
            if self._matcher.advance([token]) is not None:
                return count
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
                for token in self._forbidden:
                    _forbid(row, token)
                if number < len(drafts) and drafts[number] in self._stops and self._matcher is not None:
                    rows[number + 1 :] = self._matcher.masks(drafts[number:])[1:]
                    break
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

    def _answers(self, state: State, token: int) -> bool:
        """Whether a token is of the answer."""
        if state == "reasoning":
            return token in self._stops
        return state == "answer" or token != self._bounds.begin

    def _behind(self, state: State, left: int, token: int) -> tuple[State, int]:
        """The state behind a token, and what is left of the budget."""
        if self._answers(state, token) or (state == "reasoning" and token == self._bounds.end):
            return "answer", left
        return "reasoning", left - (left > 0 and state == "reasoning")


def _allow(row: NDArray[np.uint32], token: int) -> None:
    if token >= 0:
        row[token // 32] |= np.uint32(1 << token % 32)


def _forbid(row: NDArray[np.uint32], token: int) -> None:
    row[token // 32] &= ~np.uint32(1 << token % 32)


def _allows(row: NDArray[np.uint32], token: int) -> bool:
    return bool(row[token // 32] >> np.uint32(token % 32) & 1)
