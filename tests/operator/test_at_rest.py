"""What a service costs that serves and is left alone: no request, and little memory."""

from __future__ import annotations

import copy
import json
import tracemalloc
from typing import Any

import pytest
from at_rest import NAMESPACE, Object, Rig, family, service

from slipway_operator import discovery
from slipway_operator.cluster import CLAIM, KINDS, SERVICE
from slipway_operator.informer import Store, place_of

SERVICES = 100
MOST_BYTES = 16 << 10
"""Of a service with two replicas. 12 KiB were measured: 5,000 of them take 60 MiB."""
CACHE = {"hub": {"id": "meta-llama/Llama-3.2-1B-Instruct"}, "cache": {"pvc": "model-cache"}}
CLAIM_PATH = CLAIM.path(NAMESPACE, "model-cache")


async def test_a_service_that_is_as_it_should_be_costs_no_request():
    rig = Rig()
    key = rig.add(service("demo"))
    await rig.pass_over(key)
    (patch,) = rig.server.of("PATCH")
    assert patch[1]["status"]["summary"] == "Serving: 2 of 2 replicas admit requests"
    rig.server.asked.clear()
    await rig.pass_over(key)
    assert rig.server.asked == []


async def test_the_objects_of_a_service_take_little_memory():
    """As they come from the API server, each parsed for itself."""
    rig = Rig()
    document = service("one-name")
    await rig.pass_over(rig.add(document))
    (written,) = (body for _, body in rig.server.of("PATCH"))
    whole = [{**document, "status": written["status"]}, *family(document)]
    texts = [json.dumps(item) for item in whole]
    stores = {kind.name: Store(kind, lambda key: None) for kind in KINDS.values()}
    stores[SERVICE.name] = Store(SERVICE, lambda key: None, place_of)
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        for number in range(SERVICES):
            for text in texts:
                item = json.loads(text.replace("one-name", f"demo-{number}"))
                stores[item["kind"]].learn(item)
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert sum(map(len, stores.values())) == SERVICES * len(texts)
    assert (after - before) / SERVICES < MOST_BYTES


def test_what_a_store_gives_is_the_readers_own():
    store = Store(KINDS["Deployment"], lambda key: None)
    (made,) = [item for item in family(service("demo")) if item["kind"] == "Deployment"]
    store.learn(copy.deepcopy(made))
    store.items()[0]["spec"].clear()
    assert store.items()[0]["spec"] == made["spec"]


def claim(*modes: str) -> Object:
    return {"metadata": {"name": "model-cache"}, "spec": {"accessModes": [*modes]}}


async def strategy(rig: Rig, key: Any) -> str:
    """What the operator would have of the Deployment, by whether it writes one."""
    rig.server.asked.clear()
    await rig.pass_over(key)
    deployments = rig.server.of("PATCH", "/deployments/demo")
    return deployments[0][1]["spec"]["strategy"]["type"] if deployments else "as it is"


async def test_a_claim_that_pods_mount_is_read_once(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(discovery, "CLAIMS_FOR", 0.0)
    rig = Rig()
    rig.server.answers[CLAIM_PATH] = claim("ReadWriteMany")
    key = rig.add(service("demo", model=CACHE))
    for _ in range(3):
        await rig.pass_over(key)
    assert len(rig.server.of("GET", CLAIM_PATH)) == 1


async def test_a_claim_may_be_another_once_no_pod_mounts_it(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(discovery, "CLAIMS_FOR", 0.0)
    rig = Rig()
    rig.server.answers[CLAIM_PATH] = claim("ReadWriteMany")
    document = service("demo", model=CACHE)
    key = rig.add(document)
    assert await strategy(rig, key) == "as it is"
    pods = rig.children.stores["Pod"]
    running = pods.items()
    for pod in running:
        pods.drop(pod)
    rig.server.answers[CLAIM_PATH] = claim("ReadWriteOnce")
    for pod in running:
        pod["metadata"] |= {"uid": f"another-{pod['metadata']['uid']}"}
        rig.show(pod)
    assert await strategy(rig, key) == "Recreate"


async def test_pods_that_take_turns_hold_a_claim(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(discovery, "CLAIMS_FOR", 0.0)
    rig = Rig()
    rig.server.answers[CLAIM_PATH] = claim("ReadWriteMany")
    key = rig.add(service("demo", model=CACHE))
    pods = rig.children.stores["Pod"]
    for turn in range(3):
        await rig.pass_over(key)
        first = pods.items()[0]
        pods.drop(first)
        first["metadata"] |= {"name": f"demo-{turn}", "uid": f"turn-{turn}"}
        rig.show(first)
    assert len(rig.server.of("GET", CLAIM_PATH)) == 1


async def test_of_a_service_that_is_gone_nothing_is_remembered():
    rig = Rig()
    rig.server.answers[CLAIM_PATH] = claim("ReadWriteMany")
    document = service("demo", model=CACHE)
    key = rig.add(document)
    await rig.pass_over(key)
    assert rig.reconciler._claims._known
    rig.resources.drop(document)
    await rig.pass_over(key)
    assert not rig.reconciler._claims._known
