"""What of a document reaches its pods, and the hash by which the operator tells that it changed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import MISSING, Field, fields, is_dataclass
from typing import Any, get_args

from slipway.service.fields import camel, types_of
from slipway.service.pod import pod_template
from slipway.service.quantity import amount
from slipway.service.spec import Quantity, ServiceSpec

__all__ = ["intent", "intent_hash", "pod_template"]

REACHES_PODS = (
    "model",
    "profile",
    "runtime",
    "env",
    "secrets",
    "files",
    "devices",
    "resources",
    "scheduling",
    "security",
)
"""Fields of the document whose change makes new pods, beside `engine` and `rollout.drainSeconds`."""


def intent(spec: ServiceSpec) -> dict[str, Any]:
    """The fields of the document whose change must make new pods, as JSON.

    Normalised: what is unset, null or at its default is left out, so that a field of a later version
    changes no hash; 1000m is 1 and 1k is 1000; the order of `env` says nothing. A claim's access mode
    is about the rollout and no part of it.
    """
    return _of(spec, _amount)


def stated(spec: ServiceSpec) -> dict[str, Any]:
    """The same with quantities as the document spells them."""
    return _of(spec, str)


def _of(spec: ServiceSpec, quantity: Callable[[str], str]) -> dict[str, Any]:
    wanted = {name: _written(getattr(spec, name), quantity) for name in REACHES_PODS}
    wanted["env"] = sorted(wanted["env"], key=lambda entry: str(entry["name"]))
    wanted["model"].get("cache", {}).pop("accessMode", None)
    wanted["engine"] = _engine(spec)
    if spec.rollout.drain_seconds is not None:
        wanted["rollout"] = {"drainSeconds": spec.rollout.drain_seconds}
    return {name: value for name, value in wanted.items() if value}


def intent_hash(spec: ServiceSpec) -> str:
    """Ten hexadecimal digits; equal for documents of equal intent."""
    text = json.dumps(intent(spec), sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()[:10]


def _engine(spec: ServiceSpec) -> dict[str, Any]:
    """Every argument as its declared type has it."""
    from slipway.args.schema import CAMEL
    from slipway.args.values import from_yaml

    found: dict[str, Any] = {}
    for name, value in spec.engine.items():
        argument = CAMEL[name]
        if value is None:
            continue
        items = [from_yaml(argument, item, name) for item in (value if isinstance(value, list) else [value])]
        found[name] = items if isinstance(value, list) else items[0]
    return found


def _written(value: Any, quantity: Callable[[str], str]) -> Any:
    """A dataclass as the document would write it, without what is at its default."""
    if is_dataclass(value):
        types = types_of(type(value))
        kept = {
            field: getattr(value, field.name)
            for field in fields(value)
            if getattr(value, field.name) != _default(field)
        }
        return {
            camel(field.name): quantity(item) if _is_quantity(types[field.name]) else _written(item, quantity)
            for field, item in kept.items()
        }
    if isinstance(value, tuple | list):
        return [_written(item, quantity) for item in value]
    if isinstance(value, dict):
        return {key: _written(item, quantity) for key, item in value.items() if item is not None}
    return value


def _default(field: Field[Any]) -> Any:
    return field.default if field.default_factory is MISSING else field.default_factory()


def _is_quantity(annotation: Any) -> bool:
    return annotation == Quantity or Quantity in get_args(annotation)


def _amount(quantity: str) -> str:
    return str(amount(quantity))
