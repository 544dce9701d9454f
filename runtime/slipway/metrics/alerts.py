"""The alert rules, made from the declared metrics: a PrometheusRule for the Prometheus Operator.

Every budget is a constant here and stands in the alert's sentence; docs/kubernetes/monitoring.md says for
each alert what to look at first.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from slipway.metrics.promql import quantile, rate, series

QUEUE_BUDGET = 10
"""Requests that may wait, on average over the replicas of a service."""
CACHE_BUDGET = 0.95
"""Share of the KV cache above which preempting counts as running out."""
ERROR_BUDGET = 0.01
"""Share of requests that may end with an error of the server."""
FIRST_TOKEN_BUDGET = 5
"""Seconds within which 95 % of requests should have their first token."""

BY_MODEL = "namespace, job, model_name"
"""`job` is the service's name, by the monitors' jobLabel."""
WINDOW = "5m"
HEAD = "# Generated from slipway.metrics by `make generate`.\n"
PAGE = "docs/kubernetes/monitoring.md"


@dataclass(frozen=True, slots=True)
class Alert:
    """One rule. `summary` is a sentence with the value; `action` says what to change."""

    name: str
    query: str
    after: str
    severity: Literal["warning", "critical"]
    summary: str
    action: str

    def as_rule(self) -> dict[str, Any]:
        """The rule as Prometheus reads it."""
        return {
            "alert": self.name,
            "expr": self.query,
            "for": self.after,
            "labels": {"severity": self.severity},
            "annotations": {
                "summary": self.summary,
                "description": self.action,
                "runbook": f"{PAGE}#{self.name.lower()}",
            },
        }


def _per_model(aggregate: str, vector: str) -> str:
    return f"{aggregate} by ({BY_MODEL}) ({vector})"


_FAILURES = _per_model("sum", rate("slipway_request_failures_total", WINDOW))
_SUCCESSES = _per_model("sum", rate("vllm:request_success_total", WINDOW))
_FIRST_TOKEN = quantile(0.95, "vllm:time_to_first_token_seconds", WINDOW, BY_MODEL)
_FAILED_RECONCILES = rate("slipway_operator_reconciles_total", "10m", 'outcome="failed"')

SERVER_ALERTS = (
    Alert(
        name="SlipwayQueueLong",
        query=f"{_per_model('avg', series('vllm:num_requests_waiting'))} > {QUEUE_BUDGET}",
        after="5m",
        severity="warning",
        summary="{{ $labels.model_name }} in {{ $labels.namespace }} has "
        '{{ $value | printf "%.0f" }} requests waiting per replica.',
        action="Requests arrive faster than they are served. Raise spec.replicas, or spec.engine.maxNumSeqs "
        "where the KV cache has room.",
    ),
    Alert(
        name="SlipwayCacheFull",
        query=f"{_per_model('max', series('vllm:gpu_cache_usage_perc'))} > {CACHE_BUDGET:g}\n"
        f"  and {_per_model('sum', rate('vllm:num_preemptions_total', WINDOW))} > 0",
        after="10m",
        severity="warning",
        summary="{{ $labels.model_name }} in {{ $labels.namespace }} uses {{ $value | humanizePercentage }} "
        "of its KV cache and preempts requests.",
        action="Preempted requests are computed again. Give the KV cache more memory, lower "
        "spec.engine.maxNumSeqs or spec.engine.maxModelLen, or raise spec.replicas.",
    ),
    Alert(
        name="SlipwayErrors",
        query=f"{_FAILURES}\n  / ({_FAILURES}\n    + {_SUCCESSES})\n  > {ERROR_BUDGET:g}",
        after="5m",
        severity="critical",
        summary="{{ $value | humanizePercentage }} of the requests to {{ $labels.model_name }} in "
        "{{ $labels.namespace }} end with an error of the server.",
        action="The log of the pods says why; kubectl describe shows a restart and its cause.",
    ),
    Alert(
        name="SlipwayFirstTokenSlow",
        query=f"{_FIRST_TOKEN} > {FIRST_TOKEN_BUDGET}",
        after="10m",
        severity="warning",
        summary="The slowest twentieth of requests to {{ $labels.model_name }} in {{ $labels.namespace }} "
        "waits {{ $value | humanizeDuration }} or more for the first token.",
        action="Where requests queue, raise spec.replicas. Where none waits, prompts are long: enable "
        "spec.engine.enablePrefixCaching, or raise spec.resources.cpu or the devices.",
    ),
)

OPERATOR_ALERTS = (
    Alert(
        name="SlipwayNotReady",
        # Without the reason: a cause that changes must not start the wait anew.
        query=f"max by (resource_namespace, resource) ({series('slipway_operator_unready')}) > 0",
        after="15m",
        severity="critical",
        summary="InferenceService {{ $labels.resource }} in {{ $labels.resource_namespace }} should serve "
        "and has not been ready for 15 minutes.",
        action="kubectl get inferenceservices.slipway.dev shows the cause in the column REASON; "
        "docs/kubernetes/troubleshooting.md says what to do for each.",
    ),
    Alert(
        name="SlipwayOperatorErrors",
        query=f"sum by (namespace, job) ({_FAILED_RECONCILES}) > 0",
        after="15m",
        severity="warning",
        summary="The Slipway operator in {{ $labels.namespace }} has failed at a resource for 15 minutes.",
        action="Its log names the resource and the error. Services keep serving meanwhile.",
    ),
    Alert(
        name="SlipwayOperatorWithoutLeader",
        query=f"absent({series('slipway_operator_active')} == 1)",
        after="2m",
        severity="critical",
        summary="No instance of the Slipway operator holds its Lease, or none is scraped.",
        action="Services keep serving, but no change is carried out. Look at the operator's pods and at the "
        "Lease in its namespace.",
    ),
)

ALERTS = (*SERVER_ALERTS, *OPERATOR_ALERTS)


def prometheus_rule() -> dict[str, Any]:
    """The PrometheusRule object, without a namespace: it goes where it is applied."""
    groups = {"slipway": SERVER_ALERTS, "slipway-operator": OPERATOR_ALERTS}
    return {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PrometheusRule",
        "metadata": {"name": "slipway", "labels": {"app.kubernetes.io/name": "slipway"}},
        "spec": {
            "groups": [
                {"name": name, "rules": [alert.as_rule() for alert in alerts]}
                for name, alerts in groups.items()
            ]
        },
    }


def alert_rules() -> str:
    """The file helm/slipway/files/alerts.yaml."""
    import yaml

    class Readable(yaml.SafeDumper):
        """Writes a text of several lines as such."""

    def text(dumper: yaml.SafeDumper, value: str) -> yaml.Node:
        style = "|" if "\n" in value else None
        return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=style)

    Readable.add_representer(str, text)
    return HEAD + yaml.dump(prometheus_rule(), Dumper=Readable, sort_keys=False, width=110)
