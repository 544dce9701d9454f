"""What of a document reaches its pods, and the hash by which the operator tells that it changed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from typing import Any, get_args

from slipway.service.fields import camel, written
from slipway.service.forms import Quantity, Size
from slipway.service.pod import pod_template
from slipway.service.quantity import amount
from slipway.service.spec import ServiceSpec

__all__ = ["intent", "intent_hash", "pod_template"]

REACHES_PODS = (
    "model",
    "profile",
    "runtime",
    "env",
    "secrets",
    "trusted_ca",
    "files",
    "volumes",
    "init_containers",
    "sidecars",
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
    return _of(spec, lambda quantity: str(amount(quantity)))


def stated(spec: ServiceSpec) -> dict[str, Any]:
    """The same with quantities as the document spells them."""
    return _of(spec, str)


def _of(spec: ServiceSpec, spelled: Callable[[Any], str]) -> dict[str, Any]:
    def quantity(annotation: Any, value: Any) -> Any:
        is_one = {annotation, *get_args(annotation)} & {Quantity, Size}
        return spelled(value) if is_one and value is not None else value

    wanted = {camel(name): written(getattr(spec, name), quantity) for name in REACHES_PODS}
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
