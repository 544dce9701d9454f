"""When the pods of a service give way to others, for the operator and for `slipway diff`."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from slipway.service.differences import changed
from slipway.service.intent import intent_hash
from slipway.service.labels import PROFILE
from slipway.service.spec import ServiceSpec


def replaced(before: str, kept: Mapping[str, Any], spec: ServiceSpec, fresh: Mapping[str, Any]) -> bool:
    """Whether the pods of a template that was kept for the intent of hash `before` give way to fresh ones.

    They do where those would be others, and the document asks for them: by another intent, or by
    `rollout.template: Latest`.
    """
    asked = intent_hash(spec) != before or spec.rollout.template == "Latest"
    return asked and bool(changed(_completed(kept), _completed(fresh)))


def _completed(template: Mapping[str, Any]) -> dict[str, Any]:
    """The template with Kubernetes' defaults of what a document may say or leave out, and without the name of
    a profile: where pods would be the same without it, they need none."""
    whole = copy.deepcopy(dict(template))
    whole.get("metadata", {}).get("annotations", {}).pop(PROFILE, None)
    pod = whole["spec"]
    pod.setdefault("schedulerName", "default-scheduler")
    for container in (*pod["containers"], *pod.get("initContainers", [])):
        container.setdefault("imagePullPolicy", _pull_policy(container["image"]))
    for volume in pod.get("volumes", []):
        if source := volume.get("image"):
            source.setdefault("pullPolicy", _pull_policy(source["reference"]))
    return whole


def _pull_policy(image: str) -> str:
    """The default: `latest` is pulled each time, and so is what has neither tag nor digest."""
    name, _, digest = image.partition("@")
    tag = name.rpartition("/")[2].partition(":")[2]
    return "Always" if tag == "latest" or not (tag or digest) else "IfNotPresent"
