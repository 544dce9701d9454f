"""From YAML text to a checked ServiceSpec."""

from __future__ import annotations

from collections.abc import Mapping

from slipway import envs
from slipway.service import firewall
from slipway.service.companions import check_companions
from slipway.service.devices import check_devices
from slipway.service.engine import literals, resolved_of
from slipway.service.fields import InvalidService, read, shown, unknown_field
from slipway.service.labels import check_labels
from slipway.service.policy import check_policy
from slipway.service.policy_values import Policy
from slipway.service.resources import check_resources
from slipway.service.rollout import is_zero
from slipway.service.spec import API_VERSION, KIND, Metadata, Service, ServiceSpec
from slipway.service.storage import check_mounts
from slipway.service.uncounted import check_uncounted
from slipway.service.yaml_text import parse_yaml

ONE_PEER = "it names either pods and namespaces, by podSelector and namespaceSelector, or an ipBlock"
LEAST_GRACE = 2
"""Seconds from a pod's deletion until no node sends it new connections, with some to spare."""
SOURCES = ("hub", "pvc", "image", "s3", "path")
CERTIFICATE_REQUIRED = 2
NO_ROOM = "needs a maxUnavailable above 0: with neither no pod can take another's place"
SET_BY_SERVER = frozenset(
    {
        "creationTimestamp",
        "deletionGracePeriodSeconds",
        "deletionTimestamp",
        "finalizers",
        "generateName",
        "generation",
        "managedFields",
        "ownerReferences",
        "resourceVersion",
        "selfLink",
        "uid",
    }
)
"""Fields of metadata in what `kubectl get -o yaml` prints; they say nothing about the service."""


STRICT = Policy()
"""What anyone may ask for."""


def load(text: str, policy: Policy = STRICT) -> ServiceSpec:
    """The one InferenceService in the YAML text, with every rule and the policy checked.

    Raises InvalidService.
    """
    return from_mapping(parse_yaml(text, KIND), policy)


def from_mapping(document: object, policy: Policy = STRICT) -> ServiceSpec:
    """The same from a document that is parsed already, such as an event's object."""
    if not isinstance(document, Mapping):
        raise InvalidService("document", f"{shown(document)} is not an {KIND}.")
    top = ["apiVersion", "kind", "metadata", "spec", "status"]
    for key in document:
        if key not in top:
            raise unknown_field("document", key, top)
    for key, expected in (("apiVersion", API_VERSION), ("kind", KIND)):
        if document.get(key) != expected:
            raise InvalidService(key, f"{shown(document.get(key))} is not {expected}.")
    metadata = document.get("metadata")
    if isinstance(metadata, Mapping):
        metadata = {key: item for key, item in metadata.items() if key not in SET_BY_SERVER}
    given = read(Metadata, metadata or {}, "metadata")
    spec = read(ServiceSpec, document.get("spec") or {}, "spec", metadata=given)
    _check_name(spec)
    _check_model(spec)
    _check_choices(spec)
    firewall.check_env(spec, policy.permitted_env)
    check_devices(spec, resolved_of(spec))
    check_resources(spec, resolved_of(spec))
    check_labels(spec)
    check_mounts(spec)
    check_companions(spec)
    if not spec.devices.present and not spec.profile:
        check_uncounted(spec)
    check_policy(spec, policy)
    return spec


def warnings(spec: ServiceSpec) -> list[str]:
    """What the document sets without effect, in sentences."""
    resolved = resolved_of(spec)
    found = [*envs.check(literals(spec)), *resolved.warnings]
    if resolved["drain_grace"] < LEAST_GRACE:
        found.append(
            f"spec.engine.drainGrace {resolved['drain_grace']} is less than the {LEAST_GRACE} s that nodes "
            "take to stop sending to a pod that ends: requests may be refused in rollouts. Raise it."
        )
    return found


def _check_name(spec: ServiceSpec) -> None:
    name = spec.name
    if name in ("kubernetes", "vllm") or name.startswith("vllm-"):
        raise InvalidService(
            "metadata.name",
            f"{name} would make a Service whose links ({name.upper().replace('-', '_')}_PORT=tcp://…) "
            "reach other pods as if they were settings. Choose another name.",
        )


def _check_model(spec: ServiceSpec) -> None:
    given = [source for source in SOURCES if getattr(spec.model, source) is not None]
    if len(given) != 1:
        counted = f"{' and '.join(given)} are given" if given else "none is given"
        raise InvalidService("spec.model", f"exactly one of {', '.join(SOURCES)} names the model; {counted}.")


def _check_choices(spec: ServiceSpec) -> None:
    """Fields of which one excludes or needs another."""
    for index, files in enumerate(spec.files):
        if (files.config_map is None) == (files.secret is None):
            path = f"spec.files[{index}]"
            raise InvalidService(path, "exactly one of configMap and secret is needed.")
    _check_service(spec.service)
    rollout = spec.rollout
    if rollout.max_surge is not None and is_zero(rollout.max_surge) and is_zero(rollout.max_unavailable):
        raise InvalidService("spec.rollout.maxSurge", f"{rollout.max_surge} {NO_ROOM}.")
    disruption = spec.disruption
    if disruption.min_available is not None and disruption.max_unavailable is not None:
        raise InvalidService(
            "spec.disruption", "minAvailable and maxUnavailable exclude each other. Keep one."
        )
    timeout, seconds = spec.engine.get("drainTimeout"), spec.rollout.drain_seconds
    if timeout is not None and seconds is not None and timeout != seconds:
        raise InvalidService(
            "spec.rollout.drainSeconds",
            f"{seconds} and spec.engine.drainTimeout: {timeout} say different things. Keep one.",
        )
    if spec.model.served_names and "servedModelName" in spec.engine:
        raise InvalidService("spec.engine.servedModelName", "spec.model.servedNames says it. Keep one.")
    if spec.model.hub and spec.model.hub.revision and "revision" in spec.engine:
        raise InvalidService("spec.engine.revision", "spec.model.hub.revision says it. Keep one.")
    cache = spec.model.cache
    if cache.pvc and cache.size:
        raise InvalidService("spec.model.cache", "pvc and size exclude each other: a claim has its size.")
    if cache.access_mode and not cache.pvc:
        raise InvalidService(
            "spec.model.cache.accessMode", "it is a claim's, and spec.model.cache has no pvc."
        )
    if spec.secrets.tls and spec.engine.get("sslCertReqs") == CERTIFICATE_REQUIRED:
        raise InvalidService(
            "spec.engine.sslCertReqs",
            "2 asks every client for a certificate, which the kubelet's probes do not have: no pod would "
            "ever be ready. Use 1, which checks those that are given.",
        )


def _check_service(service: Service) -> None:
    """What only some types of a Service have, and that each peer is one."""
    for field, peers in (("from", service.from_), ("to", service.to)):
        for index, peer in enumerate(peers or ()):
            by_label = peer.pod_selector is not None or peer.namespace_selector is not None
            if by_label == (peer.ip_block is not None):
                raise InvalidService(f"spec.service.{field}[{index}]", f"{ONE_PEER}.")
    needed = {
        "externalTrafficPolicy": (service.external_traffic_policy, ("NodePort", "LoadBalancer")),
        "loadBalancerClass": (service.load_balancer_class, ("LoadBalancer",)),
        "loadBalancerSourceRanges": (service.load_balancer_source_ranges, ("LoadBalancer",)),
    }
    for name, (value, types) in needed.items():
        if value and service.type not in types:
            raise InvalidService(
                f"spec.service.{name}",
                f"it is for type {' or '.join(types)}, and this Service is of type {service.type}. "
                "Change the one, or leave out the other.",
            )
