"""The ways by which a document would get what a policy does not admit, and that policy."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from slipway.service import Policy
from slipway.service.fields import read

E2E = Path(__file__).parent
ATTEMPTS: list[dict[str, Any]] = yaml.safe_load(
    (E2E / "manifests" / "attempts.yaml").read_text(encoding="utf-8")
)
OWN_IMAGES = ["docker.io/slipway/runtime-cpu", "docker.io/slipway/runtime-cuda"]
"""Which the chart admits beside those that its values name."""


def given(*more: Mapping[str, Any]) -> dict[str, Any]:
    """The values that the chart hands on under the policy of the attempts, with more of them."""
    values = yaml.safe_load((E2E / "helm" / "values" / "admission.yaml").read_text(encoding="utf-8"))[
        "policy"
    ]
    values = {**values, "images": [*OWN_IMAGES, *values["images"]]}
    del values["admission"]
    for key, value in [pair for one in more for pair in one.items()]:
        values[key] = [*values.get(key, []), *value] if isinstance(value, list) else value
    return values


def policy(*more: Mapping[str, Any]) -> Policy:
    return read(Policy, given(*more), "policy")


def document(spec: Mapping[str, Any], namespace: str = "team-a") -> dict[str, Any]:
    """An InferenceService of a model of the hub, unless the spec has another."""
    return {
        "apiVersion": "slipway.dev/v1alpha1",
        "kind": "InferenceService",
        "metadata": {"name": "demo", "namespace": namespace},
        "spec": {"model": {"hub": {"id": "org/name"}}, **spec},
    }
