"""Every reason that a condition can have: the closed catalogue behind the REASON column."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from slipway.exits import CATALOGUE as EXITS

VALID = "Valid"
SCHEDULED = "Scheduled"
MODEL_LOADED = "ModelLoaded"
AVAILABLE = "Available"
PROGRESSING = "Progressing"
READY = "Ready"
DRIFTED = "Drifted"
UPGRADE_AVAILABLE = "UpgradeAvailable"
UNMONITORED = "Unmonitored"
RECONCILING = "Reconciling"
STALLED = "Stalled"

CONDITIONS: Mapping[str, str] = {
    VALID: "The operator can render the spec, and its policy admits it.",
    SCHEDULED: "Every pod of the current template exists and has a node.",
    MODEL_LOADED: "A server of the current template has loaded the model.",
    AVAILABLE: "At least one pod admits requests: the URL answers.",
    PROGRESSING: "The rollout moves on, or has arrived.",
    READY: "All that the spec asks for is there: every replica runs the current template and admits "
    "requests. Absent while no replica is asked for, so that `helm --wait` ends and `kubectl wait` does not.",
    DRIFTED: "Only there while true: the Deployment has a variable that someone else added.",
    UPGRADE_AVAILABLE: "Only there while true: this operator would render other pods; they stay as they are.",
    UNMONITORED: "Only there while true: the cluster lacks the kind that would have the metrics scraped.",
    RECONCILING: "Only there while true: kstatus reads it as *InProgress*.",
    STALLED: "Only there while true: nothing moves until someone acts. kstatus reads it as *Failed*.",
}
"""Condition → what it says when it is True."""


@dataclass(frozen=True, slots=True)
class Reason:
    """Why a condition is what it is. Ready, Reconciling and Stalled borrow the reasons of the others."""

    name: str
    """CamelCase, unique in the catalogue."""
    condition: str
    """The condition at home with it."""
    sentence: str
    stalled: bool = False
    """Whether waiting is in vain: a person has to change the spec or the cluster."""


_OWN = (
    Reason("Accepted", VALID, "The spec is rendered into objects."),
    Reason("InvalidSpec", VALID, "A field of the spec cannot be accepted; the message names it.", True),
    Reason(
        "PolicyDenied",
        VALID,
        "An argument that loads code is set, and the operator's policy does not admit it. Ask who installed "
        "the operator for `policy.allowCode`, or remove the argument.",
        True,
    ),
    Reason(
        "MultiNodeNotSupported",
        VALID,
        "Data parallel copies are spread over several nodes. Raise spec.replicas instead.",
        True,
    ),
    Reason("Scheduled", SCHEDULED, "Every pod of the current template has a node."),
    Reason("Scheduling", SCHEDULED, "Pods are being made or wait for the scheduler."),
    Reason("NoPods", SCHEDULED, "There is no pod that could tell."),
    Reason(
        "Unschedulable",
        SCHEDULED,
        "No node fits; the message names the resource or rule that is in the way. An added or freed node "
        "lets the pod go on by itself.",
    ),
    Reason("SchedulingGated", SCHEDULED, "A scheduling gate holds the pod back; who set it has to lift it."),
    Reason(
        "ClaimMissing",
        SCHEDULED,
        "A PersistentVolumeClaim or a ResourceClaimTemplate does not exist, or a claim is not bound. Create "
        "it, or correct the name.",
    ),
    Reason(
        "QuotaExceeded",
        SCHEDULED,
        "The namespace's ResourceQuota or LimitRange refuses the pod. Lower spec.resources or "
        "spec.replicas, or have it raised.",
    ),
    Reason(
        "AdmissionRefused",
        SCHEDULED,
        "Pod Security, a webhook or a policy refuses the pod; the message is its own.",
    ),
    Reason("PodsNotCreated", SCHEDULED, "The pods cannot be created; the message is the API server's."),
    Reason("NodeRefused", SCHEDULED, "A node would not take or keep the pod; the message is the kubelet's."),
    Reason("Loaded", MODEL_LOADED, "A server has loaded the model."),
    Reason("Starting", MODEL_LOADED, "Images are pulled, volumes mounted, containers started."),
    Reason(
        "Loading",
        MODEL_LOADED,
        "The server downloads, loads or warms up the model. The message says how far it is where the "
        "operator can reach the pod.",
    ),
    Reason("Fetching", MODEL_LOADED, "The init container fetches the model into the cache."),
    Reason(
        "ImageNotFound",
        MODEL_LOADED,
        "The registry has no such image or tag. Correct spec.runtime.image or spec.model.image.reference.",
        True,
    ),
    Reason(
        "ImagePullDenied",
        MODEL_LOADED,
        "The registry wants other credentials. Name a Secret in spec.runtime.imagePullSecrets that exists.",
        True,
    ),
    Reason("ImagePullFailed", MODEL_LOADED, "The image cannot be pulled; the message is the node's."),
    Reason("SecretMissing", MODEL_LOADED, "A Secret, or a key of it, that the spec names does not exist."),
    Reason(
        "ConfigMapMissing", MODEL_LOADED, "A ConfigMap, or a key of it, that the spec names does not exist."
    ),
    Reason("VolumeNotMounted", MODEL_LOADED, "A volume cannot be mounted; the message is the node's."),
    Reason(
        "ContainerRefused",
        MODEL_LOADED,
        "The node cannot create or start the container, or prepare the devices that it claims; the message "
        "is its own.",
    ),
    Reason(
        "CrashLoop",
        MODEL_LOADED,
        "The server ends again and again without saying why. `kubectl logs --previous` has its last words.",
    ),
    Reason(
        "Unresponsive",
        MODEL_LOADED,
        "The kubelet restarts the server because its probe fails. `kubectl logs --previous` shows what it "
        "did.",
    ),
    Reason("Serving", AVAILABLE, "Pods admit requests."),
    Reason("NoReadyPod", AVAILABLE, "No pod admits requests yet."),
    Reason("RolledOut", PROGRESSING, "Every replica runs the current template."),
    Reason("RollingOut", PROGRESSING, "Pods are being made, replaced or removed."),
    Reason(
        "UpgradeAvailable",
        UPGRADE_AVAILABLE,
        "This operator would render other pods; they stay as they are. `spec.rollout.template: Latest` takes "
        "the new template, at the price of a rollout.",
    ),
    Reason(
        "Drifted",
        DRIFTED,
        "Someone else added a VLLM_* or SLIPWAY_* variable to the Deployment. Remove it there and set it "
        "in spec.env.",
    ),
    Reason(
        "MonitorKindMissing",
        UNMONITORED,
        "spec.monitoring is enabled, and the cluster has no such kind: nobody scrapes the pods. Install the "
        "Prometheus Operator, whose coming is noticed within a minute, or leave spec.monitoring out.",
    ),
    Reason(
        "RolloutNeedsSpareDevice",
        PROGRESSING,
        "The new pod finds no room beside the old ones, which serve on. Set spec.rollout.maxSurge 0 and "
        "maxUnavailable 1, or add what is missing.",
    ),
    Reason(
        "ProgressDeadlineExceeded",
        PROGRESSING,
        "The rollout did not move for spec.rollout.progressDeadlineSeconds.",
        True,
    ),
    Reason(
        "NameConflict",
        PROGRESSING,
        "An object of a name that this resource needs belongs to someone else; it is left alone. Rename "
        "the resource, or remove the object.",
        True,
    ),
    Reason("Suspended", PROGRESSING, "spec.suspend is true or spec.replicas is 0: no pod should run."),
)

_FROM_EXITS = tuple(
    Reason(known.reason, MODEL_LOADED, f"{known.message} {known.hint}", stalled=not known.retry)
    for known in EXITS
)

CATALOGUE: tuple[Reason, ...] = (*_OWN, *_FROM_EXITS)
BY_NAME: Mapping[str, Reason] = {reason.name: reason for reason in CATALOGUE}


@dataclass(frozen=True, slots=True)
class Finding:
    """What stands between a resource and being ready. `message` is one or more sentences: the first is
    the summary, so it says what is wrong with the values."""

    reason: str
    """The name of a catalogued reason."""
    condition: str
    message: str


def finding(reason: str, message: str) -> Finding:
    """A finding under the condition at home with its reason. Raises KeyError outside of the catalogue."""
    return Finding(reason, BY_NAME[reason].condition, message)


_MANUAL_HEAD = """\
<!-- Generated from slipway_operator.reasons by `make generate`. -->
# Conditions of an InferenceService

`kubectl get inferenceservices` shows `.status.summary` in the REASON column: the reason that counts most,
and the values with it. `kubectl describe` shows every condition with its full message.

`kubectl wait --for=condition=Ready` returns once the latest spec serves. Helm, Flux and Argo CD read the same
conditions by the rules of kstatus.

| condition | what it says when it is true |
|---|---|"""
_MANUAL_REASONS = """
## Reasons

A reason stands under the condition that it is about; `Ready`, `Reconciling` and `Stalled` repeat the one
that decides. Where the last column says *yes* nothing moves until someone acts: the resource is `Stalled`.

| reason | condition | what it means, and what to do | waits for a person? |
|---|---|---|---|"""


def manual() -> str:
    """The page docs/reference/conditions.md."""
    conditions = [f"| `{name}` | {sentence} |" for name, sentence in CONDITIONS.items()]
    reasons = [
        f"| `{one.name}` | `{one.condition}` | {one.sentence} | {'yes' if one.stalled else 'no'} |"
        for one in CATALOGUE
    ]
    return "\n".join((_MANUAL_HEAD, *conditions, _MANUAL_REASONS, *reasons)) + "\n"
