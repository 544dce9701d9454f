"""The manual's page on metrics."""

from __future__ import annotations

from slipway.metrics.declared import DEPRECATED, METRICS, OWN, REQUESTS, SPECULATION, STATE, TOKENS
from slipway.metrics.metric import COMPATIBLE_WITH, Metric
from slipway.metrics.operator import OPERATOR_METRICS

SECTIONS = {
    "State": STATE,
    "Tokens": TOKENS,
    "Requests": REQUESTS,
    "Speculation": SPECULATION,
    "Slipway's own": OWN,
    "Deprecated": DEPRECATED,
}
HEAD = """\
<!-- Generated from slipway.metrics by `make generate`. -->
# Metrics

`GET /metrics` on the port of the API answers in Prometheus' text format, without a key. Names, labels
and buckets are those of vLLM {major}.{minor}; beside them are names of newer releases. `model_name` is the
first `--served-model-name`, else the model. A deprecated metric is hidden from the release after the one that
deprecated it; `--show-hidden-metrics-for-version X.Y` shows those deprecated in X.Y or hidden since X.Y.

{count} metrics of vLLM's documents: {built} implemented, {unbuilt} not built yet.
"""

OPERATOR = """\
## The operator

It answers `/metrics` on its own port, 8080 in the chart.
"""

EXPOSED = {metric.name: metric.exposed_name for metric in METRICS}


def manual() -> str:
    """The page docs/reference/metrics.md."""
    documented = [metric for metric in METRICS if not metric.own]
    built = sum(metric.status == "implemented" for metric in documented)
    major, minor = COMPATIBLE_WITH
    head = HEAD.format(
        major=major,
        minor=minor,
        count=len(documented),
        built=built,
        unbuilt=len(documented) - built,
    )
    sections = (f"## {title}\n\n" + "\n".join(map(_entry, metrics)) for title, metrics in SECTIONS.items())
    return "\n".join((head, *sections, OPERATOR, *map(_entry, OPERATOR_METRICS)))


def _entry(metric: Metric) -> str:
    lines = [f"### `{metric.exposed_name}`", "", metric.summary, ""]
    labels = f"labels {', '.join(metric.labels)}" if metric.labels else "no labels"
    lines.append(f"- {metric.type}, in {metric.unit}; {labels}")
    if metric.buckets == "up to max_model_len":
        lines.append("- buckets 1, 2, 5, 10, 20, 50, … up to `--max-model-len`")
    elif metric.buckets:
        lines.append(f"- buckets {', '.join(f'{bound:g}' for bound in metric.buckets)}")
    if metric.same_as:
        lines.append(f"- the same as `{EXPOSED[metric.same_as]}`, by its newer name")
    if metric.deprecated_in:
        lines.append("- deprecated in {}.{}".format(*metric.deprecated_in))
    if metric.replacement:
        lines.append("- use instead: " + ", ".join(f"`{name}`" for name in metric.replacement))
    if metric.since:
        lines.append(f"- has a series from {metric.since}")
    if metric.reason:
        lines.append(f"- today: {metric.status}: {metric.reason}")
    return "\n".join((*lines, ""))
