"""What is said of room for a surge: what a rollout said before, and what nodes and their pods have free."""

from __future__ import annotations

from typing import Any

import pytest
from as_printed import Object, node, pod
from scripted_server import page, serving

from slipway.service import Facts, ServiceSpec, from_mapping, render
from slipway.service.labels import selector
from slipway_operator.discovery import Nodes
from slipway_operator.surge import no_room

GPU: dict[str, Any] = {"vendor": "nvidia"}
FULL = "no node has nvidia.com/gpu 1 free beside the pods that run"


def spec_of(
    replicas: int = 1,
    length: int = 512,
    devices: dict[str, Any] = GPU,
    resources: dict[str, Any] | None = None,
    **rollout: Any,
) -> ServiceSpec:
    return from_mapping(
        {
            "apiVersion": "slipway.dev/v1alpha1",
            "kind": "InferenceService",
            "metadata": {"name": "demo"},
            "spec": {
                "model": {"path": "/models/demo"},
                "engine": {"maxModelLen": length},
                "devices": devices,
                "resources": resources or {},
                "replicas": replicas,
                "rollout": rollout,
            },
        }
    )


def deployment(spec: ServiceSpec, no_room: str | None, pods: int) -> dict[str, Any]:
    return {**render(spec, Facts(no_room=no_room))[0], "status": {"replicas": pods}}


async def asked(
    nodes: list[Object], *pods: list[Object], resources: dict[str, Any] | None = None, **devices: Any
) -> str | None:
    """What is said where these nodes are, each with its pods, of a Deployment `demo` whose pod changes."""
    lists = [page(*on_node, version=1, path="/api/v1/pods") for on_node in pods]
    with serving(page(*nodes, version=1, path="/api/v1/nodes"), *lists) as (cluster, _):
        known = Nodes(cluster, permitted=True)
        old = spec_of()
        new = spec_of(length=1024, devices=GPU | devices, resources=resources or {})
        live = {**render(old, Facts(namespace="models"))[0], "status": {"replicas": 1}}
        found = await no_room(cluster, known, new, render(new, Facts())[0]["spec"]["template"], live)
        assert known._informer is not None
        known._informer.stop()
        return found


def gpus(name: str, count: int, **more: str) -> Object:
    has = {"cpu": "32", "memory": "64Gi", "nvidia.com/gpu": str(count), **more}
    made = node(name, **{key: value for key, value in has.items() if value != "0"})
    made["metadata"] |= {"resourceVersion": "1", "labels": {"kubernetes.io/arch": "amd64"}}
    return made


def holding(count: int, service: str = "demo") -> Object:
    made = pod(node="a", resources={"limits": {"nvidia.com/gpu": str(count)}})
    made["metadata"]["labels"] = selector(service)
    return made


async def test_a_free_device_is_room_whoever_has_the_others() -> None:
    assert await asked([gpus("a", 2)], [holding(1)]) is None
    assert await asked([gpus("a", 1), gpus("b", 1)], [holding(1)], []) is None


async def test_where_the_old_pod_has_the_only_device_it_ends_first() -> None:
    assert await asked([gpus("a", 1)], [holding(1)]) == FULL
    assert await asked([gpus("a", 1), gpus("b", 1)], [holding(1, "other")], [holding(1)]) == FULL


async def test_old_pods_serve_on_where_their_end_would_not_help_the_new_one() -> None:
    assert await asked([gpus("a", 1)], [holding(1, "other")]) is None
    assert await asked([gpus("a", 0)], [holding(1)]) is None
    too_large = {"memory": "500Gi"}
    assert await asked([gpus("a", 1)], [holding(1)], resources=too_large) is None


async def test_what_no_node_has_is_not_counted() -> None:
    shares = {"nvidia.com/gpumem": 8000}
    assert await asked([gpus("a", 2)], [holding(1)], resources=shares) is None
    assert await asked([gpus("a", 1)], [holding(1)], resources=shares) == FULL
    assert await asked([gpus("a", 1)], [holding(1)], profile="1g.10gb") is None


async def test_without_devices_nobody_is_asked() -> None:
    live = deployment(spec_of(devices={}), None, 1)
    assert await said(spec_of(length=1024, devices={}), live) is None


async def said(spec: ServiceSpec, live: dict[str, Any] | None) -> str | None:
    template = render(spec, Facts())[0]["spec"]["template"]
    return await no_room(None, None, spec, template, live)  # type: ignore[arg-type]


@pytest.mark.parametrize("told", [FULL, None])
@pytest.mark.parametrize("pods", [0, 1])
@pytest.mark.parametrize("replicas", [1, 2])
async def test_a_rollout_goes_on_as_it_began_also_in_the_moment_without_pods(told, pods, replicas) -> None:
    assert await said(spec_of(replicas), deployment(spec_of(), told, pods)) == told


async def test_a_change_asks_nobody_where_no_pod_is_in_the_way() -> None:
    assert await said(spec_of(length=1024), deployment(spec_of(), FULL, 0)) is None
    assert await said(spec_of(length=1024), None) is None


async def test_who_gave_a_number_is_told_nothing() -> None:
    assert await said(spec_of(maxSurge=1), deployment(spec_of(), FULL, 1)) is None


async def test_what_was_said_of_a_claim_is_nothing_of_room() -> None:
    live = deployment(spec_of(), None, 1)
    live["metadata"]["annotations"] = {"slipway.dev/rollout": "Recreate: the claim c is ReadWriteOnce. So."}
    assert await said(spec_of(), live) is None


@pytest.mark.parametrize(
    ("claim", "why"),
    [
        ("two-gpus", "what claims have free is not known before a pod asks"),
        (
            {"resourceClaimName": "pair"},
            "a new pod would share the devices of claim pair with the pods that run",
        ),
    ],
)
async def test_with_claims_old_pods_end_first(claim, why) -> None:
    devices = {"claims": [claim]}
    live = deployment(spec_of(devices=devices), None, 1)
    assert await said(spec_of(length=1024, devices=devices), live) == why
