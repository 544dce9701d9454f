"""Which services should serve and do not: the series behind the alert SlipwayNotReady."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from slipway_operator.shapes import Object, condition


def unready_services(resources: Iterable[Object]) -> Iterator[tuple[str, str, str]]:
    """(namespace, name, reason) of each that asks for pods and whose condition Ready is not True.

    The reason is that of Ready, and empty where the operator has not written a status yet.
    """
    for resource in resources:
        spec = resource.get("spec") or {}
        if spec.get("suspend") or spec.get("replicas", 1) == 0:
            continue
        ready = condition(resource, "Ready") or {}
        if ready.get("status") != "True":
            metadata = resource["metadata"]
            yield metadata["namespace"], metadata["name"], ready.get("reason", "")
