"""What was last seen of each pod, and when to look again: answers that no watch brings."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TypeVar

from slipway_operator.shapes import Object, uid

FORGOTTEN_AFTER = 1200.0
"""Seconds: longer than any interval between two looks at a pod that is there."""


@dataclass(slots=True)
class Look:
    """At one pod. A new one is due at once."""

    interval: float
    """Seconds between this look and the next."""
    again_at: float = 0.0
    """By the monotonic clock."""

    @property
    def due(self) -> bool:
        return time.monotonic() >= self.again_at

    @property
    def wait(self) -> float:
        """In how many seconds more may be known."""
        return max(self.again_at - time.monotonic(), 1.0)

    def begin(self) -> None:
        self.again_at = time.monotonic() + self.interval


Kept = TypeVar("Kept", bound=Look)


class Looks(dict[str, Kept]):
    """By uid, of the pods that are asked about."""

    def at(self, pod: Object, first: Kept) -> Kept:
        return self.setdefault(uid(pod), first)

    def forget(self, pod: Object) -> None:
        self.pop(uid(pod), None)

    def tidy(self) -> None:
        """Forget pods about which nobody asked for long: they are gone."""
        limit = time.monotonic() - FORGOTTEN_AFTER
        for key in [key for key, look in self.items() if look.again_at < limit]:
            del self[key]
