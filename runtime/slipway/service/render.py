"""The Kubernetes objects of a service."""

from __future__ import annotations

from collections.abc import Mapping

from slipway.service.facts import Facts
from slipway.service.labels import labels, selector
from slipway.service.network import policy_spec
from slipway.service.pod import Object, pod_template
from slipway.service.rollout import REASON, check_replicas, strategy, unusual
from slipway.service.spec import API_VERSION, KIND, ServiceSpec


def render(spec: ServiceSpec, facts: Facts) -> list[Object]:
    """Every object that this service should have, and nothing else. Same input, same output: no
    clock, no network.

    Raises InvalidService where its claims are for fewer pods.
    """
    check_replicas(spec, facts)
    monitored = spec.monitoring.enabled and facts.has(spec.monitoring.kind)
    evictable = spec.replicas > 1 and not spec.suspend
    return [
        deployment(spec, facts),
        service(spec, facts),
        *([monitor(spec, facts)] if monitored else []),
        *([disruption_budget(spec, facts)] if evictable else []),
        *network_policies(spec, facts),
    ]


def deployment(spec: ServiceSpec, facts: Facts) -> Object:
    """It always has its replicas: an autoscaler targets the resource, whose /scale sets them there."""
    wanted = spec.rollout
    reason = unusual(spec, facts)
    annotations = {**wanted.annotations, **({REASON: reason} if reason else {})}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": metadata(spec, facts, wanted.labels, annotations),
        "spec": {
            "replicas": 0 if spec.suspend else spec.replicas,
            "revisionHistoryLimit": 3,
            "progressDeadlineSeconds": wanted.progress_deadline_seconds,
            "strategy": strategy(spec, facts),
            "selector": {"matchLabels": selector(spec.name)},
            "template": pod_template(spec, facts),
        },
    }


def service(spec: ServiceSpec, facts: Facts) -> Object:
    """For requests and for the ServiceMonitor alike.

    Prometheus scrapes the endpoints that are not ready too, so that loading pods need no second
    Service, and requests never reach them.
    """
    wanted = spec.service
    port = {
        "name": "http",
        "port": wanted.port,
        "targetPort": "http",
        "protocol": "TCP",
        "appProtocol": "https" if spec.secrets.tls else "http",
    }
    optional: Object = {
        "loadBalancerClass": wanted.load_balancer_class,
        "loadBalancerSourceRanges": list(wanted.load_balancer_source_ranges),
        "externalTrafficPolicy": wanted.external_traffic_policy,
        "trafficDistribution": wanted.traffic_distribution,
    }
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata(spec, facts, wanted.labels, wanted.annotations),
        "spec": {
            "type": wanted.type,
            "ipFamilyPolicy": wanted.ip_family_policy,
            "selector": selector(spec.name),
            "ports": [port],
            **{name: value for name, value in optional.items() if value},
        },
    }


def monitor(spec: ServiceSpec, facts: Facts) -> Object:
    """Tells the Prometheus Operator where the metrics are. The job is the service's name."""
    wanted = spec.monitoring
    by_service = wanted.kind == "ServiceMonitor"
    endpoint: Object = {
        "port": "http",
        "path": "/metrics",
        "interval": wanted.interval,
        "scheme": "https" if spec.secrets.tls else "http",
    }
    if spec.secrets.tls:
        # Prometheus scrapes pods by address, and the certificate names the Service.
        endpoint["tlsConfig"] = {"insecureSkipVerify": True}
    return {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": wanted.kind,
        "metadata": metadata(spec, facts, {**facts.monitoring_labels, **wanted.labels}, wanted.annotations),
        "spec": {
            "jobLabel": "app.kubernetes.io/instance",
            "selector": {"matchLabels": selector(spec.name)},
            "endpoints" if by_service else "podMetricsEndpoints": [endpoint],
        },
    }


def network_policies(spec: ServiceSpec, facts: Facts) -> list[Object]:
    """One where the document says who may reach whom."""
    wanted = policy_spec(spec, facts)
    if wanted is None:
        return []
    head = {"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": metadata(spec, facts)}
    return [{**head, "spec": wanted}]


def disruption_budget(spec: ServiceSpec, facts: Facts) -> Object:
    """Holds ready pods back only: one that fails or loads must not keep a node from being drained."""
    wanted = spec.disruption
    budget: Object = {"maxUnavailable": 1 if wanted.max_unavailable is None else wanted.max_unavailable}
    if wanted.min_available is not None:
        budget = {"minAvailable": wanted.min_available}
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": metadata(spec, facts, wanted.labels, wanted.annotations),
        "spec": {
            **budget,
            "unhealthyPodEvictionPolicy": "AlwaysAllow",
            "selector": {"matchLabels": selector(spec.name)},
        },
    }


def metadata(
    spec: ServiceSpec,
    facts: Facts,
    extra: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
    name: str | None = None,
) -> Object:
    """Of an object that is made for the service and goes with it; it has its name where it has no other.
    `extra` are labels beside our own."""
    made: Object = {"name": name or spec.name, "labels": {**(extra or {}), **labels(spec)}}
    if namespace := facts.namespace or spec.metadata.namespace:
        made["namespace"] = namespace
    if annotations:
        made["annotations"] = dict(annotations)
    if facts.owner:
        # Without blockOwnerDeletion, which OpenShift refuses to whoever may not set finalizers.
        owner = {"apiVersion": API_VERSION, "kind": KIND, "name": facts.owner.name, "uid": facts.owner.uid}
        made["ownerReferences"] = [owner | {"controller": True}]
    return made
