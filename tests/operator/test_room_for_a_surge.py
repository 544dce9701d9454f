"""What is said of room for a surge where no node needs to be asked: there is nobody to ask here."""

from __future__ import annotations

from typing import Any

import pytest

from slipway.service import Facts, ServiceSpec, from_mapping, render
from slipway_operator.surge import no_room

FULL = "no node has nvidia.com/gpu 1 free beside the pods that run"


def spec_of(
    replicas: int = 1, length: int = 512, devices: dict[str, Any] | None = None, **rollout: Any
) -> ServiceSpec:
    return from_mapping(
        {
            "apiVersion": "slipway.dev/v1alpha1",
            "kind": "InferenceService",
            "metadata": {"name": "demo"},
            "spec": {
                "model": {"path": "/models/demo"},
                "engine": {"maxModelLen": length},
                "devices": devices or {},
                "replicas": replicas,
                "rollout": {"maxSurge": "Auto", **rollout},
            },
        }
    )


def deployment(spec: ServiceSpec, no_room: str | None, pods: int) -> dict[str, Any]:
    return {**render(spec, Facts(no_room=no_room))[0], "status": {"replicas": pods}}


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
