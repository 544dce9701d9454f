"""The pod that asks before a rollout whether the model fits the devices of the nodes: `slipway fit` with the
server's image, arguments, variables and mounts, and without devices."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from slipway.service.companions import FETCH, SERVER
from slipway.service.facts import Facts
from slipway.service.labels import NAME
from slipway.service.pod import for_kubelet, pod_template
from slipway.service.render import metadata
from slipway.service.spec import ServiceSpec

Object = dict[str, Any]

FIT = "fit"
"""Its container."""
SECONDS = 600
"""After which the kubelet ends it."""
_LEFT_OUT = ("topologySpreadConstraints", "priorityClassName", "resourceClaims", "initContainers")
"""Of the server's pod: what counts its replicas, what would push others off a node, and its devices."""
_RESOURCES = {"requests": {"cpu": "100m", "memory": "128Mi"}, "limits": {"memory": "1Gi"}}
"""A Llama of 405 B takes a second and 60 MiB; a large tokenizer takes more."""
_NEAR_DEVICES = {
    "weight": 100,
    "preference": {"matchExpressions": [{"key": "nvidia.com/gpu.product", "operator": "Exists"}]},
}
"""Where the server's pod comes to run and its image is needed."""


def name_of(service: str, digest: str) -> str:
    return f"{service}-{FIT}-{digest}"


def is_fit_pod(service: str, pod: str) -> bool:
    """By its name."""
    return pod.startswith(name_of(service, ""))


def fit_pod(spec: ServiceSpec, facts: Facts, devices: Sequence[str]) -> Object:
    """Its name has the digest of what it asks, so that another question is another pod.

    devices  labels of nodes, one text of KEY=VALUE,KEY=VALUE for each kind of device
    """
    template = pod_template(spec, facts)
    spec_of_pod = _pod(template["spec"], devices)
    text = json.dumps(spec_of_pod, sort_keys=True, ensure_ascii=False)
    head = metadata(spec, facts, name=name_of(spec.name, hashlib.sha256(text.encode()).hexdigest()[:8]))
    # No Service may find it, and the network's policies shall.
    head["labels"] = {**template["metadata"]["labels"], NAME: f"slipway-{FIT}"}
    head["annotations"] = {
        **template["metadata"]["annotations"],
        "kubectl.kubernetes.io/default-container": FIT,
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": head, "spec": spec_of_pod}


def _pod(server: Mapping[str, Any], devices: Sequence[str]) -> Object:
    containers = [_fit(one, devices) for one in server["containers"] if one["name"] == SERVER]
    before = [_fetch(one) for one in server.get("initContainers", ()) if one["name"] == FETCH]
    mounted = {mount["name"] for one in (*before, *containers) for mount in one["volumeMounts"]}
    return {
        **{field: value for field, value in server.items() if field not in _LEFT_OUT},
        **({"initContainers": before} if before else {}),
        "containers": containers,
        "volumes": [_volume(volume) for volume in server["volumes"] if volume["name"] in mounted],
        "affinity": _affinity(server.get("affinity") or {}),
        "restartPolicy": "Never",
        "activeDeadlineSeconds": SECONDS,
        "terminationGracePeriodSeconds": 1,
        # It serves nobody: a Service by labels of the document's own finds it, and never sends it anything.
        "readinessGates": [{"conditionType": "slipway.dev/serves"}],
    }


def _fit(server: Mapping[str, Any], devices: Sequence[str]) -> Object:
    kept = {"image", "imagePullPolicy", "securityContext", "terminationMessagePolicy"}
    nodes = [word for labels in devices for word in ("--node", for_kubelet(labels))]
    env = [entry for entry in server["env"] if entry["name"] != "NVIDIA_VISIBLE_DEVICES"]
    return {
        **{field: server[field] for field in kept if field in server},
        "name": FIT,
        "args": [FIT, *_without_device(server["args"][1:]), *nodes],
        "env": [*env, {"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}],
        "resources": _RESOURCES,
        "volumeMounts": [mount for mount in server["volumeMounts"] if mount["name"] != "shm"],
    }


def _without_device(words: Sequence[str]) -> list[str]:
    """The nodes say which device, where the server's words say that it is CUDA's."""
    at = words.index("--device") if "--device" in words else len(words)
    return [*words[:at], *words[at + 2 :]]


def _fetch(container: Mapping[str, Any]) -> Object:
    return {
        **container,
        "args": [*container["args"], "--without-weights"],
        "resources": _RESOURCES,
    }


def _volume(volume: Mapping[str, Any]) -> Mapping[str, Any]:
    """Another cache, since a claim may be another node's at this time."""
    return {"name": "cache", "emptyDir": {"sizeLimit": "2Gi"}} if volume["name"] == "cache" else volume


def _affinity(given: Mapping[str, Any]) -> Object:
    nodes = given.get("nodeAffinity") or {}
    wishes = nodes.get("preferredDuringSchedulingIgnoredDuringExecution") or []
    nodes = {**nodes, "preferredDuringSchedulingIgnoredDuringExecution": [*wishes, _NEAR_DEVICES]}
    return {**given, "nodeAffinity": nodes}
