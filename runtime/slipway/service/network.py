"""Who reaches a service's pods and whom they reach: its NetworkPolicy, where the document asks for one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

from slipway.service.engine import literals
from slipway.service.facts import Facts
from slipway.service.fields import written
from slipway.service.labels import NAME, labels
from slipway.service.pod import PORT
from slipway.service.spec import ServiceSpec

Object = dict[str, Any]

DNS_PORT = 53
HTTPS_PORT = 443
OPERATOR = {"app.kubernetes.io/name": "slipway-operator"}
"""Labels of the operator's pods."""
NAMESPACE = "kubernetes.io/metadata.name"
"""Label that every namespace has, with its name."""
PROXIES = ("HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy")


def policy_spec(spec: ServiceSpec, facts: Facts) -> Object | None:
    """Of the NetworkPolicy; None where the document leaves the pods open."""
    clients, targets = spec.service.from_, spec.service.to
    if clients is None and targets is None:
        return None
    # Also of the pod that asks whether the model fits, which no Service finds.
    own = {key: value for key, value in labels(spec).items() if key != NAME}
    made: Object = {"podSelector": {"matchLabels": own}, "policyTypes": []}
    if clients is not None:
        api = [{"port": PORT, "protocol": "TCP"}]
        # The metrics are on the API's port, and the operator asks there how far a server is.
        peers = [*written(clients), *written(facts.scrapers), _operator(facts)]
        made["policyTypes"].append("Ingress")
        made["ingress"] = [{"from": peers, "ports": api}]
    if targets is not None:
        made["policyTypes"].append("Egress")
        made["egress"] = [*_egress(spec), *([{"to": written(targets)}] if targets else [])]
    return made


def _operator(facts: Facts) -> Object:
    return {
        "namespaceSelector": {"matchLabels": {NAMESPACE: facts.operator_namespace}},
        "podSelector": {"matchLabels": OPERATOR},
    }


def _egress(spec: ServiceSpec) -> Iterator[Object]:
    """Names, and where the model comes from: by port, since no policy knows names of hosts."""
    yield {"ports": [{"port": DNS_PORT, "protocol": protocol} for protocol in ("UDP", "TCP")]}
    if ports := _source_ports(spec):
        yield {"ports": [{"port": port, "protocol": "TCP"} for port in sorted(ports)]}


def _source_ports(spec: ServiceSpec) -> set[int]:
    """Where hub or bucket answer, or the proxy before them."""
    variables = literals(spec)
    if spec.model.hub:
        source = variables.get("HF_ENDPOINT")
    elif spec.model.s3:
        source = spec.model.s3.endpoint or variables.get("AWS_ENDPOINT_URL")
    else:
        return set()
    proxies = [variables[name] for name in PROXIES if variables.get(name)]
    return {port_of(url) if url else HTTPS_PORT for url in (source, *proxies)}


def port_of(url: str) -> int:
    """https://host → 443; a URL that names no port has that of its scheme."""
    parts = urlsplit(url if "//" in url else f"//{url}")
    return parts.port or (80 if parts.scheme == "http" else HTTPS_PORT)
