"""What an API server makes of an applied object: defaults, canonical quantities, managedFields.

A double of the rules that `needs_apply` has to live with, for property tests in milliseconds; the same
rules hold against a real API server under e2e/.
"""

from __future__ import annotations

import copy
import json
import random
import re
from fractions import Fraction
from typing import Any

from slipway.service.quantity import stored as stored_amount

Object = dict[str, Any]

MANAGER = "slipway-operator"
MERGED = {
    "containers": ("name",),
    "initContainers": ("name",),
    "env": ("name",),
    "volumes": ("name",),
    "volumeMounts": ("mountPath",),
    "imagePullSecrets": ("name",),
    "resourceClaims": ("name",),
    "claims": ("name",),
    "ownerReferences": ("uid",),
    "hostAliases": ("ip",),
    "topologySpreadConstraints": ("topologyKey", "whenUnsatisfiable"),
}
ATOMIC = {
    "nodeSelector",
    "selector",
    "labelSelector",
    "secretKeyRef",
    "configMapKeyRef",
    "fieldRef",
    "tolerations",
}


def stored(applied: Object, seed: int = 0) -> Object:
    """The object as it is read back after an apply by MANAGER to an empty cluster."""
    if applied["kind"] == "ControllerRevision":
        live = copy.deepcopy(applied)
    else:
        live = _canonical(applied, ("", ""), random.Random(seed))  # a copy, too
    if "template" in live.get("spec", {}):
        _default_template(live["spec"]["template"])
    live["status"] = {"replicas": 1}
    fields = {f"f:{key}": _fields(applied[key], key) for key in applied if key not in ("apiVersion", "kind")}
    fields["f:metadata"] = {
        key: value for key, value in fields["f:metadata"].items() if key not in ("f:name", "f:namespace")
    }
    live["metadata"] |= {
        "uid": "u-1",
        "resourceVersion": "7",
        "generation": 1,
        "managedFields": [
            {"manager": MANAGER, "operation": "Apply", "fieldsType": "FieldsV1", "fieldsV1": fields},
            {
                "manager": "kube-controller-manager",
                "operation": "Update",
                "subresource": "status",
                "fieldsV1": {"f:status": {"f:replicas": {}}},
            },
        ],
    }
    return live


def _canonical(value: Any, path: tuple[str, ...], dice: random.Random) -> Any:
    if isinstance(value, dict):
        kept = {key: _canonical(item, (*path, key), dice) for key, item in value.items()}
        dropped = ("nodeSelector", "tolerations", "annotations")
        return {
            key: item
            for key, item in kept.items()
            if not (key in dropped and not item) and (key, item) != ("value", "")
        }
    if isinstance(value, list):
        items = [_canonical(item, (*path, "[]"), dice) for item in value]
        if path[-1] in MERGED:
            dice.shuffle(items)
        return items
    if path[-2] in ("limits", "requests") or path[-1] == "sizeLimit":
        return _written(stored_amount(value))
    return value


def _written(number: Fraction | None) -> str:
    assert number is not None
    if number.denominator != 1:
        return f"{number * 1000}m"
    for size, unit in ((1024**3, "Gi"), (1024**2, "Mi"), (1000, "k")):
        if number and number % size == 0:
            return f"{number // size}{unit}"
    return str(number)


def _default_template(template: Object) -> None:
    template["metadata"].setdefault("creationTimestamp", None)
    pod = template["spec"]
    for key, value in {"restartPolicy": "Always", "dnsPolicy": "ClusterFirst"}.items():
        pod.setdefault(key, value)
    pod.setdefault("schedulerName", "default-scheduler")
    for container in pod["containers"]:
        container.setdefault("imagePullPolicy", _pull_policy(container["image"]))
        container.setdefault("terminationMessagePath", "/dev/termination-log")
        for probe in ("livenessProbe", "readinessProbe", "startupProbe"):
            container.get(probe, {}).setdefault("successThreshold", 1)
    for volume in pod.get("volumes") or []:
        if "image" in volume:
            volume["image"].setdefault("pullPolicy", _pull_policy(volume["image"]["reference"]))
        for source in ("secret", "configMap"):
            if source in volume:
                volume[source].setdefault("defaultMode", 420)
        _default_sources(volume.get("projected") or {})


def _default_sources(projected: Object) -> None:
    if projected:
        projected.setdefault("defaultMode", 420)
    for source in projected.get("sources", ()):
        if "serviceAccountToken" in source:
            source["serviceAccountToken"].setdefault("expirationSeconds", 3600)
        for item in source.get("downwardAPI", {}).get("items", ()):
            item.get("fieldRef", {}).setdefault("apiVersion", "v1")
            item.get("resourceFieldRef", {}).setdefault("divisor", "0")


def _pull_policy(image: str) -> str:
    return "Always" if re.fullmatch(r"(.*/)?[^/:@]+(:latest(@.*)?)?", image) else "IfNotPresent"


def _fields(value: Any, key: str) -> Object:
    """managedFields' notation of a value below `key`."""
    if key in ATOMIC or (key == "data" and not isinstance(value, str)):
        return {}
    if isinstance(value, dict):
        return {f"f:{name}": _fields(item, name) for name, item in value.items()}
    if isinstance(value, list) and (keys := _keys(key, value)):
        found: Object = {}
        for item in value:
            named = {name: item.get(name, "TCP") for name in keys}
            found[f"k:{json.dumps(named, separators=(',', ':'))}"] = {".": {}, **_fields(item, "")}
        return found
    return {}


def _keys(key: str, items: list[Any]) -> tuple[str, ...]:
    if key == "ports" and items:
        return ("containerPort", "protocol") if "containerPort" in items[0] else ("port", "protocol")
    return MERGED.get(key, ())
