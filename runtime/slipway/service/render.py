"""The Kubernetes objects of a service."""

from __future__ import annotations

from slipway.service.facts import Facts
from slipway.service.pod import Object, pod_template, selector
from slipway.service.spec import ServiceSpec


def render(spec: ServiceSpec, facts: Facts) -> list[Object]:
    """Every object that this service should have, and nothing else. Same input, same output: no
    clock, no network."""
    return [
        deployment(spec, facts),
        service(spec),
        *([monitor(spec)] if spec.monitoring.enabled and facts.has(spec.monitoring.kind) else []),
        *([disruption_budget(spec)] if spec.replicas > 1 else []),
    ]


def deployment(spec: ServiceSpec, facts: Facts) -> Object:
    rollout = spec.rollout
    surge = {"maxSurge": rollout.max_surge, "maxUnavailable": rollout.max_unavailable}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": _metadata(spec),
        "spec": {
            "replicas": 0 if spec.suspend else spec.replicas,
            "revisionHistoryLimit": 3,
            "progressDeadlineSeconds": rollout.progress_deadline_seconds,
            "strategy": {"type": "RollingUpdate", "rollingUpdate": surge},
            "selector": {"matchLabels": selector(spec)},
            "template": pod_template(spec, facts),
        },
    }


def service(spec: ServiceSpec) -> Object:
    metadata = _metadata(spec, spec.service.labels)
    if spec.service.annotations:
        metadata["annotations"] = dict(spec.service.annotations)
    port = {
        "name": "http",
        "port": spec.service.port,
        "targetPort": "http",
        "protocol": "TCP",
        "appProtocol": "https" if spec.secrets.tls else "http",
    }
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata,
        "spec": {"type": spec.service.type, "selector": selector(spec), "ports": [port]},
    }


def monitor(spec: ServiceSpec) -> Object:
    """Tells the Prometheus Operator where the metrics are."""
    by_service = spec.monitoring.kind == "ServiceMonitor"
    endpoint: Object = {
        "port": "http",
        "path": "/metrics",
        "interval": spec.monitoring.interval,
        "scheme": "https" if spec.secrets.tls else "http",
    }
    return {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": spec.monitoring.kind,
        "metadata": _metadata(spec, spec.monitoring.labels),
        "spec": {
            "selector": {"matchLabels": selector(spec)},
            "endpoints" if by_service else "podMetricsEndpoints": [endpoint],
        },
    }


def disruption_budget(spec: ServiceSpec) -> Object:
    wanted = spec.disruption
    budget: Object = {"maxUnavailable": 1 if wanted.max_unavailable is None else wanted.max_unavailable}
    if wanted.min_available is not None:
        budget = {"minAvailable": wanted.min_available}
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": _metadata(spec),
        "spec": {**budget, "selector": {"matchLabels": selector(spec)}},
    }


def _metadata(spec: ServiceSpec, labels: object = None) -> Object:
    own = {**selector(spec), "app.kubernetes.io/managed-by": "slipway"}
    extra = dict(labels) if isinstance(labels, dict) else {}
    metadata: Object = {"name": spec.name, "labels": {**extra, **own}}
    if spec.metadata.namespace:
        metadata["namespace"] = spec.metadata.namespace
    return metadata
