"""Who reaches a service's pods, and whom they reach."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from test_podman import FACTS, changed

from slipway.service import InvalidService, render
from slipway.service.network import port_of

WEB = {"podSelector": {"matchLabels": {"app": "web"}}}
HUB = {"hub": {"id": "org/name"}}


def policy_of(facts: Any = FACTS, **spec: Any) -> dict[str, Any] | None:
    made = [one for one in render(changed("demo", **spec), facts) if one["kind"] == "NetworkPolicy"]
    return made[0]["spec"] if made else None


def ports(rule: dict[str, Any]) -> list[tuple[int, str]]:
    return [(one["port"], one["protocol"]) for one in rule["ports"]]


def test_without_a_word_of_it_everybody_reaches_everybody():
    assert policy_of() is None


def test_clients_scrapers_and_the_operator_reach_the_api_and_nobody_else():
    made = policy_of(service={"from": [WEB]})
    assert made is not None
    assert made["policyTypes"] == ["Ingress"]
    (rule,) = made["ingress"]
    assert ports(rule) == [(8000, "TCP")]
    client, prometheus, operator = rule["from"]
    assert client == WEB
    assert prometheus["podSelector"]["matchLabels"] == {"app.kubernetes.io/name": "prometheus"}
    assert operator["namespaceSelector"]["matchLabels"] == {"kubernetes.io/metadata.name": "slipway-system"}
    assert operator["podSelector"]["matchLabels"] == {"app.kubernetes.io/name": "slipway-operator"}


def test_an_empty_list_lets_no_client_in_and_who_scrapes_and_where_the_operator_runs_are_facts():
    facts = replace(FACTS, scrapers=(), operator_namespace="ours")
    made = policy_of(facts, service={"from": []})
    assert made is not None
    (operator,) = made["ingress"][0]["from"]
    assert operator["namespaceSelector"]["matchLabels"] == {"kubernetes.io/metadata.name": "ours"}


@pytest.mark.parametrize(
    ("spec", "open_ports"),
    [
        ({"model": {"path": "/m"}}, []),
        ({"model": HUB}, [443]),
        ({"model": HUB, "env": [{"name": "HF_ENDPOINT", "value": "http://hub.local"}]}, [80]),
        ({"model": HUB, "env": [{"name": "HTTPS_PROXY", "value": "http://proxy:3128"}]}, [443, 3128]),
        ({"model": {"s3": {"uri": "s3://b/x", "endpoint": "https://minio.local:9000"}}}, [9000]),
        ({"model": {"s3": {"uri": "s3://b/x"}}}, [443]),
    ],
)
def test_pods_reach_name_servers_and_the_model_s_source_and_nobody_else(spec, open_ports):
    made = policy_of(**spec, service={"to": []})
    assert made is not None
    assert made["policyTypes"] == ["Egress"]
    names, *sources = made["egress"]
    assert ports(names) == [(53, "UDP"), (53, "TCP")]
    assert [port for rule in sources for port, _ in ports(rule)] == open_ports
    with_peer = policy_of(**spec, service={"to": [WEB]})
    assert with_peer is not None
    assert with_peer["egress"] == [*made["egress"], {"to": [WEB]}]


@pytest.mark.parametrize(
    ("url", "port"),
    [("https://a", 443), ("http://a/b", 80), ("a:3128", 3128), ("http://[::1]:9", 9), ("proxy", 443)],
)
def test_a_url_without_a_port_has_that_of_its_scheme(url, port):
    assert port_of(url) == port


@pytest.mark.parametrize("peer", [{}, {"podSelector": {}, "ipBlock": {"cidr": "10.0.0.0/8"}}])
def test_a_peer_is_of_one_kind(peer):
    with pytest.raises(InvalidService, match=r"spec\.service\.to\[0\]: it names either pods and namespaces"):
        changed("demo", service={"to": [peer]})
