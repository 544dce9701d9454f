"""The copy of the children: equal to the API server's after every kind of gap."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest
from as_printed import node, pod, replica_set
from e2e.ground.patience import scaled
from scripted_server import Answer, page, refusal, serving, watch

from slipway_operator.cluster import KINDS, Cluster, Refused
from slipway_operator.cluster import SERVICE as INFERENCE_SERVICE
from slipway_operator.informer import MANAGER, Informer, Key, Store, key_of, slim
from slipway_operator.shapes import REVISION

Object = dict[str, Any]

SERVICE = KINDS["Service"]


def child(name: str, version: int, uid: str = "", owner: str | None = "demo", **labels: str) -> Object:
    reference = {
        "apiVersion": "slipway.dev/v1alpha1",
        "kind": "InferenceService",
        "name": owner,
        "uid": "1",
        "controller": True,
    }
    return {
        "metadata": {
            "name": name,
            "namespace": "ns",
            "uid": uid or name,
            "resourceVersion": str(version),
            "labels": labels,
            "ownerReferences": [reference] if owner else [],
            "managedFields": [{"manager": MANAGER}, {"manager": "kubectl"}],
        }
    }


def bookmark(version: int) -> tuple[str, Object]:
    return "BOOKMARK", {"metadata": {"resourceVersion": str(version)}}


def names(store: Store) -> list[str]:
    return sorted(item["metadata"]["name"] for item in store.items())


async def eventually(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + scaled(10)
    while not holds():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.01)


def followed(cluster: Cluster, changed: list[Key]) -> tuple[Informer, Store]:
    """An informer at work, and its store."""
    store = Store(SERVICE, changed.append)
    informer = Informer(cluster, store, "ns", asyncio.get_running_loop())
    informer.start()
    return informer, store


async def test_the_pages_of_a_list_make_one_store_and_name_their_services() -> None:
    changed: list[Key] = []
    first = page(child("a", 1), version=9, more="next")
    second = page(child("b", 2, owner=None, **{"app.kubernetes.io/instance": "other"}), version=9)
    with serving(first, second) as (cluster, script):
        informer, store = followed(cluster, changed)
        await asyncio.wait_for(informer.synced.wait(), scaled(10))
        assert names(store) == ["a", "b"]
        assert changed == [("ns", "demo"), ("ns", "other")]
        assert [item["metadata"]["name"] for item in store.of(("ns", "other"))] == ["b"]
        assert script.asked[0]["labelSelector"] == "app.kubernetes.io/managed-by=slipway"
        assert script.asked[1]["continue"] == "next"
        informer.stop()


async def test_a_watch_that_ends_goes_on_from_its_last_bookmark_without_a_list() -> None:
    ended = watch(("ADDED", child("b", 11)), bookmark(40))
    with serving(page(child("a", 1), version=9), ended) as (cluster, script):
        informer, store = followed(cluster, [])
        await eventually(lambda: len(script.asked) == 3)
        assert [query.get("resourceVersion") for query in script.asked] == [None, "9", "40"]
        assert names(store) == ["a", "b"]
        informer.stop()


@pytest.mark.parametrize(
    "gap",
    [
        pytest.param(refusal(410), id="410 at the start of a watch"),
        pytest.param(watch(("ERROR", {"code": 410, "message": "too old"})), id="410 in a watch"),
        pytest.param(watch(("ERROR", {"code": 500, "message": "etcd"})), id="another ERROR"),
        pytest.param(refusal(503), id="5xx"),
        pytest.param(watch(end="break"), id="a broken connection"),
        pytest.param(Answer(events=[{"type": "ADDED"}]), id="an event without an object"),
    ],
)
async def test_what_vanished_in_a_gap_counts_as_deleted(gap: Answer) -> None:
    changed: list[Key] = []
    before = page(child("a", 1), child("b", 2, owner="gone"), version=9)
    after = page(child("a", 1), version=30)
    with serving(before, gap, after) as (cluster, _):
        informer, store = followed(cluster, changed)
        await eventually(lambda: names(store) == ["a"])
        assert changed == [("ns", "demo"), ("ns", "gone"), ("ns", "gone")]
        informer.stop()


async def test_an_expired_token_is_read_anew_and_then_the_list_again() -> None:
    answers = [refusal(401), refusal(401), page(child("a", 1), version=9)]
    with serving(*answers) as (cluster, _):
        informer, store = followed(cluster, [])
        await eventually(lambda: names(store) == ["a"])
        informer.stop()


async def test_a_page_that_expires_begins_the_list_anew() -> None:
    begun = page(child("a", 1), version=9, more="next")
    with serving(begun, refusal(410), page(child("b", 2), version=10)) as (cluster, _):
        informer, store = followed(cluster, [])
        await eventually(lambda: names(store) == ["b"])
        informer.stop()


def test_an_older_event_does_not_undo_what_an_answer_told() -> None:
    store = Store(SERVICE, lambda key: None)
    store.learn(child("a", 7))
    store.learn(child("a", 5, note="old"))
    assert store.items()[0]["metadata"]["resourceVersion"] == "7"


def test_the_end_of_a_replaced_object_leaves_its_successor() -> None:
    store = Store(SERVICE, lambda key: None)
    store.learn(child("a", 7, uid="old"))
    store.learn(child("a", 9, uid="new"))
    store.drop(child("a", 8, uid="old"))
    assert store.items()[0]["metadata"]["uid"] == "new"


def test_only_our_own_entry_of_the_managed_fields_is_kept() -> None:
    store = Store(SERVICE, lambda key: None)
    store.learn(child("a", 1))
    assert store.items()[0]["metadata"]["managedFields"] == [{"manager": MANAGER}]


def test_a_list_of_one_namespace_says_nothing_of_another() -> None:
    store = Store(SERVICE, lambda key: None)
    stranger = child("b", 1)
    stranger["metadata"]["namespace"] = "other"
    store.learn(stranger)
    store.learn(child("a", 1))
    store.replace("ns", [])
    assert names(store) == ["b"]


def test_a_child_belongs_to_its_controller_whatever_its_label_says() -> None:
    assert key_of(child("a", 1, **{"app.kubernetes.io/instance": "edited"})) == ("ns", "demo")
    assert key_of(child("a", 1, owner=None)) is None


def test_an_answer_that_is_no_success_carries_the_servers_words() -> None:
    with serving(refusal(403)) as (cluster, _), pytest.raises(Refused, match="as scripted") as refused:
        cluster.call("GET", SERVICE.path("ns"))
    assert (refused.value.status, refused.value.reason) == (403, "Scripted")
    assert cluster.calls["GET", 403] == 1


def test_what_nobody_reads_is_not_kept() -> None:
    item = {**child("demo-1", 1), "spec": {"replicas": 1, "template": {"spec": {}}}}
    item["metadata"]["annotations"] = {REVISION: "2", "note": "long"}
    kept = slim(item, KINDS["ReplicaSet"])
    assert (kept["kind"], kept["apiVersion"]) == ("ReplicaSet", "apps/v1")
    assert kept["spec"] == {"replicas": 1}
    assert kept["metadata"]["annotations"] == {REVISION: "2"}
    assert "managedFields" not in kept["metadata"]


def test_of_a_pod_its_states_are_kept_and_what_its_containers_ask_for() -> None:
    ended = {"terminated": {"exitCode": 3, "reason": "Error", "message": "no", "containerID": "x"}}
    container = {
        "name": "server",
        "image": "i",
        "resources": {"limits": {"cpu": "1"}},
        "env": [{"name": "A"}],
    }
    spec = {"nodeName": "node0", "containers": [container], "tolerations": [{"key": "a"}]}
    status = {"name": "server", "state": {"running": {"startedAt": "t"}}, "lastState": ended, "imageID": "x"}
    kept = slim({**child("a", 1), "spec": spec, "status": {"containerStatuses": [status]}}, KINDS["Pod"])
    asked = {"name": "server", "resources": {"limits": {"cpu": "1"}}}
    assert kept["spec"] == {"nodeName": "node0", "containers": [asked]}
    (known,) = kept["status"]["containerStatuses"]
    assert known["state"] == {"running": {"startedAt": "t"}}
    assert known["lastState"] == {"terminated": {"exitCode": 3, "reason": "Error", "message": "no"}}


def test_a_document_is_kept_without_the_copy_that_kubectl_leaves_in_it() -> None:
    item = child("demo", 1)
    item["metadata"]["annotations"] = {"kubectl.kubernetes.io/last-applied-configuration": "{}", "a": "b"}
    kept = slim({**item, "spec": {}}, INFERENCE_SERVICE)
    assert kept["metadata"]["annotations"] == {"a": "b"}
    assert "managedFields" not in kept["metadata"]


@pytest.mark.parametrize("made", [pod, replica_set, node])
def test_the_tests_notice_who_reads_what_is_not_kept(made: Callable[[], Object]) -> None:
    with pytest.raises(AssertionError, match="slim"):
        made()["metadata"].get("managedFields")
