"""Stop strings, found in text as it arrives."""

from __future__ import annotations


class StopStrings:
    """Ends a stream at the stop string that completes first; of those that complete together, the longest.

    What comes out, and where it ends, does not depend on how the text was cut into pushes. Text that may
    be the beginning of a stop string is held back until that is decided.
    """

    __slots__ = ("_held", "_include", "_initials", "_longest", "_stops")

    def __init__(self, stops: tuple[str, ...], include_in_output: bool) -> None:
        """Empty strings among `stops` are left out: they would stop everything at once."""
        self._stops = tuple(stop for stop in stops if stop)
        self._include = include_in_output
        self._initials = frozenset(stop[0] for stop in self._stops)
        self._longest = max(map(len, self._stops), default=0)
        self._held = ""

    def push(self, text: str) -> tuple[str, str | None]:
        """The text that may go out, and the stop string that ended it; push nothing after one."""
        if not self._stops:
            return text, None
        text = self._held + text
        self._held = ""
        found = [(text.find(stop), stop) for stop in self._stops]
        ends = [(start + len(stop), start, stop) for start, stop in found if start >= 0]
        if ends:
            end, start, stop = min(ends)
            return text[: end if self._include else start], stop
        start = self._undecided(text)
        self._held = text[start:]
        return text[:start], None

    def finish(self) -> str:
        """What was held back; the stream is over without a stop string."""
        held, self._held = self._held, ""
        return held

    def _undecided(self, text: str) -> int:
        """Where a stop string may have begun."""
        for start in range(max(0, len(text) - self._longest + 1), len(text)):
            if text[start] in self._initials:
                tail = text[start:]
                if any(stop.startswith(tail) for stop in self._stops):
                    return start
        return len(text)
