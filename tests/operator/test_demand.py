"""What pods ask of nodes and nodes have, by the scheduler's rules."""

from __future__ import annotations

from typing import Any

import pytest

from slipway_operator.demand import admitted, lacking, request

Object = dict[str, Any]
GPU = "nvidia.com/gpu"


def container(restart: str | None = None, limits: Object | None = None, **requests: object) -> Object:
    policy = {"restartPolicy": restart} if restart else {}
    return {"name": "one", "resources": {"requests": requests, "limits": limits or {}}, **policy}


def node(taints: list[Object] | None = None, unschedulable: bool = False, **has: object) -> Object:
    return {
        "metadata": {"name": "node", "labels": {"pool": "a"}},
        "spec": {"taints": taints or [], "unschedulable": unschedulable},
        "status": {"allocatable": has},
    }


def test_a_pod_asks_for_the_sum_of_its_containers_and_at_least_what_an_initial_one_does() -> None:
    spec = {
        "containers": [container(cpu="500m", memory="1Gi"), container(limits={"cpu": 1})],
        "initContainers": [container(cpu=1, memory="4Gi"), container("Always", cpu=2)],
    }
    assert request(spec, "cpu") == (3.5, "3.5")
    assert request(spec, "memory") == (4 * 2**30, "4Gi")
    assert request(spec, GPU) == (0, "")


@pytest.mark.parametrize(
    ("toleration", "taint", "tolerated"),
    [
        ({"operator": "Exists"}, {"key": "a", "effect": "NoSchedule"}, True),
        ({"key": "a", "operator": "Exists"}, {"key": "a", "value": "b", "effect": "NoExecute"}, True),
        ({"key": "b", "operator": "Exists"}, {"key": "a", "effect": "NoSchedule"}, False),
        ({"key": "a", "value": "b"}, {"key": "a", "value": "b", "effect": "NoSchedule"}, True),
        ({"key": "a", "value": "c"}, {"key": "a", "value": "b", "effect": "NoSchedule"}, False),
        ({"key": "a"}, {"key": "a", "effect": "NoSchedule"}, True),
        ({"key": "a", "effect": "NoExecute"}, {"key": "a", "effect": "NoSchedule"}, False),
        ({"key": "z"}, {"key": "a", "effect": "PreferNoSchedule"}, True),
    ],
)
def test_a_taint_keeps_a_pod_away_that_does_not_tolerate_it(
    toleration: Object, taint: Object, tolerated: bool
) -> None:
    assert admitted(node([taint]), {"tolerations": [toleration]}) == tolerated
    assert admitted(node([taint]), {}) == (taint["effect"] == "PreferNoSchedule")


def test_a_selector_and_a_cordon_keep_pods_away() -> None:
    assert admitted(node(), {"nodeSelector": {"pool": "a"}})
    assert not admitted(node(), {"nodeSelector": {"pool": "b"}})
    assert not admitted(node(unschedulable=True), {})


def test_what_others_hold_is_not_free() -> None:
    wanted = {"containers": [container(cpu=2, limits={GPU: 1})]}
    has = node(cpu="4", memory="1Gi", **{GPU: "2"})
    holder = {"spec": {"containers": [container(cpu="2001m", limits={GPU: 1})]}}
    assert lacking(wanted, has, []) == []
    assert lacking(wanted, has, [holder]) == ["cpu"]
    assert lacking(wanted, has, [holder, holder]) == [GPU, "cpu"]
    assert lacking(wanted, node(cpu="4"), []) == [GPU]
