"""The pod that runs `slipway fit` before a rollout: the image and arguments of the server, no devices."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from slipway.service.companions import FETCH, SERVER
from slipway.service.facts import Facts
from slipway.service.labels import NAME
from slipway.service.pod import HIDDEN, OF_SERVER, as_given, for_kubelet, pod_template
from slipway.service.render import metadata
from slipway.service.spec import ServiceSpec
from slipway.service.storage import OURS, within

Object = dict[str, Any]

FIT = "fit"
"""Its container."""
SECONDS = 600
"""The kubelet ends the pod after these."""
_LEFT_OUT = ("topologySpreadConstraints", "resourceClaims", "initContainers")
"""Fields of the server's pod that the pod does not have: spreading, devices, other containers."""
_RESOURCES = {"requests": {"cpu": "100m", "memory": "128Mi"}, "limits": {"memory": "1Gi"}}
"""A Llama of 405 B takes a second and 60 MiB; a large tokenizer takes more."""
_NEAR_DEVICES = {
    "weight": 100,
    "preference": {"matchExpressions": [{"key": "nvidia.com/gpu.product", "operator": "Exists"}]},
}
"""The server's image is needed on such a node."""


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
    # With another name no Service selects it. NetworkPolicies select it by the other labels.
    head["labels"] = {**template["metadata"]["labels"], NAME: f"slipway-{FIT}"}
    head["annotations"] = {
        **template["metadata"]["annotations"],
        "kubectl.kubernetes.io/default-container": FIT,
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": head, "spec": spec_of_pod}


def _pod(server: Mapping[str, Any], devices: Sequence[str]) -> Object:
    volumes = {volume["name"]: volume for volume in server["volumes"]}
    (serving,) = (one for one in server["containers"] if one["name"] == SERVER)
    model = as_given(serving["args"][1])

    def mounts(container: Mapping[str, Any]) -> Object:
        kept = [one for one in container["volumeMounts"] if _is_read(volumes[one["name"]], one, model)]
        return {**container, "volumeMounts": kept}

    fetches = [one for one in server.get("initContainers", ()) if one["name"] == FETCH]
    before, containers = [_fetch(mounts(one)) for one in fetches], [_fit(mounts(serving), devices)]
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
        # It is never ready, so that a Service that selects labels of the document sends it no requests.
        "readinessGates": [{"conditionType": "slipway.dev/serves"}],
    }


def _is_read(volume: Mapping[str, Any], mount: Mapping[str, Any], model: str) -> bool:
    """Whether the configuration may lie there. Any other claim might be bound to the wrong node."""
    if volume["name"] in OURS or not volume.keys() & {"persistentVolumeClaim", "emptyDir"}:
        return volume["name"] not in OF_SERVER
    return model == mount["mountPath"] or within(model, mount["mountPath"])


def _fit(server: Mapping[str, Any], devices: Sequence[str]) -> Object:
    kept = {"image", "imagePullPolicy", "securityContext", "terminationMessagePolicy", "volumeMounts"}
    nodes = [word for labels in devices for word in ("--node", for_kubelet(labels))]
    return {
        **{field: server[field] for field in kept if field in server},
        "name": FIT,
        "args": [FIT, *_without_device(server["args"][1:]), *nodes],
        "env": _environment(server),
        "resources": _RESOURCES,
    }


def _environment(container: Mapping[str, Any]) -> list[Object]:
    """The container's variables without devices and without the key of the server's clients."""
    kept = [entry for entry in container["env"] if entry["name"] not in (HIDDEN["name"], "VLLM_API_KEY")]
    return [*kept, HIDDEN]


def _without_device(words: Sequence[str]) -> list[str]:
    """`--node` says which device, and excludes `--device`."""
    at = words.index("--device") if "--device" in words else len(words)
    return [*words[:at], *words[at + 2 :]]


def _fetch(container: Mapping[str, Any]) -> Object:
    return {
        **container,
        "args": [*container["args"], "--without-weights"],
        "env": _environment(container),
        "resources": _RESOURCES,
    }


def _volume(volume: Mapping[str, Any]) -> Mapping[str, Any]:
    """The cache is a folder of this pod's own: another node may hold the claim."""
    return {"name": "cache", "emptyDir": {"sizeLimit": "2Gi"}} if volume["name"] == "cache" else volume


def _affinity(given: Mapping[str, Any]) -> Object:
    nodes = given.get("nodeAffinity") or {}
    wishes = nodes.get("preferredDuringSchedulingIgnoredDuringExecution") or []
    nodes = {**nodes, "preferredDuringSchedulingIgnoredDuringExecution": [*wishes, _NEAR_DEVICES]}
    return {**given, "nodeAffinity": nodes}
