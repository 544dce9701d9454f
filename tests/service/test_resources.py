"""What pods are promised, and what they may use at most."""

from __future__ import annotations

from typing import Any

import pytest

from slipway.service import Facts, InvalidService, from_mapping, render
from slipway.service.podman import podman_command

GPU = {"devices": {"vendor": "nvidia"}}
SHARDED = {**GPU, "engine": {"tensorParallelSize": 4}}


def spec_with(resources: dict[str, Any], **spec: Any) -> Any:
    return from_mapping(
        {
            "apiVersion": "slipway.dev/v1alpha1",
            "kind": "InferenceService",
            "metadata": {"name": "demo"},
            "spec": {"model": {"s3": {"uri": "s3://models/demo"}}, "resources": resources, **spec},
        }
    )


def pod_with(resources: dict[str, Any], **spec: Any) -> dict[str, Any]:
    deployment = render(spec_with(resources, **spec), Facts())[0]
    pod: dict[str, Any] = deployment["spec"]["template"]["spec"]
    return pod


@pytest.mark.parametrize(
    ("spec", "resources", "requests", "limits"),
    [
        # On CPU: nothing by itself, and a limit that the server's threads follow.
        ({}, {}, {}, {}),
        ({}, {"cpu": 2, "memory": "4Gi"}, {"cpu": "2", "memory": "5Gi"}, {"cpu": "2", "memory": "5Gi"}),
        ({}, {"cpu": 2, "limits": {"cpu": 4}}, {"cpu": "2"}, {"cpu": "4"}),
        ({}, {"limits": {"cpu": 4}}, {"cpu": "4"}, {"cpu": "4"}),
        # With devices: what the server needs at least, and no limit that nobody asked for.
        (GPU, {}, {"cpu": "2", "memory": "5Gi"}, {}),
        (SHARDED, {}, {"cpu": "5", "memory": "20Gi"}, {}),
        ({**GPU, "engine": {"apiServerCount": 3}}, {}, {"cpu": "4", "memory": "5Gi"}, {}),
        ({"devices": {"claims": ["a"]}}, {}, {"cpu": "2", "memory": "5Gi"}, {}),
        (GPU, {"cpu": 8}, {"cpu": "8", "memory": "5Gi"}, {}),
        (GPU, {"memory": "64Gi"}, {"cpu": "2", "memory": "65Gi"}, {"memory": "65Gi"}),
        (GPU, {"limits": {"cpu": 8}}, {"cpu": "2", "memory": "5Gi"}, {"cpu": "8"}),
        # What is not given is never above a limit that is.
        (GPU, {"limits": {"cpu": "500m", "memory": "1Gi"}}, {"cpu": "500m", "memory": "2Gi"},
         {"cpu": "500m", "memory": "2Gi"}),
        (GPU, {"memory": "8Gi", "sharedMemory": "2Gi", "limits": {"memory": "30Gi"}},
         {"cpu": "2", "memory": "10Gi"}, {"memory": "32Gi"}),
        ({}, {"ephemeralStorage": "10G", "limits": {"ephemeralStorage": "20G"}},
         {"ephemeral-storage": "10G"}, {"ephemeral-storage": "20G"}),
        ({}, {"ephemeralStorage": "10G"}, {"ephemeral-storage": "10G"}, {"ephemeral-storage": "10G"}),
    ],
)  # fmt: skip
def test_requests_and_limits(spec, resources, requests, limits):
    found = pod_with(resources, **spec)["containers"][0].get("resources", {})
    counted = {"nvidia.com/gpu": str(spec.get("engine", {}).get("tensorParallelSize", 1))}
    devices = counted if "vendor" in spec.get("devices", {}) else {}
    assert found.get("requests", {}) == requests | devices
    assert found.get("limits", {}) == limits | devices


@pytest.mark.parametrize("resources", [{}, {"cpu": 8, "memory": "16Gi", "limits": {"cpu": 9}}])
def test_fetching_a_model_asks_for_no_more_than_the_server_and_for_no_device(resources):
    pod = pod_with(resources, **SHARDED)
    fetch, server = (pod[kind][0]["resources"] for kind in ("initContainers", "containers"))
    assert "nvidia.com/gpu" not in fetch["requests"]
    assert fetch["requests"]["cpu"] == server["requests"]["cpu"]
    assert fetch["requests"]["memory"] == "16Gi"  # and 4Gi for the server's /dev/shm


@pytest.mark.parametrize(
    ("resources", "message"),
    [
        (
            {"cpu": 2, "limits": {"cpu": "1500m"}},
            "spec.resources.limits.cpu: 1500m is less than 2, the promise of spec.resources.cpu.",
        ),
        (
            {"memory": "1Gi", "limits": {"memory": "1000Mi"}},
            "spec.resources.limits.memory: 1000Mi is less than 1Gi",
        ),
        (
            {"ephemeralStorage": "2k", "limits": {"ephemeralStorage": 1999}},
            "spec.resources.limits.ephemeralStorage: 1999 is less than 2k",
        ),
    ],
)
def test_a_limit_below_what_is_promised_is_refused(resources, message):
    with pytest.raises(InvalidService, match=message):
        spec_with(resources)


def test_podman_is_told_the_limits():
    command = podman_command(spec_with({"cpu": 2, "memory": "4Gi", "limits": {"cpu": 3}}, **GPU), Facts())
    assert "--cpus 3" in command
    assert "--memory 5g" in command
    assert "--cpus" not in podman_command(spec_with({"cpu": 2}, **GPU), Facts())
