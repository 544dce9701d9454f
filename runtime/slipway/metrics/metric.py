"""What one metric is: its name and type, its labels and buckets, when it is shown, what fills it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

Type = Literal["counter", "gauge", "histogram"]
Status = Literal["implemented", "not built yet"]
Version = tuple[int, int]

LABELS = ("model_name", "engine")
"""Of each series that a server has for each engine. The engines' ranks, from 0, tell them apart."""
COMPATIBLE_WITH: Version = (0, 9)
"""The release whose metrics these are: what was deprecated before it is hidden."""


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric of `/metrics`, declared once for the server, the manual and the dashboards."""

    name: str
    type: Type
    summary: str
    unit: str
    buckets: tuple[float, ...] | Literal["up to max_model_len"] = ()
    labels: tuple[str, ...] = LABELS
    same_as: str = ""
    """The metric of which this is another release's name: it shows the same numbers."""
    deprecated_in: Version | None = None
    """Hidden from the next release on."""
    replacement: tuple[str, ...] = ()
    status: Status = "implemented"
    reason: str = ""
    since: str = ""
    """From when on it has a series, in words; empty: from the start."""

    @property
    def own(self) -> bool:
        """Whether it is ours alone, in no other server's documents."""
        return self.name.startswith("slipway_")

    @property
    def exposed_name(self) -> str:
        """As it stands in the exposition: a counter always ends in `_total`."""
        if self.type != "counter" or self.name.endswith("_total"):
            return self.name
        return f"{self.name}_total"

    def shown(self, hidden_for: Version | None) -> bool:
        """Whether it is exposed. A deprecated one is, until the release that hides it, and after
        that for `--show-hidden-metrics-for-version` with either release."""
        return not self.shown_for or hidden_for in self.shown_for

    @property
    def shown_for(self) -> tuple[Version, ...]:
        """The releases to ask for, where this one hides it."""
        if self.deprecated_in is None:
            return ()
        major, minor = self.deprecated_in
        hidden_in = (major, minor + 1)
        return () if hidden_in > COMPATIBLE_WITH else (self.deprecated_in, hidden_in)

    def buckets_for(self, max_model_len: int) -> tuple[float, ...]:
        """Upper bounds of a histogram's buckets, without +Inf."""
        if self.buckets == "up to max_model_len":
            return one_two_five(max_model_len)
        return self.buckets


def one_two_five(largest: int) -> tuple[float, ...]:
    """1, 2, 5, 10, 20, 50, … as far as `largest`; at least the 1."""
    series: list[float] = [1.0]
    scale = 1
    while scale <= largest:
        series += [float(m * scale) for m in (1, 2, 5) if 1 < m * scale <= largest]
        scale *= 10
    return tuple(series)


def parse_version(text: str | None) -> Version | None:
    """`0.8` or `0.8.1` as (0, 8). Raises ValueError."""
    if text is None:
        return None
    if not (match := re.fullmatch(r"(\d+)\.(\d+)(?:\.\d+)*", text.strip())):
        raise ValueError(
            f"--show-hidden-metrics-for-version {text} is not a version: write it like 0.8 "
            "(in YAML in quotes, or 0.10 becomes 0.1)."
        )
    return int(match[1]), int(match[2])
