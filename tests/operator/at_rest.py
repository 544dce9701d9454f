"""Services that serve, as an API server has them, with their children, and a reconciler without a cluster."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml
from stored import stored

from slipway.service import Facts, from_mapping, render
from slipway.service.facts import Owner
from slipway.service.intent import pod_template
from slipway_operator.cluster import MADE, OPTIONAL, SEEN, SERVICE
from slipway_operator.events import Recorder
from slipway_operator.informer import Children, Key, Store, place_of
from slipway_operator.main import noted
from slipway_operator.pace import Pace
from slipway_operator.profile_store import Profiles
from slipway_operator.reconcile import Reconciler
from slipway_operator.settings import Settings
from slipway_operator.template_pin import pin
from slipway_operator.writer import Writer

Object = dict[str, Any]

NAMESPACE = "models"
MADE_AT = "2026-08-22T11:00:00Z"
EXAMPLE = Path(__file__).parents[2] / "examples" / "gpu.yaml"
PODS = 2
CONDITIONS = ("PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady", "PodScheduled")


def service(name: str, **spec: Any) -> Object:
    """The example of a team's model, under another name."""
    document: Object = yaml.safe_load(EXAMPLE.read_text())
    document["metadata"] = {
        "name": name,
        "namespace": NAMESPACE,
        "uid": f"uid-of-{name}",
        "generation": 1,
        "resourceVersion": "1",
        "creationTimestamp": MADE_AT,
        "annotations": {"kubectl.kubernetes.io/last-applied-configuration": json.dumps(document)},
    }
    document["spec"] |= spec
    return document


def family(document: Object) -> Iterator[Object]:
    """What the operator makes of it, and Kubernetes of that: every replica is ready."""
    name = document["metadata"]["name"]
    spec = from_mapping({**document, "metadata": {"name": name}})
    owner = Owner(name, document["metadata"]["uid"])
    facts = Facts(
        namespace=NAMESPACE,
        owner=owner,
        kinds=frozenset(kind.name for kind in OPTIONAL),
        operator_namespace=Settings().lease_namespace,
    )
    pinned = pin(spec, facts, None, pod_template)
    for made in (pinned.revision, *render(spec, dataclasses.replace(facts, template=pinned.template))):
        item = stored(made)
        item["metadata"] |= {"uid": f"uid-of-{item['kind']}-{item['metadata']['name']}"}
        if item["kind"] == "Deployment":
            item["metadata"]["annotations"] = {"deployment.kubernetes.io/revision": "1"}
            item["status"] = dict.fromkeys(
                ("replicas", "readyReplicas", "updatedReplicas", "availableReplicas"), PODS
            ) | {"observedGeneration": 1}
            yield from _grown(item)
        yield item


def _grown(deployment: Object) -> Iterator[Object]:
    metadata, template = deployment["metadata"], deployment["spec"]["template"]
    replica_set: Object = {
        "apiVersion": "apps/v1",
        "kind": "ReplicaSet",
        "metadata": {
            "name": f"{metadata['name']}-7b9c9d5f6d",
            "namespace": NAMESPACE,
            "uid": f"uid-of-set-{metadata['name']}",
            "resourceVersion": "7",
            "labels": template["metadata"]["labels"],
            "annotations": metadata["annotations"],
            "managedFields": [{"manager": "kube-controller-manager", "fieldsV1": {"f:spec": {}}}],
            "ownerReferences": [_owner(deployment)],
        },
        "spec": {"replicas": PODS, "template": template},
        "status": {"replicas": PODS},
    }
    yield replica_set
    for letter in "abcdef"[:PODS]:
        yield _pod(replica_set, letter)


def _pod(replica_set: Object, letter: str) -> Object:
    metadata, template = replica_set["metadata"], replica_set["spec"]["template"]
    name = f"{metadata['name']}-x2x7{letter}"
    began = {"running": {"startedAt": MADE_AT}}
    conditions = [
        {"type": kind, "status": "True", "lastTransitionTime": MADE_AT, "lastProbeTime": None}
        for kind in CONDITIONS
    ]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            **template["metadata"],
            "name": name,
            "namespace": NAMESPACE,
            "uid": f"uid-of-{name}",
            "resourceVersion": "7",
            "creationTimestamp": MADE_AT,
            "managedFields": [{"manager": "kubelet", "fieldsV1": {"f:status": {"f:podIP": {}}}}],
            "ownerReferences": [_owner(replica_set)],
        },
        "spec": {**template["spec"], "nodeName": "node0", "priority": 0},
        "status": {
            "phase": "Running",
            "podIP": "10.0.0.1",
            "hostIP": "192.0.2.1",
            "qosClass": "Burstable",
            "conditions": conditions,
            "containerStatuses": [
                {"name": "server", "image": "slipway:1", "ready": True, "started": True, "state": began}
            ],
        },
    }


def _owner(item: Object) -> Object:
    named = {key: item["metadata"][key] for key in ("name", "uid")}
    return {"apiVersion": item["apiVersion"], "kind": item["kind"], "controller": True, **named}


class Server:
    """Stands in for the API server and the connection to it: keeps statuses, and what it was asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str, Any]] = []
        self.answers: dict[str, Object] = {}
        """By path, of what is looked for."""

    async def find(self, path: str) -> Object | None:
        self.asked.append(("GET", path, None))
        return self.answers.get(path)

    async def ask(self, method: str, path: str, *rest: Any) -> Object:
        body = rest[1] if len(rest) > 1 else None
        self.asked.append((method, path, body))
        if not path.endswith("/status"):
            return dict(body or {"items": []})
        place = path.removesuffix("/status")
        known = self.answers[place]
        version = str(int(known["metadata"]["resourceVersion"]) + 1)
        metadata = {**known["metadata"], "resourceVersion": version}
        self.answers[place] = {**known, "metadata": metadata, "status": body["status"]}
        return json.loads(json.dumps(self.answers[place]))  # type: ignore[no-any-return]

    def of(self, method: str, ending: str = "") -> list[tuple[str, Any]]:
        """Path and body of each request of a method, to paths of that ending."""
        return [(path, body) for one, path, body in self.asked if one == method and path.endswith(ending)]


class Rig:
    """A reconciler over the stores that an operator has once all is listed."""

    def __init__(self) -> None:
        self.now = 1000.0
        """By the clock of what is limited."""
        self.woken: list[Key] = []
        self.pace = Pace(self.woken.append, lambda: self.now)
        self.server = Server()
        server: Any = self.server
        self.resources = Store(SERVICE, lambda key: None, place_of, noted)
        self.children = Children(server, (None,), lambda key: None)
        for kind in (*MADE, *OPTIONAL, *SEEN):
            self.children.stores[kind.name] = Store(kind, lambda key: None)
        writer = Writer(server, lambda: True)
        self.recorder = Recorder(writer, "test")
        profiles = Profiles({}, lambda name: None)
        settings = Settings()
        self.reconciler = Reconciler(
            server, settings, self.resources, self.children, profiles, writer, self.recorder, self.pace
        )
        self.reconciler.kinds = frozenset(kind.name for kind in OPTIONAL)

    def add(self, document: Object) -> Key:
        """Have the cluster contain the service, and all that is made of it."""
        self.server.answers[SERVICE.path(*place_of(document))] = document
        self.resources.learn(document)
        for item in family(document):
            self.show(item)
        return place_of(document)

    def show(self, item: Object) -> None:
        """Have a watch bring the object."""
        self.children.stores[item["kind"]].learn(item)

    async def pass_over(self, key: Key) -> float | None:
        return await self.reconciler.reconcile(key)
