"""The whole .status of a resource, from what is there.

It is what kstatus reads (helm, Flux, Argo CD): Ready says whether the wish is fulfilled, Reconciling and
Stalled are there only while true. While no replica is wanted there is no Ready: nothing serves, so that it
cannot be True, and nothing is on its way, so that it must not hold up `helm --wait`.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from slipway.service import InvalidService, ServiceSpec
from slipway.service.companions import SERVER
from slipway.service.labels import selector
from slipway.service.rollout import REASON as ROLLOUT_REASON
from slipway_operator import conditions, reasons
from slipway_operator.memory import verdict
from slipway_operator.pod_findings import current_pods, moving, pods_findings
from slipway_operator.progress import Progress
from slipway_operator.reasons import Finding
from slipway_operator.shapes import Object, condition, current_replica_set, is_ready, name, shortened

SUMMARY_LENGTH = 120
MESSAGE_LENGTH = 2000
_WITHOUT_READY = conditions.PROGRESSING
"""What the summary says of a service of which no replica is wanted."""
_NOTES = (conditions.FITS, conditions.DRIFTED, conditions.UNMONITORED, conditions.UPGRADE_AVAILABLE)
"""What the summary may say beside that."""
_SENTENCE_END = re.compile(r"[.!?] (?=[A-Z`\"])")


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """What the operator sees of one resource and its children, as the API server prints them."""

    resource: Object
    deployment: Object | None = None
    """After an apply the answer to it: an older copy would tell of the rollout before."""
    replica_sets: Sequence[Object] = ()
    pods: Sequence[Object] = ()
    events: Sequence[Object] = ()
    """core/v1 or events.k8s.io/v1, of the pods and ReplicaSets."""
    service: Object | None = None
    conflict: str | None = None
    """A sentence: which object of a needed name belongs to someone else."""
    invalid: Finding | None = None
    """Why the spec is refused: `refusal(error)`."""
    drift: Sequence[str] = ()
    """`foreign_env` of the Deployment."""
    upgrade: str | None = None
    """`Pinned.upgrade`."""
    missing_monitor: str | None = None
    """The kind that the spec wants and the cluster does not have."""
    arguments: Finding | None = None
    """Whether the image takes them; None where it is the operator's own."""
    fit: Finding | None = None
    """Why the rollout waits for `slipway fit`, or what that says against it."""
    nodes: Sequence[Object] = ()
    """Only for the numbers in an Unschedulable message; may stay empty."""
    progress: Mapping[str, Progress] = field(default_factory=dict)
    """By pod name, of pods that load; may stay empty."""
    awaited: Collection[str] = ()
    """The names of pods that have been asked for it, and have not answered yet."""
    memory: Mapping[str, Any] | None = None
    """`memory.told`."""
    now: datetime


@dataclass(frozen=True, slots=True)
class View:
    """What the observation comes down to."""

    findings: Sequence[Finding]
    """What stands in the way, if anything does."""
    refused: bool
    """Whether the resource is refused as a whole, whatever its pods do."""
    wanted: int
    """Replicas."""
    ready: int
    """Pods that admit requests, of any template."""
    current: Sequence[Object]
    """Living pods of the current template."""
    updated: int
    arrived: bool
    """Whether the Deployment is as it should be: every replica current and ready, none left over."""
    unusual: str
    """Why old pods end before new ones start, with a space before it; empty where they do not."""


def refusal(error: InvalidService) -> Finding:
    """The finding for a spec that cannot be rendered."""
    return reasons.BY_NAME[error.reason].found(str(error), conditions.VALID)


def status(observed: Observed, spec: ServiceSpec | None) -> dict[str, Any]:
    """The .status; the same as before where nothing has changed. `spec` is None where it is invalid."""
    view = _view(observed, spec)
    found = list(_conditions(observed, spec, view))
    whole: dict[str, Any] = {
        "observedGeneration": _generation(observed.resource),
        "conditions": [_timed(one, observed) for one in found],
        "summary": _summary(found),
        "replicas": int(_status(observed.deployment).get("replicas") or 0),
        "selector": _selector(observed),
    }
    if observed.service is not None:
        whole["url"] = _url(observed.service, spec)
    if image := _image(observed.deployment):
        whole["image"] = image
    if observed.memory is not None:
        whole["memory"] = dict(observed.memory)
    return whole


def _view(observed: Observed, spec: ServiceSpec | None) -> View:
    deployment = observed.deployment
    wanted = int((deployment or {}).get("spec", {}).get("replicas") or 0)
    if spec is not None:
        wanted = 0 if spec.suspend else spec.replicas
    counts = _status(deployment)
    seen = deployment is not None and counts.get("observedGeneration", 0) >= _generation(deployment)
    updated = int(counts.get("updatedReplicas") or 0)
    available = int(counts.get("availableReplicas") or 0)
    current = current_pods(observed.pods, current_replica_set(observed.replica_sets, deployment))
    rolled_out = seen and updated == available == wanted == int(counts.get("replicas") or 0)
    # Two informers tell of one pod: believe the one that is less content.
    arrived = rolled_out and sum(1 for pod in current if is_ready(pod)) == wanted
    findings = [] if observed.invalid is None else [observed.invalid]
    if observed.conflict:
        findings.append(reasons.NAME_CONFLICT.found(observed.conflict))
    if observed.fit is not None:
        findings.append(observed.fit)
    refused = bool(findings)
    if wanted and not arrived:
        # Before the Deployment's controller has seen it, what fails is what it was before.
        if not refused and (seen or deployment is None):
            findings += _pods_findings(observed)
        if seen and (overdue := _overdue(observed, current)) is not None:
            cause = reasons.first(findings)
            text = f"{cause.reason.name}: {cause.message}" if cause else overdue
            findings.append(reasons.PROGRESS_DEADLINE_EXCEEDED.found(text))
    return View(
        findings=findings,
        refused=refused,
        wanted=wanted,
        ready=sum(1 for pod in observed.pods if is_ready(pod)),
        current=current,
        updated=updated if seen else 0,
        arrived=arrived,
        unusual=_unusual(deployment),
    )


def _pods_findings(observed: Observed) -> list[Finding]:
    return pods_findings(
        observed.pods,
        observed.events,
        observed.replica_sets,
        observed.deployment,
        observed.nodes,
        observed.progress,
        now=observed.now,
    )


def _overdue(observed: Observed, current: Sequence[Object]) -> str | None:
    """The Deployment's message once its progress deadline is exceeded, and no load moves: its controller sees
    pods that are not ready, and not that one of them still loads."""
    known = condition(observed.deployment, "Progressing") or {}
    if known.get("reason") != reasons.PROGRESS_DEADLINE_EXCEEDED.name:
        return None
    if any(moving(pod, observed.progress, observed.now) for pod in current):
        return None
    before = condition(observed.resource, conditions.PROGRESSING) or {}
    if before.get("reason") != known["reason"] and any(name(pod) in observed.awaited for pod in current):
        return None
    return str(known.get("message"))


def _unusual(deployment: Object | None) -> str:
    annotations = (deployment or {"metadata": {}})["metadata"].get("annotations") or {}
    return f" {annotations[ROLLOUT_REASON]}" if ROLLOUT_REASON in annotations else ""


def _conditions(observed: Observed, spec: ServiceSpec | None, view: View) -> Iterator[Finding]:
    progressing = _progressing(spec, view)
    ready = _ready(view, progressing)
    yield _first_of(view, conditions.VALID) or reasons.ACCEPTED.found("The spec is accepted.")
    yield _scheduled(view)
    yield _model_loaded(view)
    if (fits := _fits(observed, view)) is not None:
        yield fits
    yield _available(view)
    yield progressing
    if ready is not None:
        yield ready
    if observed.arguments is not None:
        yield observed.arguments
    if observed.drift:
        names = ", ".join(observed.drift)
        text = f"someone else added {names} to the Deployment. Remove it there, and set it in spec.env."
        yield reasons.DRIFTED.found(text)
    if observed.upgrade:
        yield reasons.UPGRADE_AVAILABLE.found(observed.upgrade)
    if observed.missing_monitor:
        text = f"the cluster has no kind {observed.missing_monitor}, so that nobody scrapes the pods."
        yield reasons.MONITOR_KIND_MISSING.found(text)
    reconciling = not view.arrived if ready is None else ready.status == conditions.FALSE
    if progressing.status == conditions.FALSE and progressing.reason.stalled:
        yield replace(progressing, condition=conditions.STALLED, status=conditions.TRUE)
    elif reconciling:
        yield replace(ready or progressing, condition=conditions.RECONCILING, status=conditions.TRUE)


def _first_of(view: View, condition: str) -> Finding | None:
    """What counts most of that which stands in the way of a condition."""
    return reasons.first(one for one in view.findings if one.condition == condition)


def _scheduled(view: View) -> Finding:
    placed = sum(1 for pod in view.current if pod["spec"].get("nodeName"))
    said = f"{placed} of {view.wanted} pods have a node."
    if not view.wanted or (not view.current and view.refused):
        return reasons.NO_PODS.found("There is no pod.")
    found = _first_of(view, conditions.SCHEDULED)
    if found is not None and found.reason != reasons.SCHEDULING:
        return found
    return (reasons.SCHEDULING if placed < view.wanted else reasons.SCHEDULED).found(said)


def _model_loaded(view: View) -> Finding:
    loaded = sum(1 for pod in view.current if is_ready(pod))
    if loaded:
        said = f"{loaded} of {len(view.current)} pods of the current template have loaded the model."
        return reasons.LOADED.found(said)
    nothing = "No pod of the current template has started."
    return _first_of(view, conditions.MODEL_LOADED) or reasons.NO_PODS.found(nothing, conditions.MODEL_LOADED)


def _fits(observed: Observed, view: View) -> Finding | None:
    """What memory ended counts before what was estimated."""
    if observed.fit is not None:
        return observed.fit
    short = (reasons.OUT_OF_MEMORY, reasons.KV_CACHE_TOO_SMALL)
    found = reasons.first(one for one in view.findings if one.reason in short)
    if found is not None:
        return replace(found, condition=conditions.FITS)
    return verdict(observed.memory) if observed.memory is not None else None


def _available(view: View) -> Finding:
    said = f"{view.ready} of {view.wanted} replicas admit requests."
    if view.ready:
        return reasons.SERVING.found(said)
    if not view.wanted:
        return reasons.SUSPENDED.found("No pod runs.", conditions.AVAILABLE, conditions.FALSE)
    return reasons.NO_READY_POD.found(said)


def _progressing(spec: ServiceSpec | None, view: View) -> Finding:
    found = reasons.first(
        one for one in view.findings if one.condition == conditions.PROGRESSING or one.reason.stalled
    )
    if found is not None:
        return replace(found, condition=conditions.PROGRESSING)
    if spec is not None and not view.wanted:
        why = "spec.suspend is true" if spec.suspend else "spec.replicas is 0"
        return reasons.SUSPENDED.found(f"{why}, so no pod runs.")
    said = f"{view.updated} of {view.wanted} replicas run the current template.{view.unusual}"
    return (reasons.ROLLED_OUT if view.arrived else reasons.ROLLING_OUT).found(said)


def _ready(view: View, progressing: Finding) -> Finding | None:
    """None while no replica is wanted and nothing is wrong."""
    found = reasons.first(view.findings)
    if found is None and not view.wanted:
        return None
    if found is None and view.arrived:
        return replace(_available(view), condition=conditions.READY)
    return replace(found or progressing, condition=conditions.READY, status=conditions.FALSE)


def _timed(found: Finding, observed: Observed) -> dict[str, Any]:
    before = condition(observed.resource, found.condition) or {}
    since = before.get("lastTransitionTime") if before.get("status") == found.status else None
    return {
        "type": found.condition,
        "status": found.status,
        "reason": found.reason.name,
        "message": shortened(found.message, MESSAGE_LENGTH),
        "observedGeneration": _generation(observed.resource),
        "lastTransitionTime": since or observed.now.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
    }


def _summary(found: Sequence[Finding]) -> str:
    """One line for a person: what is wrong, else what they should know, else that all is well."""
    decides = conditions.READY if any(one.condition == conditions.READY for one in found) else _WITHOUT_READY
    shown = reasons.first(one for one in found if one.condition in (decides, *_NOTES))
    assert shown is not None
    sentence = _SENTENCE_END.split(" ".join(shown.message.split()), maxsplit=1)[0].rstrip(".")
    return shortened(f"{shown.reason.name}: {sentence}", SUMMARY_LENGTH)


def _url(service: Object, spec: ServiceSpec | None) -> str:
    """Where the Service answers: its load balancer where it has one, else its name in the cluster."""
    port = service["spec"]["ports"][0]
    tls = spec.secrets.tls is not None if spec is not None else port.get("appProtocol") == "https"
    balanced = (_status(service).get("loadBalancer") or {}).get("ingress") or ()
    outside = next((one.get("hostname") or one.get("ip") for one in balanced), None)
    host = outside or f"{name(service)}.{service['metadata'].get('namespace', 'default')}.svc"
    host = f"[{host}]" if ":" in host else host
    return f"{'https' if tls else 'http'}://{host}:{port['port']}"


def _image(deployment: Object | None) -> str | None:
    """What the server's container of the current template runs."""
    template = (deployment or {}).get("spec", {}).get("template") or {}
    containers = template.get("spec", {}).get("containers") or ()
    return next((item["image"] for item in containers if item["name"] == SERVER), None)


def _selector(observed: Observed) -> str:
    """The label selector of the pods, as /scale gives it to an autoscaler."""
    spec = (observed.deployment or {}).get("spec") or {}
    labels = (spec.get("selector") or {}).get("matchLabels") or selector(name(observed.resource))
    return ",".join(f"{key}={value}" for key, value in sorted(labels.items()))


def _generation(thing: Object) -> int:
    return int(thing["metadata"].get("generation") or 0)


def _status(thing: Object | None) -> Object:
    found: Object = (thing or {}).get("status") or {}
    return found
