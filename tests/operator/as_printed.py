"""Objects as the API server of Kubernetes 1.36 prints them, cut to what a Deployment of ours has."""

from __future__ import annotations

import copy
import datetime
import json
from typing import Any

from slipway_operator.cluster import KINDS, NODE
from slipway_operator.informer import READ, Fields, slim

Object = dict[str, Any]

NOW = datetime.datetime(2026, 8, 22, 12, 0, 0, tzinfo=datetime.UTC)
MADE = "2026-08-22T11:00:00Z"
DEPLOYMENT_UID = "0d5f2d5e-6a0c-4a35-8a7e-1d8f3cf8a001"
SELECTOR = {"app.kubernetes.io/instance": "demo", "app.kubernetes.io/name": "slipway"}
LABELS = {**SELECTOR, "app.kubernetes.io/managed-by": "slipway"}


class Kept(dict[str, Any]):
    """What a store keeps of an object. To read another field, which stores drop, fails the test."""

    def __init__(self, fields: Fields, item: Object) -> None:
        super().__init__({name: _kept(value, fields[name]) for name, value in item.items()})
        self._fields = fields

    def _checked(self, name: object) -> None:
        assert name in self._fields, f"slim() drops {name}: name it in informer.READ"

    def __getitem__(self, name: str) -> Any:
        self._checked(name)
        return super().__getitem__(name)

    def get(self, name: str, default: Any = None) -> Any:
        self._checked(name)
        return super().get(name, default)

    def __contains__(self, name: object) -> bool:
        self._checked(name)
        return super().__contains__(name)


def _kept(value: Any, fields: Fields | None) -> Any:
    if isinstance(value, list):
        return [_kept(item, fields) for item in value]
    return Kept(fields, value) if fields is not None and isinstance(value, dict) else value


def kept(item: Object) -> Object:
    """A pod, a ReplicaSet or a node as the operator has it."""
    kind = NODE if item["kind"] == NODE.name else KINDS[item["kind"]]
    fields: Fields = {"apiVersion": None, "kind": None, **READ[kind.name]}
    return Kept(fields, slim(item, kind))


def resource(generation: int = 1, status: Object | None = None, **spec: Any) -> Object:
    printed = {
        "apiVersion": "slipway.dev/v1alpha1",
        "kind": "InferenceService",
        "metadata": {
            "creationTimestamp": MADE,
            "generation": generation,
            "name": "demo",
            "namespace": "models",
            "uid": "b6d5a3f2-5a8c-4f05-9d8b-6a1f0f3c0001",
        },
        "spec": {"model": {"path": "/models/demo"}, **spec},
    }
    return {**printed, "status": status} if status is not None else printed


def deployment(
    *,
    replicas: int = 1,
    made: int | None = None,
    updated: int | None = None,
    available: int = 0,
    generation: int = 1,
    observed: int | None = None,
    overdue: bool = False,
) -> Object:
    moving = {
        "type": "Progressing",
        "status": "False" if overdue else "True",
        "reason": "ProgressDeadlineExceeded" if overdue else "ReplicaSetUpdated",
        "message": 'ReplicaSet "demo-5d4f8" has timed out progressing.'
        if overdue
        else 'ReplicaSet "demo-5d4f8" is progressing.',
        "lastUpdateTime": MADE,
        "lastTransitionTime": MADE,
    }
    made = replicas if made is None else made
    updated = made if updated is None else updated
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {
            "annotations": {"deployment.kubernetes.io/revision": "2"},
            "generation": generation,
            "labels": LABELS,
            "name": "demo",
            "namespace": "models",
            "uid": DEPLOYMENT_UID,
        },
        "spec": {"replicas": replicas, "selector": {"matchLabels": SELECTOR}},
        "status": {
            "observedGeneration": generation if observed is None else observed,
            "replicas": made,
            "updatedReplicas": updated,
            "readyReplicas": available,
            "availableReplicas": available,
            "unavailableReplicas": made - available,
            "conditions": [moving],
        },
    }


def replica_set(revision: int = 2, replicas: int = 1, made: int | None = None, failure: str = "") -> Object:
    conditions = [
        {
            "type": "ReplicaFailure",
            "status": "True",
            "reason": "FailedCreate",
            "message": failure,
            "lastTransitionTime": MADE,
        }
    ]
    printed = {
        "apiVersion": "apps/v1",
        "kind": "ReplicaSet",
        "metadata": {
            "annotations": {"deployment.kubernetes.io/revision": str(revision)},
            "labels": {**LABELS, "pod-template-hash": f"5d4f{revision}"},
            "name": f"demo-5d4f{revision}",
            "namespace": "models",
            "ownerReferences": [_owner("Deployment", "demo", DEPLOYMENT_UID)],
            "uid": f"replica-set-{revision}",
        },
        "spec": {"replicas": replicas},
        "status": {
            "replicas": replicas if made is None else made,
            **({"conditions": conditions} if failure else {}),
        },
    }
    return kept(printed)


def pod(
    name: str = "demo-5d4f2-abcde",
    *,
    revision: int = 2,
    node: str | None = "node0",
    ready: bool = False,
    containers: list[Object] | None = None,
    init_containers: list[Object] | None = None,
    sidecars: list[Object] | None = None,
    resources: Object | None = None,
    volumes: list[Object] | None = None,
) -> Object:
    """A pod of one container `server`; without a container status it was not looked at by a kubelet."""
    spec: Object = {
        "containers": [
            {"name": "server", "image": "127.0.0.1:5000/runtime-cpu:1", "resources": resources or {}}
        ],
        "enableServiceLinks": False,
        "volumes": volumes or [],
        **({"nodeName": node} if node else {}),
    }
    before = [*(init_containers or []), *(sidecars or [])]
    if before:
        spec["initContainers"] = [
            {
                "name": status["name"],
                "image": status["image"],
                "resources": resources or {},
                **({"restartPolicy": "Always"} if status in (sidecars or []) else {}),
            }
            for status in before
        ]
    conditions = [_condition("Ready", ready), _condition("PodScheduled", node is not None)]
    printed = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "creationTimestamp": MADE,
            "labels": {**LABELS, "pod-template-hash": f"5d4f{revision}"},
            "name": name,
            "namespace": "models",
            "ownerReferences": [_owner("ReplicaSet", f"demo-5d4f{revision}", f"replica-set-{revision}")],
            "uid": f"uid-of-{name}",
        },
        "spec": spec,
        "status": {
            "phase": "Running" if ready else "Pending",
            "conditions": conditions,
            **({"containerStatuses": containers} if containers else {}),
            **({"initContainerStatuses": before} if before else {}),
        },
    }
    return kept(printed)


def ready_pod(name: str = "demo-5d4f2-abcde", revision: int = 2) -> Object:
    return pod(name, revision=revision, ready=True, containers=[running(ready=True)])


def unscheduled(
    message: str, wants: Object | None = None, reason: str = "Unschedulable", **more: Any
) -> Object:
    amounts = wants or {}
    printed = pod(node=None, resources={"limits": dict(amounts), "requests": dict(amounts)}, **more)
    printed["status"]["conditions"] = [
        {
            "type": "PodScheduled",
            "status": "False",
            "reason": reason,
            "message": message,
            "lastProbeTime": None,
            "lastTransitionTime": MADE,
        }
    ]
    return printed


def container(state: Object, last: Object | None = None, **more: Any) -> Object:
    return {
        "name": "server",
        "image": "127.0.0.1:5000/runtime-cpu:1",
        "imageID": "",
        "ready": False,
        "started": False,
        "restartCount": 1 if last else 0,
        "state": state,
        "lastState": last or {},
        **more,
    }


def waiting(reason: str, message: str = "", last: Object | None = None, **more: Any) -> Object:
    said = {"reason": reason, **({"message": message} if message else {})}
    return container({"waiting": said}, last, **more)


def running(ready: bool = False, last: Object | None = None, **more: Any) -> Object:
    return container({"running": {"startedAt": MADE}}, last, ready=ready, started=True, **more)


def terminated(code: int, message: str = "", reason: str = "Error") -> Object:
    ended = {
        "exitCode": code,
        "reason": reason,
        "startedAt": MADE,
        "finishedAt": MADE,
        "containerID": "containerd://1",
    }
    return {"terminated": {**ended, **({"message": message} if message else {})}}


def crash_loop(code: int, message: str = "", reason: str = "Error", **more: Any) -> Object:
    text = "back-off 40s restarting failed container=server pod=demo-5d4f2-abcde_models(uid)"
    return waiting("CrashLoopBackOff", text, terminated(code, message, reason), **more)


def cause(code: int, reason: str, message: str, hint: str = "", argument: str = "") -> str:
    """A termination message of the runtime."""
    return json.dumps(
        {"code": code, "reason": reason, "message": message, "hint": hint, "argument": argument}
    )


def event(about: Object, reason: str, message: str, seen: str = MADE) -> Object:
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {
            "name": f"{about['metadata']['name']}.1",
            "namespace": "models",
            "creationTimestamp": seen,
        },
        "involvedObject": {
            "kind": about["kind"],
            "name": about["metadata"]["name"],
            "namespace": "models",
            "uid": about["metadata"]["uid"],
        },
        "reason": reason,
        "message": message,
        "type": "Warning",
        "count": 3,
        "firstTimestamp": MADE,
        "lastTimestamp": seen,
        "eventTime": None,
    }


def node(name: str = "node0", **allocatable: str) -> Object:
    amounts = {"cpu": "2", "memory": "8Gi", "pods": "110", **allocatable}
    printed = {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "uid": name},
        "status": {"allocatable": amounts, "capacity": copy.deepcopy(amounts)},
    }
    return kept(printed)


def service(**ingress: str) -> Object:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "demo", "namespace": "models"},
        "spec": {"ports": [{"name": "http", "port": 8000, "targetPort": "http", "protocol": "TCP"}]},
        "status": {"loadBalancer": {"ingress": [ingress]} if ingress else {}},
    }


def _owner(kind: str, name: str, uid: str) -> Object:
    return {
        "apiVersion": "apps/v1",
        "blockOwnerDeletion": True,
        "controller": True,
        "kind": kind,
        "name": name,
        "uid": uid,
    }


def _condition(kind: str, true: bool) -> Object:
    return {
        "type": kind,
        "status": "True" if true else "False",
        "lastProbeTime": None,
        "lastTransitionTime": MADE,
        **({} if true or kind == "PodScheduled" else {"reason": "ContainersNotReady"}),
    }
