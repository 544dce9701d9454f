"""What the operator knows of nodes: nothing until a pod finds none that fits, then as a watch tells it."""

from __future__ import annotations

from as_printed import Object, node
from scripted_server import page, serving, watch
from test_informer import bookmark, eventually

from slipway_operator import discovery
from slipway_operator.discovery import Nodes

TAINTS = [{"key": "gpu", "effect": "NoSchedule"}]


def printed(name: str, version: int, **has: str) -> Object:
    one = node(name, **has)
    one["metadata"] |= {
        "resourceVersion": str(version),
        "labels": {"pool": "a"},
        "annotations": {"much": "x"},
    }
    spec = {"podCIDR": "10.0.0.0/24", "taints": TAINTS}
    return {**one, "spec": spec, "status": {**one["status"], "images": ["many"]}}


async def test_nodes_are_listed_once_and_then_followed() -> None:
    bare = page(printed("a", 1), version=9)
    joined = watch(
        ("MODIFIED", printed("a", 10, **{"nvidia.com/gpu": "8"})), ("ADDED", printed("b", 11)), bookmark(40)
    )
    with serving(bare, joined) as (cluster, script):
        nodes = Nodes(cluster, permitted=True)
        assert script.asked == []
        first = next(one for one in await nodes.all() if one["metadata"]["name"] == "a")
        assert first.keys() == {"apiVersion", "kind", "metadata", "spec", "status"}
        assert first["spec"] == {"taints": TAINTS}
        assert first["metadata"]["labels"] == {"pool": "a"}
        assert first["status"].keys() == {"allocatable"}
        await eventually(lambda: len(nodes._store) == 2)
        grown, _ = sorted(await nodes.all(), key=lambda one: one["metadata"]["name"])
        assert grown["status"]["allocatable"]["nvidia.com/gpu"] == "8"
        assert [query.get("resourceVersion") for query in script.asked][:2] == [None, "9"]
        assert not any("labelSelector" in query for query in script.asked)
        nodes.tidy()
        assert len(await nodes.all()) == 2
        assert nodes._informer is not None
        nodes._informer.stop()


async def test_a_watch_that_nobody_needs_ends(monkeypatch) -> None:
    monkeypatch.setattr(discovery, "NODES_FOR", 0.0)
    with serving(page(printed("a", 1), version=9)) as (cluster, _):
        nodes = Nodes(cluster, permitted=True)
        assert [one["metadata"]["name"] for one in await nodes.all()] == ["a"]
        nodes.tidy()
        assert nodes._informer is None


async def test_where_nodes_may_not_be_seen_nobody_asks() -> None:
    with serving() as (cluster, script):
        assert await Nodes(cluster, permitted=False).all() == []
        assert script.asked == []
