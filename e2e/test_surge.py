"""Without a word on surges, with devices: a pod more where one is free, else an old one ends first."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e.ground.control_plane import ControlPlane
from e2e.operators import Namespace, Object, service, serving, until

GPU = "nvidia.com/gpu"


@pytest.fixture
def models(plane: ControlPlane, tmp_path: Path) -> Iterator[Namespace]:
    with serving(plane, tmp_path, "surge") as namespace:
        yield namespace


def wish(name: str, length: int, replicas: int = 1) -> Object:
    return service(
        name,
        devices={"vendor": "nvidia"},
        engine={"maxModelLen": length},
        replicas=replicas,
    )


def until_serving(models: Namespace, name: str, length: int) -> Object:
    """Every pod is of this length; the Deployment then."""

    def arrived() -> bool:
        found = models.get("deployment", name)
        if found is None:
            return False
        arguments = found["spec"]["template"]["spec"]["containers"][0]["args"]
        return str(length) in arguments and models.condition(name, "Ready").get("status") == "True"

    until(arrived, f"{name} serves with {length}")
    return models.the("deployment", name)


def told(models: Namespace, name: str) -> str:
    return str(models.condition(name, "Progressing")["message"])


def test_one_replica_is_replaced_in_place_where_no_device_is_free_and_beside_it_where_one_is(
    plane: ControlPlane, models: Namespace
) -> None:
    plane.kwok(1, {GPU: 1}, pool="one")
    models.apply(wish("demo", 512))
    assert until_serving(models, "demo", 512)["spec"]["strategy"]["type"] == "RollingUpdate"
    models.apply(wish("demo", 1024))
    full = "Recreate: no node has nvidia.com/gpu 1 free beside the pods that run."
    assert until_serving(models, "demo", 1024)["spec"]["strategy"] == {"type": "Recreate"}
    assert full in told(models, "demo")
    plane.kwok(1, {GPU: 1}, pool="two")
    models.apply(wish("demo", 2048))
    surged = until_serving(models, "demo", 2048)["spec"]["strategy"]
    assert surged == {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}}
    assert "Recreate" not in told(models, "demo")


def test_several_replicas_take_turns_where_no_device_is_free(plane: ControlPlane, models: Namespace) -> None:
    plane.kwok(2, {GPU: 1})
    models.apply(wish("pair", 512, replicas=2))
    until_serving(models, "pair", 512)
    models.apply(wish("pair", 1024, replicas=2))
    turns = until_serving(models, "pair", 1024)["spec"]["strategy"]["rollingUpdate"]
    assert turns == {"maxSurge": 0, "maxUnavailable": 1}
    assert told(models, "pair").endswith(
        "One after another: no node has nvidia.com/gpu 1 free beside the pods that run. With a node more, "
        "rollouts keep all replicas."
    )
