"""The labels of what is made for a service: ours, which tell it from all else, and the document's own."""

from __future__ import annotations

from collections.abc import Mapping

from slipway.service.fields import InvalidService
from slipway.service.spec import ServiceSpec

NAME = "app.kubernetes.io/name"
OURS = (NAME, "app.kubernetes.io/instance", "app.kubernetes.io/managed-by")
"""Keys by which Services find pods, and the operator what it made."""
PLACES = (
    "runtime.podLabels",
    "rollout.labels",
    "service.labels",
    "monitoring.labels",
    "disruption.labels",
)
"""Fields of the spec with labels of pods and of each object beside them."""
PROFILE = "slipway.dev/profile"
"""Annotation of pods that have an image, an account or devices of a ServingProfile: its name."""
TAKEN = f"{', '.join(OURS[:-1])} and {OURS[-1]} are the operator's own. Leave them out"


def selector(name: str) -> dict[str, str]:
    """Labels that tell the pods of the service of that name from all others."""
    return dict(zip(OURS, ("slipway", name), strict=False))


def labels(spec: ServiceSpec) -> dict[str, str]:
    """Those of every object that is made for the service."""
    return dict(zip(OURS, ("slipway", spec.name, "slipway"), strict=True))


def check_labels(spec: ServiceSpec) -> None:
    """Raises InvalidService where the document gives a label or an annotation of ours."""
    given: tuple[Mapping[str, str], ...] = (
        spec.runtime.pod_labels,
        spec.rollout.labels,
        spec.service.labels,
        spec.monitoring.labels,
        spec.disruption.labels,
    )
    for place, own in zip(PLACES, given, strict=True):
        if not own.keys().isdisjoint(OURS):
            raise InvalidService(f"spec.{place}", f"{TAKEN}.")
    if PROFILE in spec.runtime.pod_annotations:
        raise InvalidService("spec.runtime.podAnnotations", f"{PROFILE} is the operator's own. Leave it out.")
