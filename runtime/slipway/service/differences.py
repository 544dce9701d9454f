"""Where two objects of Kubernetes differ.

The rules are those by which server-side apply merges (`x-kubernetes-list-map-keys` and
`x-kubernetes-map-type` of Kubernetes' own types): what is wanted must be there, what others added does not
matter.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

from slipway.service.quantity import same

Path = tuple[str, ...]
ABSENT = object()
LONGEST = 80
"""Characters of a value that is shown."""

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
        "podSelector",
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


@dataclass(frozen=True, slots=True)
class Difference:
    """A leaf that is not as it should be; `absent` is the text where there is nothing."""

    path: str
    wanted: str
    found: str

    def sentence(self) -> str:
        return f"{self.path} is {self.found} and should be {self.wanted}."

    def change(self) -> str:
        return f"{self.path} {self.found} → {self.wanted}"


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
        yield from _differences(wanted, live.get(key, ABSENT), (key,))


def changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """Every leaf that differs, as `path before → after`; `spec.` is left out where a path begins with it."""
    return [one.change().removeprefix("spec.") for one in changed(before, after)]


def changed(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[Difference]:
    """Every leaf that differs, sorted; what was is found, and what is to be wanted."""
    seen: dict[str, Difference] = {}
    for key in {**after, **before}:
        old, new = before.get(key, ABSENT), after.get(key, ABSENT)
        for one in () if new is ABSENT else _differences(new, old, (key,)):
            seen[one.path] = one
        for one in () if old is ABSENT else _differences(old, new, (key,)):
            seen.setdefault(one.path, Difference(one.path, wanted=one.found, found=one.wanted))
    return [one for _, one in sorted(seen.items())]


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
        yield from _differences(value, found.get(key, ABSENT), (*path, key), exact)
    for key in sorted(found.keys() - wanted.keys()) if exact else ():
        if _DEFAULTS_OF_ATOMS.get(key, ABSENT) != found[key]:
            yield _difference(ABSENT, found[key], (*path, key))


def _list_differences(wanted: Sequence[Any], found: object, path: Path, exact: bool) -> Iterator[Difference]:
    items = found if isinstance(found, Sequence) and not isinstance(found, str) else ()
    # Within what has one owner nothing is merged.
    keys = () if exact else merge_keys(path, wanted)
    if keys:
        by_key = {identity(item, keys): item for item in items}
        for item in wanted:
            name = identity(item, keys)
            label = f"[{'/'.join(name)}]"
            yield from _differences(item, by_key.get(name, ABSENT), (*path, label), exact)
    elif len(wanted) != len(items):
        yield _of_lengths(wanted, items, path)
    else:
        for index, (one, other) in enumerate(zip(wanted, items, strict=True)):
            yield from _differences(one, other, (*path, f"[{index}]"), exact=True)


def _of_lengths(wanted: Sequence[Any], items: Sequence[Any], path: Path) -> Difference:
    """Of two lists, without what both begin and end with."""
    start = _alike(wanted, items)
    end = _alike(wanted[start:][::-1], items[start:][::-1])
    new, old = (list(one[start : len(one) - end]) or ABSENT for one in (wanted, items))
    return _difference(new, old, (*path, f"[{start}]") if items and wanted else path)


def _alike(one: Sequence[Any], other: Sequence[Any]) -> int:
    """Items that both begin with."""
    return len(list(takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False))))


def _same_leaf(wanted: object, found: object, path: Path) -> bool:
    if type(wanted) is type(found) and wanted == found:
        return True
    if found is ABSENT and not wanted and path[-1] in _DROPPED_WHEN_ZERO:
        return True
    parent = path[-2] if len(path) > 1 else ""
    return (parent in ("limits", "requests") or path[-1] in _QUANTITIES) and same(wanted, found)


def _difference(wanted: object, found: object, path: Path) -> Difference:
    return Difference(dotted(path), _shown(wanted), _shown(found))


def _shown(value: object) -> str:
    if value is ABSENT:
        return "absent"
    text = value if isinstance(value, str) else json.dumps(value, sort_keys=True, ensure_ascii=False)
    return (text if len(text) <= LONGEST else text[: LONGEST - 1].rstrip() + "…") or '""'


def merge_keys(path: Path, items: Sequence[Any]) -> Path:
    """What tells the items of the list at `path` from each other; empty for a list that is one value."""
    if not all(isinstance(item, Mapping) for item in items):
        return ()
    if path[-1] == "ports":
        named = any("containerPort" in item for item in items)
        return ("containerPort", "protocol") if named else ("port", "protocol")
    return _MERGE_KEYS.get(path[-1], ())


def identity(item: Mapping[str, Any], keys: Path) -> Path:
    return tuple(str(item.get(key, _KEY_DEFAULTS.get(key, ""))) for key in keys)
