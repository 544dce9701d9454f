"""What the operator exposes is what dashboard and alerts were made for."""

from __future__ import annotations

from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from slipway.metrics.operator import OPERATOR_METRICS
from slipway_operator.health import Metrics, Vitals
from slipway_operator.unready import unready

VITALS = Vitals(
    running_for=1000.0,
    begun=True,
    synced=True,
    active=True,
    watching=True,
    queue_depth=2,
    queue_age=1.5,
    watch_age=3.0,
    answer_age=1.0,
    outage_age=900.0,
    resources=7,
    children={"Pod": 3},
    calls={("GET", 200): 5},
    unready=(("team-a", "demo", "Unschedulable"),),
)


def exposed() -> dict[str, tuple[str, str, set[str]]]:
    """Name → type, summary and labels, those of buckets left out."""
    metrics = Metrics(lambda: VITALS)
    metrics.reconciles.labels("done").inc()
    metrics.seconds.observe(0.02)
    families = text_string_to_metric_families(generate_latest(metrics.registry).decode())
    return {
        family.name: (
            family.type,
            family.documentation,
            {label for sample in family.samples for label in sample.labels} - {"le"},
        )
        for family in families
        if not family.name.endswith("_created")
    }


def test_the_operator_exposes_exactly_the_declared_metrics():
    declared = {
        metric.name.removesuffix("_total"): (metric.type, metric.summary, set(metric.labels))
        for metric in OPERATOR_METRICS
    }
    assert exposed() == declared


def service(name: str, ready: str | None = None, **spec: object) -> dict[str, object]:
    conditions = [{"type": "Ready", "status": ready, "reason": "NoReadyPod"}] if ready else []
    return {
        "metadata": {"namespace": "team-a", "name": name},
        "spec": spec,
        "status": {"observedGeneration": 1, "conditions": conditions},
    }


def test_a_service_is_unready_until_its_condition_ready_is_true():
    services = [
        service("new"),
        service("serves", "True"),
        service("stuck", "False"),
        service("lost", "Unknown"),
    ]
    assert [unready(one) for one in services] == ["", None, "NoReadyPod", "NoReadyPod"]


def test_a_service_that_asks_for_no_pod_is_not_unready():
    assert unready(service("off", suspend=True)) is None
    assert unready(service("zero", replicas=0)) is None


def test_a_service_without_any_status_is_unready():
    assert unready({"metadata": {"namespace": "n", "name": "x"}}) == ""
