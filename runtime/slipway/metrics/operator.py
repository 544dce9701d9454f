"""The operator's metrics, declared beside the server's: what dashboard and alerts may ask for."""

from __future__ import annotations

from slipway.metrics.metric import Metric

SECONDS_OF_A_RECONCILIATION = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)

OPERATOR_METRICS: tuple[Metric, ...] = (
    Metric(
        name="slipway_operator_active",
        type="gauge",
        summary="1 while this instance holds the Lease.",
        unit="instances",
        labels=(),
    ),
    Metric(
        name="slipway_operator_resources",
        type="gauge",
        summary="InferenceServices known.",
        unit="resources",
        labels=(),
    ),
    # Not `namespace` and `service`: Prometheus gives those names to the target, which is the operator.
    Metric(
        name="slipway_operator_unready",
        type="gauge",
        summary="1 for each InferenceService that should serve and whose condition Ready is not True.",
        unit="resources",
        labels=("resource_namespace", "resource", "reason"),
    ),
    Metric(
        name="slipway_operator_children",
        type="gauge",
        summary="Children known, by kind.",
        unit="objects",
        labels=("kind",),
    ),
    Metric(
        name="slipway_operator_reconciles_total",
        type="counter",
        summary="Reconciliations by outcome: done, retry (an error that a back-off mends) or failed.",
        unit="reconciliations",
        labels=("outcome",),
    ),
    Metric(
        name="slipway_operator_reconcile_seconds",
        type="histogram",
        summary="Duration of a reconciliation.",
        unit="seconds",
        buckets=SECONDS_OF_A_RECONCILIATION,
        labels=(),
    ),
    Metric(
        name="slipway_operator_queue_depth",
        type="gauge",
        summary="Keys that wait for work or are worked on.",
        unit="resources",
        labels=(),
    ),
    Metric(
        name="slipway_operator_queue_oldest_seconds",
        type="gauge",
        summary="Age of the oldest of them.",
        unit="seconds",
        labels=(),
    ),
    Metric(
        name="slipway_operator_watch_silence_seconds",
        type="gauge",
        summary="Since the most silent watch was last heard.",
        unit="seconds",
        labels=(),
    ),
    Metric(
        name="slipway_operator_api_calls_total",
        type="counter",
        summary="Calls of the API server by method and status; status 0 had no answer.",
        unit="requests",
        labels=("method", "status"),
    ),
)
