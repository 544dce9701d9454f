"""Where the operator finds the profile that a service chooses."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from scripted_server import page, serving, watch
from test_informer import eventually

from slipway.service import InvalidService, ServiceSpec, from_mapping
from slipway.service.profile import read_profile
from slipway_operator.profile_store import Profiles


def service(profile: str | None) -> ServiceSpec:
    return from_mapping(
        {
            "apiVersion": "slipway.dev/v1alpha1",
            "kind": "InferenceService",
            "metadata": {"name": "demo"},
            "spec": {"model": {"path": "/models/demo"}, "profile": profile},
        }
    )


def printed(name: str, version: int, **spec: Any) -> dict[str, Any]:
    metadata = {"name": name, "uid": name, "resourceVersion": str(version)}
    return {
        "apiVersion": "slipway.dev/v1alpha1",
        "kind": "ServingProfile",
        "metadata": metadata,
        "spec": spec,
    }


async def test_a_profile_of_the_cluster_is_found_and_its_edits_are_told() -> None:
    changed: list[str] = []
    edited = watch(("MODIFIED", printed("gpu", 10, resources={"cpu": 2})))
    with serving(page(printed("gpu", 1), printed("cpu", 2), version=9), edited) as (cluster, _):
        profiles = Profiles({}, changed.append)
        profiles.follow(cluster)
        await eventually(lambda: changed.count("gpu") > 1)
        found = await profiles.chosen(service("gpu"))
        assert found is not None
        assert found.resources.cpu == "2"
        assert await profiles.chosen(service("gpu")) is found  # read once
        assert await profiles.chosen(service(None)) is None
        with pytest.raises(InvalidService, match=r"no ServingProfile amd\. There are cpu, gpu\.") as failure:
            await profiles.chosen(service("amd"))
        assert failure.value.reason == "ProfileMissing"
        profiles.leave()
        with pytest.raises(InvalidService, match="There is none at all"):
            await profiles.chosen(service("gpu"))


async def test_a_wrong_one_is_told() -> None:
    with serving(page(printed("gpu", 1, nodes={}), version=9)) as (cluster, _):
        profiles = Profiles({}, lambda name: None)
        profiles.follow(cluster)
        with pytest.raises(InvalidService, match="ServingProfile gpu cannot be used") as failure:
            await profiles.chosen(service("gpu"))
        assert failure.value.reason == "ProfileInvalid"
        profiles.leave()


async def test_without_a_cluster_they_are_those_of_the_settings() -> None:
    given = read_profile("gpu", {})
    profiles = Profiles({"gpu": given}, lambda name: None)
    asked = asyncio.create_task(profiles.chosen(service("gpu")))
    await asyncio.sleep(0)
    assert not asked.done()  # nobody knows yet where they are
    profiles.leave()
    assert await asked is given
