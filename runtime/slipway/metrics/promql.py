"""PromQL made from declared metrics: a name that nothing exposes cannot be written down.

Dashboard and alert rules call these functions; a name that is not declared raises KeyError when they are
generated, not when somebody needs the graph.
"""

from __future__ import annotations

import re

from slipway.metrics.declared import METRICS
from slipway.metrics.metric import Metric
from slipway.metrics.operator import OPERATOR_METRICS

DECLARED = {metric.exposed_name: metric for metric in (*METRICS, *OPERATOR_METRICS)}
"""Exposed name → metric, of server and operator."""

HISTOGRAM_SUFFIXES = ("_bucket", "_sum", "_count")
KEYWORDS = frozenset({"by", "without", "on", "ignoring", "group_left", "group_right", "and", "or", "unless"})
NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
# What holds no name of a metric: label lists behind their keyword, matchers, durations, numbers with a unit.
ASIDES = re.compile(
    r"\b(?:by|without|on|ignoring|group_left|group_right)\s*\([^)]*\)|\{[^}]*\}|\[[^\]]*\]|\b\d[\w.]*"
)


def series(name: str, matchers: str = "") -> str:
    """An instant vector of a gauge or counter. Raises KeyError where nothing exposes the name."""
    metric = DECLARED[name]
    if metric.type == "histogram":
        raise KeyError(f"{name} is a histogram: ask for a quantile or a mean of it.")
    return name + (f"{{{matchers}}}" if matchers else "")


def rate(name: str, window: str, matchers: str = "") -> str:
    """Of a counter, per second over the window."""
    if DECLARED[name].type != "counter":
        raise KeyError(f"{name} is no counter: it has no rate.")
    return f"rate({series(name, matchers)}[{window}])"


def quantile(share: float, name: str, window: str, by: str = "", matchers: str = "") -> str:
    """The quantile of a histogram's observations in the window, for each combination of `by`."""
    labels = f"le, {by}" if by else "le"
    return f"histogram_quantile({share:g}, sum by ({labels}) ({_part(name, 'bucket', window, matchers)}))"


def mean(name: str, window: str, by: str = "", matchers: str = "") -> str:
    """The mean of a histogram's observations in the window."""
    grouped = f"sum by ({by})" if by else "sum"
    total, count = (f"{grouped} ({_part(name, part, window, matchers)})" for part in ("sum", "count"))
    return f"{total} / {count}"


def metrics_in(query: str) -> set[str]:
    """The names of metrics in a query, those of a histogram's parts without their suffix.

    It reads the names of unknown metrics too, so that a test can find them.
    """
    bare = ASIDES.sub(" ", re.sub(r'"[^"]*"', '""', query))
    found = set()
    for match in NAME.finditer(bare):
        is_function = bare[match.end() :].lstrip().startswith("(")
        if not is_function and match[0] not in KEYWORDS:
            found.add(_whole(match[0]))
    return found


def _part(name: str, part: str, window: str, matchers: str) -> str:
    metric: Metric = DECLARED[name]
    if metric.type != "histogram":
        raise KeyError(f"{name} is no histogram: it has no _{part}.")
    return f"rate({name}_{part}" + (f"{{{matchers}}}" if matchers else "") + f"[{window}])"


def _whole(name: str) -> str:
    """The histogram that a series belongs to, or the name itself."""
    for suffix in HISTOGRAM_SUFFIXES:
        metric = DECLARED.get(name.removesuffix(suffix))
        if name.endswith(suffix) and metric is not None and metric.type == "histogram":
            return metric.exposed_name
    return name
