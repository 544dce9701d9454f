"""What a step grants each request, and the plan that is made of it."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from slipway.engine.plan import PageCopy, PageGrant, SlotStart, StepPlan
from slipway.engine.request import Request


class Grant(msgspec.Struct, frozen=True, gc=False):
    """What a step computes of one request: `num_drafts` of its `num_new` tokens are guesses to verify."""

    num_new: int
    draws: bool
    pages: list[PageGrant] = []
    num_drafts: int = 0
    forced: Sequence[int] = ()
    """The drafts, where a grammar says what they are."""


NEXT_TOKEN = Grant(1, True)
"""Nearly all grants: one object stands for them, so that a step makes none."""
Step = dict[Request, Grant]
"""In the plan's order."""


class PlanInMaking:
    """A plan in the making, and what is left of the step."""

    def __init__(self, token_budget: int) -> None:
        self.tokens_left = token_budget
        self.starts: dict[Request, SlotStart] = {}
        self.grants: Step = {}
        self.swap_out: list[PageCopy] = []
        self.swap_in: list[PageCopy] = []
        self.preempted: list[Request] = []
        self.ahead: dict[Request, int] = {}
        """Most drafts to guess behind what a request draws."""

    def add(self, request: Request, grant: Grant) -> None:
        self.grants[request] = grant
        self.tokens_left -= grant.num_new
        request.granted += grant.num_new
        request.num_steps += 1
        request.num_drawing += grant.draws

    def add_next(self, requests: list[Request]) -> None:
        """Grant each its next token: as `add` with NEXT_TOKEN, for as many as there may be."""
        for request in requests:
            self.grants[request] = NEXT_TOKEN
            request.granted += 1
            request.num_steps += 1
            request.num_drawing += 1
        self.tokens_left -= len(requests)

    def add_drafts(self, request: Request, count: int, pages: list[PageGrant], forced: Sequence[int]) -> None:
        """Let a request that draws its next token verify so many drafts."""
        self.grants[request] = Grant(1 + count, True, self.grants[request].pages + pages, count, forced)
        request.granted += count
        self.tokens_left -= count

    def look_ahead(self, request: Request, most: int, pages: list[PageGrant]) -> None:
        """Let so many drafts be guessed behind what it draws.   pages: beyond its grant"""
        self.ahead[request] = most
        if pages:
            grant = self.grants[request]
            self.grants[request] = msgspec.structs.replace(grant, pages=grant.pages + pages)

    def withdraw(self, request: Request) -> None:
        """Take back what this plan has granted the request."""
        self.starts.pop(request, None)
        grant = self.grants.pop(request, None)
        if grant is not None:
            self.tokens_left += grant.num_new
            request.granted -= grant.num_new
            request.num_steps -= 1
            request.num_drawing -= grant.draws

    def build(self) -> StepPlan:
        grants = self.grants.values()
        return StepPlan(
            list(self.starts.values()),
            [page for grant in grants if grant.pages for page in grant.pages],
            [request.slot for request in self.grants],
            [grant.num_new for grant in grants],
            [grant.num_drafts for grant in grants],
            [grant.draws for grant in grants],
            [request.granted for request in self.grants],
            self.swap_out,
            self.swap_in,
            {index: grant.forced for index, grant in enumerate(grants) if grant.forced},
            ahead=[self.ahead.get(request, 0) for request in self.grants] if self.ahead else [],
        )
