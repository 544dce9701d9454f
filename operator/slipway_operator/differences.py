"""Whether a live object still is what was rendered, found without asking the API server.

Server-side apply would know, but each of its answers is a PATCH. The rules here are those that it merges
by (`x-kubernetes-list-map-keys` and `x-kubernetes-map-type` of Kubernetes' own types): what was rendered
must be there, what the server or another manager added does not matter.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from slipway_operator.quantities import same
from slipway_operator.shapes import shortened

Path = tuple[str, ...]

_MERGE_KEYS: Mapping[str, Path] = {
    "containers": ("name",),
    "initContainers": ("name",),
    "ephemeralContainers": ("name",),
    "env": ("name",),
    "volumes": ("name",),
    "volumeMounts": ("mountPath",),
    "volumeDevices": ("devicePath",),
    "imagePullSecrets": ("name",),
    "resourceClaims": ("name",),
    "claims": ("name",),
    "hostAliases": ("ip",),
    "schedulingGates": ("name",),
    "topologySpreadConstraints": ("topologyKey", "whenUnsatisfiable"),
    "ownerReferences": ("uid",),
}
_KEY_DEFAULTS = {"protocol": "TCP"}
ATOMIC_MAPS = frozenset(
    {
        "nodeSelector",
        "selector",
        "labelSelector",
        "namespaceSelector",
        "secretKeyRef",
        "configMapKeyRef",
        "fieldRef",
        "fileKeyRef",
        "resourceFieldRef",
        "nodePublishSecretRef",
        "requiredDuringSchedulingIgnoredDuringExecution",
        "preference",
    }
)
"""Maps that have one owner as a whole: what another manager adds to them changes what they mean."""
_DEFAULTS_OF_ATOMS: Mapping[str, object] = {"action": "replace", "name": ""}
"""What the CRDs of the Prometheus Operator fill in within the lists that we own as a whole."""
_SIGNIFICANT_WHEN_EMPTY = frozenset({"emptyDir"})
_DROPPED_WHEN_ZERO = frozenset(
    {"value", "key", "effect", "operator", "readOnly", "subPath", "initialDelaySeconds", "hostNetwork"}
)
"""Leaves that the API server does not store where they are empty, false or 0."""
_QUANTITIES = frozenset({"sizeLimit", "divisor", "storage"})
_OWN_PREFIXES = ("VLLM_", "SLIPWAY_")
_ABSENT = object()


@dataclass(frozen=True, slots=True)
class Difference:
    """A leaf that is not as it should be; `absent` is the text where there is nothing."""

    path: str
    wanted: str
    found: str

    def sentence(self) -> str:
        return f"{self.path} is {self.found} and should be {self.wanted}."


def needs_apply(
    rendered: Mapping[str, Any], live: Mapping[str, Any] | None, field_manager: str
) -> str | None:
    """A sentence that names the first field that an apply would change; None where there is none."""
    name = f"{rendered['kind']} {rendered['metadata']['name']}"
    if live is None:
        return f"{name} does not exist."
    for difference in differences(rendered, live):
        return f"{name}: {difference.sentence()}"
    for path in _no_longer(_owned(live, field_manager), rendered, ()):
        return f"{name}: {dotted(path)} is no longer rendered and should go."
    return None


def rolls(template: Mapping[str, Any], live_deployment: Mapping[str, Any], field_manager: str) -> bool:
    """Whether a Deployment with this template would make other pods than the live one does."""
    owned = _at(_owned(live_deployment, field_manager), "f:spec", "f:template")
    live = live_deployment["spec"].get("template", _ABSENT)
    differ = any(_differences(template, live, ("template",)))
    return differ or any(_no_longer(owned, template, ()))


def differences(rendered: Mapping[str, Any], live: Mapping[str, Any]) -> Iterator[Difference]:
    """Every rendered leaf that is not so in `live`."""
    for key, wanted in rendered.items():
        # Items of a list of the API server lack both; the object would not be here under another kind.
        if key in ("apiVersion", "kind"):
            continue
        if key == "data" and rendered.get("kind") == "ControllerRevision":
            if wanted != live.get(key):
                yield Difference(key, "the rendered template", "another")
            continue
        yield from _differences(wanted, live.get(key, _ABSENT), (key,))


def changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """Every leaf that differs, as `path before → after`; `spec.` is left out where a path begins with it."""
    seen: dict[str, str] = {}
    for key in {**after, **before}:
        old, new = before.get(key, _ABSENT), after.get(key, _ABSENT)
        for one in () if new is _ABSENT else _differences(new, old, (key,)):
            seen[one.path] = f"{one.path} {one.found} → {one.wanted}"
        for one in () if old is _ABSENT else _differences(old, new, (key,)):
            seen.setdefault(one.path, f"{one.path} {one.wanted} → {one.found}")
    return [text.removeprefix("spec.") for _, text in sorted(seen.items())]


def foreign_env(live_deployment: Mapping[str, Any], field_manager: str) -> list[str]:
    """VLLM_* and SLIPWAY_* variables of its containers that another manager added, sorted."""
    pod = _at(live_deployment, "spec", "template", "spec")
    owned = _at(_owned(live_deployment, field_manager), "f:spec", "f:template", "f:spec")
    found: set[str] = set()
    for folder in ("containers", "initContainers"):
        for container in pod.get(folder) or ():
            own = _owned_variables(_at(owned, f"f:{folder}"), container["name"])
            present = {entry["name"] for entry in container.get("env") or ()}
            found |= {name for name in present - own if name.startswith(_OWN_PREFIXES)}
    return sorted(found)


def dotted(path: Path) -> str:
    """spec.containers[server].image"""
    return ".".join(path).replace(".[", "[")


def _differences(wanted: object, found: object, path: Path, exact: bool = False) -> Iterator[Difference]:
    """`exact` below a map or list of one owner: what is there beside `wanted` differs too."""
    if wanted is None:
        return
    if isinstance(wanted, Mapping):
        yield from _map_differences(wanted, found, path, exact or path[-1] in ATOMIC_MAPS)
    elif isinstance(wanted, Sequence) and not isinstance(wanted, str):
        yield from _list_differences(wanted, found, path, exact)
    elif not _same_leaf(wanted, found, path):
        yield _difference(wanted, found, path)


def _map_differences(
    wanted: Mapping[str, Any], found: object, path: Path, exact: bool
) -> Iterator[Difference]:
    if not isinstance(found, Mapping):
        if wanted or path[-1] in _SIGNIFICANT_WHEN_EMPTY:
            yield _difference(wanted, found, path)
        return
    for key, value in wanted.items():
        yield from _differences(value, found.get(key, _ABSENT), (*path, key), exact)
    for key in sorted(found.keys() - wanted.keys()) if exact else ():
        if _DEFAULTS_OF_ATOMS.get(key, _ABSENT) != found[key]:
            yield _difference(_ABSENT, found[key], (*path, key))


def _list_differences(wanted: Sequence[Any], found: object, path: Path, exact: bool) -> Iterator[Difference]:
    items = found if isinstance(found, Sequence) and not isinstance(found, str) else ()
    keys = merge_keys(path, wanted)
    if keys:
        by_key = {_identity(item, keys): item for item in items}
        for item in wanted:
            identity = _identity(item, keys)
            label = f"[{'/'.join(identity)}]"
            yield from _differences(item, by_key.get(identity, _ABSENT), (*path, label), exact)
    elif len(wanted) != len(items):
        yield _difference(wanted, found, path)
    else:
        for index, (one, other) in enumerate(zip(wanted, items, strict=True)):
            yield from _differences(one, other, (*path, f"[{index}]"), exact=True)


def _same_leaf(wanted: object, found: object, path: Path) -> bool:
    if type(wanted) is type(found) and wanted == found:
        return True
    if found is _ABSENT and not wanted and path[-1] in _DROPPED_WHEN_ZERO:
        return True
    parent = path[-2] if len(path) > 1 else ""
    return (parent in ("limits", "requests") or path[-1] in _QUANTITIES) and same(wanted, found)


def _difference(wanted: object, found: object, path: Path) -> Difference:
    return Difference(dotted(path), _shown(wanted), _shown(found))


def _shown(value: object) -> str:
    if value is _ABSENT:
        return "absent"
    text = value if isinstance(value, str) else json.dumps(value, sort_keys=True, ensure_ascii=False)
    return shortened(text, 80) or '""'


def merge_keys(path: Path, items: Sequence[Any]) -> Path:
    """What tells the items of the list at `path` from each other; empty for a list that is one value."""
    if not all(isinstance(item, Mapping) for item in items):
        return ()
    if path[-1] == "ports":
        named = any("containerPort" in item for item in items)
        return ("containerPort", "protocol") if named else ("port", "protocol")
    return _MERGE_KEYS.get(path[-1], ())


def _identity(item: Mapping[str, Any], keys: Path) -> Path:
    return tuple(str(item.get(key, _KEY_DEFAULTS.get(key, ""))) for key in keys)


def _owned(live: Mapping[str, Any], field_manager: str) -> Mapping[str, Any]:
    """The fields that `field_manager` has applied, in the notation of managedFields."""
    for entry in _at(live, "metadata").get("managedFields") or ():
        applied = entry.get("operation") == "Apply" and not entry.get("subresource")
        if entry.get("manager") == field_manager and applied:
            fields: Mapping[str, Any] = entry.get("fieldsV1") or {}
            return fields
    return {}


def _no_longer(owned: Mapping[str, Any], rendered: object, path: Path) -> Iterator[Path]:
    """Paths of owned fields that `rendered` lacks, outermost first."""
    for key, deeper in owned.items():
        kind, _, name = key.partition(":")
        if kind == "f":
            value = rendered.get(name, _ABSENT) if isinstance(rendered, Mapping) else _ABSENT
            below = (*path, name)
        elif kind in ("k", "v"):
            value, label = _item(rendered, kind, json.loads(name))
            below = (*path, f"[{label}]")
        else:  # "." stands for the map or item itself
            continue
        if value is _ABSENT or value is None:
            yield below
        elif deeper:
            yield from _no_longer(deeper, value, below)


def _item(rendered: object, kind: str, wanted: Any) -> tuple[object, str]:
    """The item of a list that `wanted` names, by its value or its keys, and how to show it."""
    items = rendered if isinstance(rendered, Sequence) and not isinstance(rendered, str) else ()
    if kind == "v":
        return (wanted if wanted in items else _ABSENT), str(wanted)
    keys = tuple(wanted)
    identity = _identity(wanted, keys)
    match = next((item for item in items if _identity(item, keys) == identity), _ABSENT)
    return match, "/".join(identity)


def _owned_variables(owned_containers: Mapping[str, Any], container: str) -> set[str]:
    for key, fields in owned_containers.items():
        if key.startswith("k:") and json.loads(key[2:]) == {"name": container}:
            owned = _at(fields, "f:env")
            return {json.loads(name[2:])["name"] for name in owned if name.startswith("k:")}
    return set()


def _at(mapping: Mapping[str, Any], *path: str) -> Mapping[str, Any]:
    for key in path:
        mapping = mapping.get(key) or {}
    return mapping
