"""Which services should serve and do not: the series behind the alert SlipwayNotReady."""

from __future__ import annotations

from slipway_operator.shapes import Object, condition


def unready(resource: Object) -> str | None:
    """The reason of a service that asks for pods and whose condition Ready is not True: empty where the
    operator has not written a status yet. None for every other."""
    spec = resource.get("spec") or {}
    if spec.get("suspend") or spec.get("replicas", 1) == 0:
        return None
    ready = condition(resource, "Ready") or {}
    return None if ready.get("status") == "True" else str(ready.get("reason", ""))
