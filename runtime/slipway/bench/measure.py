"""From what each request met to the figures of a run, under the names of vLLM's result files."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate


@dataclass(slots=True)
class Outcome:
    """One request. `started` is on `time.perf_counter()`, the rest in seconds from there."""

    started: float
    ttft: float | None = None
    """Until its first token."""
    latency: float = 0.0
    """Until the last of its output."""
    gaps: list[float] = field(default_factory=list)
    """Between the chunks of its output, which bring a token each where the server streams well."""
    input_tokens: int = 0
    output_tokens: int = 0
    counted: bool = True
    """The server told its tokens; else the output's are its chunks."""
    text: list[str] = field(default_factory=list)
    error: str = ""
    """Why it failed."""

    @property
    def tpot(self) -> float | None:
        """Seconds for each token after the first, where there is one."""
        if self.ttft is None or self.output_tokens < 2:
            return None
        return (self.latency - self.ttft) / (self.output_tokens - 1)

    @property
    def succeeded(self) -> bool:
        return not self.error


Goals = Mapping[str, float]
"""`ttft`, `tpot` or `e2el` → the most seconds that a good request takes."""


def percentile(ordered: Sequence[float], share: float) -> float:
    """Of values in order, by linear interpolation between the two nearest; `share` from 0 to 100."""
    place = (len(ordered) - 1) * share / 100
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


def percentile_name(share: float) -> str:
    """`p99`, `p99.9`"""
    return f"p{share:g}"


def goals(written: Iterable[str]) -> dict[str, float]:
    """From `ttft:200`, in milliseconds. Of one metric the last counts."""
    pairs = (one.split(":") for one in written)
    return {metric: float(limit) / 1000 for metric, limit in pairs}


def is_good(outcome: Outcome, goals: Goals) -> bool:
    """A request without a second token meets every goal for the time per token."""
    took = {"ttft": outcome.ttft or 0.0, "tpot": outcome.tpot or 0.0, "e2el": outcome.latency}
    return outcome.succeeded and all(took[metric] <= limit for metric, limit in goals.items())


def seconds_of(outcomes: Iterable[Outcome]) -> dict[str, list[float]]:
    """Metric → the measured values, in order."""
    done = [one for one in outcomes if one.succeeded]
    return {
        "ttft": sorted(one.ttft for one in done if one.ttft is not None),
        "tpot": sorted(one.tpot for one in done if one.tpot is not None),
        "itl": sorted(gap for one in done for gap in one.gaps),
        "e2el": sorted(one.latency for one in done),
    }


def distribution(seconds: Sequence[float], metric: str, shares: Sequence[float]) -> dict[str, float | None]:
    """`mean_ttft_ms`, `median_ttft_ms`, `std_ttft_ms`, `p99_ttft_ms`; null where nothing was measured."""
    names = ("mean", "median", "std", *map(percentile_name, shares))
    if not seconds:
        return {f"{name}_{metric}_ms": None for name in names}
    figures = (
        statistics.fmean(seconds),
        percentile(seconds, 50),
        statistics.pstdev(seconds),
        *(percentile(seconds, share) for share in shares),
    )
    return {f"{name}_{metric}_ms": 1000 * figure for name, figure in zip(names, figures, strict=True)}


def totals(outcomes: Sequence[Outcome], duration: float, goals: Goals) -> dict[str, float | None]:
    """What a run did as a whole; `duration` in seconds."""
    done = [one for one in outcomes if one.succeeded]
    inputs, outputs = sum(one.input_tokens for one in done), sum(one.output_tokens for one in done)
    good = sum(is_good(one, goals) for one in done)
    return {
        "duration": duration,
        "completed": len(done),
        "failed": len(outcomes) - len(done),
        "total_input_tokens": inputs,
        "total_output_tokens": outputs,
        "request_throughput": len(done) / duration,
        "request_goodput": good / duration if goals else None,
        "output_throughput": outputs / duration,
        "total_token_throughput": (inputs + outputs) / duration,
        "max_output_tokens_per_s": busiest_second(done),
        "max_concurrent_requests": most_at_once(done),
    }


def busiest_second(outcomes: Sequence[Outcome]) -> float:
    """Most output tokens within one of the seconds since the start, a request's spread over its chunks."""
    begun = min((one.started for one in outcomes), default=0.0)
    tokens: defaultdict[int, float] = defaultdict(float)
    for one in outcomes:
        if one.ttft is not None:
            share = one.output_tokens / (len(one.gaps) + 1)
            for at in accumulate(one.gaps, initial=one.started - begun + one.ttft):
                tokens[math.floor(at)] += share
    return max(tokens.values(), default=0.0)


def most_at_once(outcomes: Iterable[Outcome]) -> int:
    """Most requests in flight; one that ends as another starts makes room for it."""
    changes = [change for one in outcomes for change in ((one.started, 1), (one.started + one.latency, -1))]
    return max(accumulate(step for _, step in sorted(changes)), default=0)
