"""Requests whose tokens a grammar bounds: each has a matcher, which is asked for masks before a draw."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from slipway.engine.plan import Masks
from slipway.engine.request import Request
from slipway.engine.scheduler import Grant, Step


class Matcher(Protocol):
    """Where one request stands in its grammar. What it raises ends that request and no other."""

    def advance(self, tokens: Sequence[int]) -> None:
        """These tokens have been drawn."""

    def masks(self, drafts: Sequence[int]) -> NDArray[np.uint32]:
        """[1 + len(drafts), ceil(vocab / 32)]: bits of the tokens that may come next, then after each draft.

        What it says of the rows after a draft that it refuses does not matter. It advances by none of them.
        """


MakeMatcher = Callable[[str], Matcher]
"""Of a request's grammar; raises where that cannot be read."""


def no_grammar(grammar: str) -> Matcher:
    raise ValueError("this engine reads no grammars")


class Grammars:
    """The matchers of live requests, with the drafts that their slots verify next.

    False where no live request has one: then it is asked nothing more.
    """

    def __init__(self, make: MakeMatcher) -> None:
        self.make = make
        self._matchers: dict[Request, Matcher] = {}
        self._drafts: dict[Request, list[int]] = {}

    def __bool__(self) -> bool:
        return bool(self._matchers)

    def add(self, request: Request, matcher: Matcher) -> None:
        self._matchers[request] = matcher

    def end(self, request: Request) -> None:
        self._matchers.pop(request, None)
        self._drafts.pop(request, None)

    def advance(self, request: Request, tokens: list[int], drafts: list[int]) -> None:
        """A step has drawn these tokens and left these drafts, if the request has a grammar."""
        if request in self._matchers:
            self._matchers[request].advance(tokens)
            self._drafts[request] = drafts

    def masked(self, step: Step) -> dict[int, tuple[Request, Grant]]:
        """Those that draw within masks, by index."""
        grants = enumerate(step.items())
        return {index: one for index, one in grants if one[1].draws and one[0] in self._matchers}

    def masks(
        self, grants: dict[int, tuple[Request, Grant]]
    ) -> tuple[Masks, list[tuple[Request, Exception]]]:
        """Of these grants; and the requests whose matchers failed, which draw without one as they end."""
        masks: Masks = {}
        failed: list[tuple[Request, Exception]] = []
        for index, (request, grant) in grants.items():
            matcher = self._matchers.get(request)
            if matcher is None:  # it has ended since
                continue
            try:
                drafts = self._drafts.get(request, [])[: grant.num_drafts]
                found = matcher.masks(drafts)
                masks[index] = np.pad(found, ((0, grant.num_drafts - len(drafts)), (0, 0)), mode="edge")
            except Exception as error:
                failed.append((request, error))
        return masks, failed
