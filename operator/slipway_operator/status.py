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
from slipway_operator.explain import current_pods, load_moves, pods_summary
from slipway_operator.memory import verdict
from slipway_operator.progress import Progress
from slipway_operator.reasons import Finding, Reason
from slipway_operator.shapes import Object, condition, current_replica_set, is_ready, name, shortened

SUMMARY_LENGTH = 120
MESSAGE_LENGTH = 2000
_GOOD = (reasons.ESTIMATED, reasons.MEASURED)
"""Of the condition Fits, nothing that a person has to know."""
_WORTH_KNOWING = (conditions.FITS, conditions.DRIFTED, conditions.UNMONITORED, conditions.UPGRADE_AVAILABLE)
"""Of a service that serves, the most important first."""
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
class Verdict:
    """A condition before it has a time."""

    condition: str
    status: str
    reason: Reason
    message: str


@dataclass(frozen=True, slots=True)
class View:
    """What the observation comes down to."""

    found: Finding | None
    """What stands in the way, if anything does."""
    wanted: int
    """Replicas."""
    ready: int
    """Pods that admit requests, of any template."""
    current: Sequence[Object]
    """Living pods of the current template."""
    updated: int
    arrived: bool
    """Whether the Deployment is as it should be: every replica current and ready, none left over."""
    overdue: str | None
    """The Deployment's message once its progress deadline is exceeded, and no load moves."""
    unusual: str
    """Why old pods end before new ones start, with a space before it; empty where they do not."""


def refusal(error: InvalidService) -> Finding:
    """The finding for a spec that cannot be rendered."""
    return reasons.BY_NAME[error.reason].found(str(error), conditions.VALID)


def status(observed: Observed, spec: ServiceSpec | None) -> dict[str, Any]:
    """The .status; the same as before where nothing has changed. `spec` is None where it is invalid."""
    view = _view(observed, spec)
    verdicts = list(_verdicts(observed, spec, view))
    whole: dict[str, Any] = {
        "observedGeneration": _generation(observed.resource),
        "conditions": [_timed(verdict, observed) for verdict in verdicts],
        "summary": _summary(verdicts),
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
    found = observed.invalid
    if found is None and observed.conflict:
        found = reasons.NAME_CONFLICT.found(observed.conflict)
    # Before the Deployment's controller has seen it, what fails is what it was before.
    if found is None and wanted and (seen or deployment is None):
        found = pods_summary(
            observed.pods,
            observed.events,
            observed.replica_sets,
            deployment,
            observed.nodes,
            observed.progress,
        )
    updated = int(counts.get("updatedReplicas") or 0)
    available = int(counts.get("availableReplicas") or 0)
    current = current_pods(observed.pods, current_replica_set(observed.replica_sets, deployment))
    rolled_out = seen and updated == available == wanted == int(counts.get("replicas") or 0)
    return View(
        found=found,
        wanted=wanted,
        ready=sum(1 for pod in observed.pods if is_ready(pod)),
        current=current,
        updated=updated if seen else 0,
        # Two informers tell of one pod: believe the one that is less content.
        arrived=rolled_out and sum(1 for pod in current if is_ready(pod)) == wanted,
        overdue=_overdue(observed, current) if seen else None,
        unusual=_unusual(deployment),
    )


def _overdue(observed: Observed, current: Sequence[Object]) -> str | None:
    """The Deployment's controller sees pods that are not ready, and not that one of them still loads."""
    known = condition(observed.deployment, "Progressing") or {}
    if known.get("reason") != reasons.PROGRESS_DEADLINE_EXCEEDED.name:
        return None
    if any(load_moves(pod, observed.progress) for pod in current):
        return None
    before = condition(observed.resource, conditions.PROGRESSING) or {}
    if before.get("reason") != known["reason"] and any(name(pod) in observed.awaited for pod in current):
        return None
    return str(known.get("message"))


def _unusual(deployment: Object | None) -> str:
    annotations = (deployment or {"metadata": {}})["metadata"].get("annotations") or {}
    return f" {annotations[ROLLOUT_REASON]}" if ROLLOUT_REASON in annotations else ""


def _verdicts(observed: Observed, spec: ServiceSpec | None, view: View) -> Iterator[Verdict]:
    progressing = _progressing(spec, view)
    ready = _ready(view, progressing)
    yield _valid(view.found)
    yield _scheduled(view)
    yield _model_loaded(view)
    if (fits := _fits(observed, view)) is not None:
        yield fits
    yield _available(view)
    yield progressing
    if ready is not None:
        yield ready
    if observed.arguments is not None:
        yield _args_compatible(observed.arguments)
    if observed.drift:
        names = ", ".join(observed.drift)
        text = f"someone else added {names} to the Deployment. Remove it there, and set it in spec.env."
        yield Verdict(conditions.DRIFTED, "True", reasons.DRIFTED, text)
    if observed.upgrade:
        yield Verdict(conditions.UPGRADE_AVAILABLE, "True", reasons.UPGRADE_AVAILABLE, observed.upgrade)
    if observed.missing_monitor:
        text = f"the cluster has no kind {observed.missing_monitor}, so that nobody scrapes the pods."
        yield Verdict(conditions.UNMONITORED, "True", reasons.MONITOR_KIND_MISSING, text)
    reconciling = not view.arrived if ready is None else ready.status == "False"
    cause = ready or progressing
    if progressing.status == "False" and progressing.reason.stalled:
        yield Verdict(conditions.STALLED, "True", progressing.reason, progressing.message)
    elif reconciling:
        yield Verdict(conditions.RECONCILING, "True", cause.reason, cause.message)


def _valid(found: Finding | None) -> Verdict:
    if found is not None and found.condition == conditions.VALID:
        return Verdict(conditions.VALID, "False", found.reason, found.message)
    return Verdict(conditions.VALID, "True", reasons.ACCEPTED, "The spec is accepted.")


def _args_compatible(found: Finding) -> Verdict:
    status = {reasons.SCHEMA_MATCHES: "True", reasons.ARGUMENTS_REFUSED: "False"}.get(found.reason, "Unknown")
    return Verdict(conditions.ARGS_COMPATIBLE, status, found.reason, found.message)


def _scheduled(view: View) -> Verdict:
    placed = sum(1 for pod in view.current if pod["spec"].get("nodeName"))
    said = f"{placed} of {view.wanted} pods have a node."
    if not view.wanted or (not view.current and _refused(view.found)):
        return Verdict(conditions.SCHEDULED, "Unknown", reasons.NO_PODS, "There is no pod.")
    found = view.found
    if found is not None and found.reason == reasons.ROLLOUT_NEEDS_SPARE_DEVICE:
        return Verdict(conditions.SCHEDULED, "False", reasons.UNSCHEDULABLE, found.message)
    if found is not None and found.condition == conditions.SCHEDULED and found.reason != reasons.SCHEDULING:
        return Verdict(conditions.SCHEDULED, "False", found.reason, found.message)
    if placed < view.wanted:
        return Verdict(conditions.SCHEDULED, "Unknown", reasons.SCHEDULING, said)
    return Verdict(conditions.SCHEDULED, "True", reasons.SCHEDULED, said)


def _model_loaded(view: View) -> Verdict:
    loaded = sum(1 for pod in view.current if is_ready(pod))
    if loaded:
        said = f"{loaded} of {len(view.current)} pods of the current template have loaded the model."
        return Verdict(conditions.MODEL_LOADED, "True", reasons.LOADED, said)
    if view.found is not None and view.found.condition == conditions.MODEL_LOADED:
        return Verdict(conditions.MODEL_LOADED, "False", view.found.reason, view.found.message)
    return Verdict(
        conditions.MODEL_LOADED, "Unknown", reasons.NO_PODS, "No pod of the current template has started."
    )


def _fits(observed: Observed, view: View) -> Verdict | None:
    """What memory ended counts before what was estimated."""
    found = view.found
    if found is None or found.reason not in (reasons.OUT_OF_MEMORY, reasons.KV_CACHE_TOO_SMALL):
        found = verdict(observed.memory) if observed.memory is not None else None
    if found is None:
        return None
    status = "True" if found.reason in (*_GOOD, reasons.TAKES_MORE) else "False"
    return Verdict(conditions.FITS, status, found.reason, found.message)


def _available(view: View) -> Verdict:
    said = f"{view.ready} of {view.wanted} replicas admit requests."
    if view.ready:
        return Verdict(conditions.AVAILABLE, "True", reasons.SERVING, said)
    if not view.wanted:
        return Verdict(conditions.AVAILABLE, "False", reasons.SUSPENDED, "No pod runs.")
    return Verdict(conditions.AVAILABLE, "False", reasons.NO_READY_POD, said)


def _progressing(spec: ServiceSpec | None, view: View) -> Verdict:
    found = view.found
    if found is not None and (found.condition == conditions.PROGRESSING or found.reason.stalled):
        return Verdict(conditions.PROGRESSING, "False", found.reason, found.message)
    if spec is not None and not view.wanted:
        why = "spec.suspend is true" if spec.suspend else "spec.replicas is 0"
        return Verdict(conditions.PROGRESSING, "True", reasons.SUSPENDED, f"{why}, so no pod runs.")
    said = f"{view.updated} of {view.wanted} replicas run the current template.{view.unusual}"
    if view.arrived:
        return Verdict(conditions.PROGRESSING, "True", reasons.ROLLED_OUT, said)
    if view.overdue is not None:
        why = f"{found.reason.name}: {found.message}" if found else view.overdue
        return Verdict(conditions.PROGRESSING, "False", reasons.PROGRESS_DEADLINE_EXCEEDED, why)
    return Verdict(conditions.PROGRESSING, "True", reasons.ROLLING_OUT, said)


def _ready(view: View, progressing: Verdict) -> Verdict | None:
    """None while no replica is wanted and nothing is wrong."""
    found = view.found
    if not view.wanted and not _refused(found):
        return None
    if view.arrived and not _refused(found):
        return replace(_available(view), condition=conditions.READY)
    if found is not None:
        return Verdict(conditions.READY, "False", found.reason, found.message)
    return Verdict(conditions.READY, "False", progressing.reason, progressing.message)


def _refused(found: Finding | None) -> bool:
    """Whether the resource is refused as a whole, whatever its pods do."""
    if found is None:
        return False
    as_a_whole = (conditions.VALID, conditions.ARGS_COMPATIBLE)
    return found.condition in as_a_whole or found.reason == reasons.NAME_CONFLICT


def _timed(verdict: Verdict, observed: Observed) -> dict[str, Any]:
    before = condition(observed.resource, verdict.condition) or {}
    since = before.get("lastTransitionTime") if before.get("status") == verdict.status else None
    return {
        "type": verdict.condition,
        "status": verdict.status,
        "reason": verdict.reason.name,
        "message": shortened(verdict.message, MESSAGE_LENGTH),
        "observedGeneration": _generation(observed.resource),
        "lastTransitionTime": since or observed.now.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
    }


def _summary(verdicts: Sequence[Verdict]) -> str:
    """One line for a person: what is wrong, else what they should know, else that all is well."""
    by_type = {verdict.condition: verdict for verdict in verdicts}
    shown = by_type.get(conditions.READY) or by_type[conditions.PROGRESSING]
    if shown.status == "True" and shown.condition == conditions.READY:
        known = [by_type.get(one) for one in _WORTH_KNOWING]
        shown = next((one for one in known if one and one.reason not in _GOOD), shown)
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
