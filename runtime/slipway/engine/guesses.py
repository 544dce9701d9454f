"""Whether drafts are worth their time: what rows cost, and what each request's drafts have brought.

A step of n requests that verifies a draft of each computes n rows more. Where a row takes the part c of the
step's time, k drafts of one request cost all of them what k · n · c of a step takes, and bring the one as
many tokens as are accepted: so a draft pays where more than n · c of them are. Where a model guesses, c has
a second term: the time that the model takes for a draft. All of this is measured.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from slipway.engine.messages import Speculated

if TYPE_CHECKING:
    from slipway.engine.request import Request

STAKE = 1.0
"""Steps' time that a request's drafts may lose before they pause."""
MOST_CREDIT = 2.0
"""Steps' time of gains that count against later losses."""
FIRST_PAUSE, LONGEST_PAUSE = 16, 256
"""Tokens without drafts; each pause behind a draft in vain is twice as long as the last."""
LEAST_COST, MOST_COST = 0.05, 0.95
"""Of a draft, in steps: looking it up and its bookkeeping take a little even where its row is free."""
OF_LATE = 1 / 32
"""Weight of the newest step among those remembered."""
USUAL_ROWS = 7.0
"""Rows whose arithmetic takes as long as reading the weights: expected until steps tell more."""
USUAL_WEIGHT = 0.25
"""Of that expectation, in rows²: as much as the variance of rows between steps that outweighs it. The
first steps need more, or one of them that was interrupted would be most of what is known."""
MOST_LONGER = 1.5
"""Times the mean that a step counts for, where its rows do not explain more: it was interrupted."""
MOST_DEARER = 8.0
"""Times what guessing a draft took of late that one counts for: the same."""
FIRST_OFF, LONGEST_OFF = FIRST_PAUSE, 2 * LONGEST_PAUSE
"""Steps without drafts, where each costs all that it can bring. The first time a second guess says soon
whether the first was only interrupted; behind the longest no request pauses any more."""


class StepTime:
    """What late steps took by their rows: a line through those that computed next tokens and drafts alone."""

    def __init__(self) -> None:
        self._rows = self._seconds = self._variance = self._covariance = 0.0
        self._steps = 0

    def add(self, rows: int, seconds: float) -> None:
        self._steps += 1
        if self._seconds <= 0:
            self._rows, self._seconds = float(rows), seconds
            return
        longest = self._seconds * max(MOST_LONGER, rows / self._rows)
        off_rows, off_seconds = rows - self._rows, min(seconds, longest) - self._seconds
        self._rows += OF_LATE * off_rows
        self._seconds += OF_LATE * off_seconds
        self._variance += OF_LATE * (off_rows * off_rows - self._variance)
        self._covariance += OF_LATE * (off_rows * off_seconds - self._covariance)

    def cost(self, num_running: int, proposing: float = 0.0) -> float:
        """Of a draft for one of so many running requests, in steps that give each a token.

        proposing  seconds that guessing it takes
        """
        num_running = max(num_running, 1)
        slope, rest = 1.0, USUAL_ROWS
        if self._seconds > 0:
            usual = self._seconds / (self._rows + USUAL_ROWS)
            weight = USUAL_WEIGHT * max(1.0, self._rows * self._rows / self._steps)
            slope = (self._covariance + weight * usual) / (self._variance + weight)
            slope = min(max(slope, 0.0), self._seconds / self._rows)
            rest = max(self._seconds - slope * self._rows, 0.0)
        grown = slope * num_running
        row = min(max(grown / (grown + rest), LEAST_COST), MOST_COST)
        return row + proposing * num_running / (grown + rest)


class Guesses:
    """What the drafts of a request have brought, in steps' time: it loses `STAKE` at most, and what tries
    behind pauses cost."""

    __slots__ = ("_credit", "_pause", "_until")

    def __init__(self) -> None:
        self._credit = 0.0
        self._pause = FIRST_PAUSE
        self._until = 0

    def most(self, num_tokens: int, cost: float) -> int:
        """Drafts that may all be in vain behind so many tokens; one, to try, where a pause is over."""
        return max(int((self._credit + STAKE) / cost), 1) if num_tokens >= self._until else 0

    def judge(self, verified: int, accepted: int, cost: float, num_tokens: int) -> None:
        """A step verified so many drafts and accepted these; the request has so many tokens then.

        With a step under way beside it, both may have staked the same credit: the second loses no more than
        there was, and makes the pause that the first began no longer.
        """
        if accepted:
            self._pause = FIRST_PAUSE
        self._credit = min(self._credit + accepted - verified * cost, MOST_CREDIT)
        if num_tokens < self._until:
            self._credit = max(self._credit, -STAKE)
        elif self._credit + STAKE < cost:
            self._credit = -STAKE
            self._until = num_tokens + self._pause
            self._pause = min(2 * self._pause, LONGEST_PAUSE)


class Guessing:
    """How many drafts the next step verifies of each request, and the counts of those so far."""

    def __init__(self) -> None:
        self._time = StepTime()
        self._told = Speculated()
        self._proposing = 0.0
        """Seconds for a draft, of late; 0: none has been measured, or that was long ago."""
        self._off = 0
        """Steps in a row in which a draft has cost all that it can bring."""
        self._most_off = FIRST_OFF
        self._cost = self._time.cost(1)

    def begin(self, num_running: int) -> None:
        """A step of so many running requests is planned.

        Where a draft costs all that it can bring, a token, none is tried for a while: all requests would wait
        for the model that guesses for one of them. Then they try together, and what that takes is measured
        anew: it is less for each than it was for one alone.
        """
        self._cost = self._time.cost(num_running, self._proposing)
        self._off = self._off + 1 if self._cost >= 1 else 0
        if self._off >= self._most_off:
            self._most_off = LONGEST_OFF
            self._proposing = 0.0
            self._cost = self._time.cost(num_running)

    def most(self, request: Request) -> int:
        """Drafts of it that the step may verify."""
        if self._cost >= 1:
            return 0
        guesses = request.guesses = request.guesses or Guesses()
        return guesses.most(len(request.tokens), self._cost)

    def judge(self, request: Request, verified: int, drawn: int) -> None:
        """A step has verified drafts of a request and drawn so many tokens, which the request already has."""
        accepted = max(drawn - 1, 0)
        self._told.add(verified, accepted, drawn)
        guesses = request.guesses = request.guesses or Guesses()
        guesses.judge(verified, accepted, self._cost, len(request.tokens))

    def took(self, rows: int, seconds: float, verified: int, proposing: float) -> None:
        """A step that computed so many rows, of next tokens and drafts alone.

        verified   of the rows, drafts: about as many as were guessed behind its draws
        proposing  of the seconds, those that guessing took
        """
        self._time.add(rows, seconds - proposing)
        if not verified:
            return
        newest = proposing / verified
        if not self._proposing:
            self._proposing = newest
        self._proposing += OF_LATE * (min(newest, MOST_DEARER * self._proposing) - self._proposing)

    def counts(self) -> Speculated | None:
        """Of what was verified since they were last asked for; None where nothing was."""
        if not self._told.drafts:
            return None
        told, self._told = self._told, Speculated()
        return told
