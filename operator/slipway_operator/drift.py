"""Whether a live object still is what was rendered, found without asking the API server.

Server-side apply would know, but each of its answers is a PATCH.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from slipway.service.differences import ABSENT, Path, differences, dotted, identity

_OWN_PREFIXES = ("VLLM_", "SLIPWAY_")


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
    live = live_deployment["spec"].get("template") or {}
    return any(differences(template, live)) or any(_no_longer(owned, template, ()))


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
            value = rendered.get(name, ABSENT) if isinstance(rendered, Mapping) else ABSENT
            below = (*path, name)
        elif kind in ("k", "v"):
            value, label = _item(rendered, kind, json.loads(name))
            below = (*path, f"[{label}]")
        else:  # "." stands for the map or item itself
            continue
        if value is ABSENT or value is None:
            yield below
        elif deeper:
            yield from _no_longer(deeper, value, below)


def _item(rendered: object, kind: str, wanted: Any) -> tuple[object, str]:
    """The item of a list that `wanted` names, by its value or its keys, and how to show it."""
    items = rendered if isinstance(rendered, Sequence) and not isinstance(rendered, str) else ()
    if kind == "v":
        return (wanted if wanted in items else ABSENT), str(wanted)
    keys = tuple(wanted)
    name = identity(wanted, keys)
    match = next((item for item in items if identity(item, keys) == name), ABSENT)
    return match, "/".join(name)


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
