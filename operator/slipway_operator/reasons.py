"""Every reason that a condition can have, the most important first.

The order of the definitions is the precedence: of those that apply to a resource, Ready and the summary have
the first, and each condition the first of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from slipway import exits
from slipway_operator import conditions


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
    calm: bool = False
    """Whether it belongs to a good life; every other one is a warning."""
    status: str = conditions.FALSE
    """What its condition is with it."""

    def found(self, message: str, condition: str | None = None, status: str | None = None) -> Finding:
        """That it is so, under the condition at home with it or under another."""
        return Finding(self, message, condition or self.condition, status or self.status)


@dataclass(frozen=True, slots=True)
class Finding:
    """What a condition is, and why. The first sentence of `message` is the summary: it has the values."""

    reason: Reason
    message: str
    condition: str
    status: str


_TABLE: list[Reason] = []


def _reason(
    name: str,
    condition: str,
    sentence: str,
    *,
    stalled: bool = False,
    calm: bool = False,
    status: str = conditions.FALSE,
) -> Reason:
    """The next row of the table."""
    reason = Reason(name, condition, sentence, stalled, calm, status)
    _TABLE.append(reason)
    return reason


def _ends(*, retry: bool) -> None:
    """A row for each way in which the server ends that a restart may mend, or for each other one."""
    for known in exits.CATALOGUE:
        if known.retry is retry:
            _reason(known.reason, conditions.MODEL_LOADED, f"{known.message} {known.hint}", stalled=not retry)


# The resource is refused as a whole, whatever its pods do.
INVALID_SPEC = _reason(
    "InvalidSpec",
    conditions.VALID,
    "A field of the spec cannot be accepted; the message names it.",
    stalled=True,
)
POLICY_DENIED = _reason(
    "PolicyDenied",
    conditions.VALID,
    "The operator's policy does not admit what a field asks for. Remove it, or ask who installed the "
    "operator for the value under `policy` that the message names.",
    stalled=True,
)
PROFILE_INVALID = _reason(
    "ProfileInvalid",
    conditions.VALID,
    "The ServingProfile that spec.profile names has a field that cannot be accepted; the message names it.",
    stalled=True,
)
PROFILE_MISSING = _reason(
    "ProfileMissing",
    conditions.VALID,
    "There is no ServingProfile of the name in spec.profile. Create it, or correct the name; it is noticed "
    "at once. Pods that run run on.",
)
MULTI_NODE_NOT_SUPPORTED = _reason(
    "MultiNodeNotSupported",
    conditions.VALID,
    "Data parallel copies are spread over several nodes. Raise spec.replicas instead.",
    stalled=True,
)
ARGUMENTS_REFUSED = _reason(
    "ArgumentsRefused",
    conditions.ARGS_COMPATIBLE,
    "The image is of a version that does not take the arguments in the message. Nothing is rolled out, and "
    "pods that run run on. Take them out of spec.engine, or give the profile another image with its schema.",
    stalled=True,
)
NAME_CONFLICT = _reason(
    "NameConflict",
    conditions.PROGRESSING,
    "An object of a name that this resource needs belongs to someone else; it is left alone. Rename the "
    "resource, or remove the object.",
    stalled=True,
)
NO_DEVICE_FITS = _reason(
    "NoDeviceFits",
    conditions.FITS,
    "`slipway fit` says that the model is too large for every device that labels of nodes name. The message "
    "says what would fit. The rollout does not start, and old pods stay. A new node with a larger device "
    "starts it, and so does `spec.rollout.fit: Off`.",
    stalled=True,
)

# A pod cannot serve, and waiting is in vain.
IMAGE_NOT_FOUND = _reason(
    "ImageNotFound",
    conditions.MODEL_LOADED,
    "The registry has no such image or tag. Correct spec.runtime.image or spec.model.image.reference.",
    stalled=True,
)
IMAGE_PULL_DENIED = _reason(
    "ImagePullDenied",
    conditions.MODEL_LOADED,
    "The registry wants other credentials. Name a Secret in spec.runtime.imagePullSecrets that exists.",
    stalled=True,
)
_ends(retry=False)

# A container does not serve, which may pass.
SECRET_MISSING = _reason(
    "SecretMissing", conditions.MODEL_LOADED, "A Secret, or a key of it, that the spec names does not exist."
)
CONFIG_MAP_MISSING = _reason(
    "ConfigMapMissing",
    conditions.MODEL_LOADED,
    "A ConfigMap, or a key of it, that the spec names does not exist.",
)
IMAGE_PULL_FAILED = _reason(
    "ImagePullFailed", conditions.MODEL_LOADED, "The image cannot be pulled; the message is the node's."
)
VOLUME_NOT_MOUNTED = _reason(
    "VolumeNotMounted", conditions.MODEL_LOADED, "A volume cannot be mounted; the message is the node's."
)
CONTAINER_REFUSED = _reason(
    "ContainerRefused",
    conditions.MODEL_LOADED,
    "The node cannot create or start the container, or prepare the devices that it claims; the message "
    "is its own.",
)
_ends(retry=True)
UNRESPONSIVE = _reason(
    "Unresponsive",
    conditions.MODEL_LOADED,
    "The kubelet restarts the server because its probe fails. `kubectl logs --previous` shows what it did.",
)
CRASH_LOOP = _reason(
    "CrashLoop",
    conditions.MODEL_LOADED,
    "The server ends again and again without saying why. `kubectl logs --previous` has its last words.",
)

# Pods are not made, find no node or lose it.
QUOTA_EXCEEDED = _reason(
    "QuotaExceeded",
    conditions.SCHEDULED,
    "The namespace's ResourceQuota or LimitRange refuses the pod. Lower spec.resources or "
    "spec.replicas, or have it raised.",
)
ADMISSION_REFUSED = _reason(
    "AdmissionRefused",
    conditions.SCHEDULED,
    "Pod Security, a webhook or a policy refuses the pod, or another object of the service; the "
    "message is its own.",
)
PODS_NOT_CREATED = _reason(
    "PodsNotCreated", conditions.SCHEDULED, "The pods cannot be created; the message is the API server's."
)
ROLLOUT_NEEDS_SPARE_DEVICE = _reason(
    "RolloutNeedsSpareDevice",
    conditions.PROGRESSING,
    "The new pod finds no room beside the old ones, which serve on. Set spec.rollout.maxSurge 0 and "
    "maxUnavailable 1, or add what is missing.",
)
CLAIM_MISSING = _reason(
    "ClaimMissing",
    conditions.SCHEDULED,
    "A PersistentVolumeClaim or a ResourceClaimTemplate does not exist, or a claim is not bound. Create "
    "it, or correct the name.",
)
UNSCHEDULABLE = _reason(
    "Unschedulable",
    conditions.SCHEDULED,
    "No node fits; the message names the resource or rule that is in the way. An added or freed node "
    "lets the pod go on by itself.",
)
SCHEDULING_GATED = _reason(
    "SchedulingGated",
    conditions.SCHEDULED,
    "A scheduling gate holds the pod back; who set it has to lift it.",
)
NODE_REFUSED = _reason(
    "NodeRefused",
    conditions.SCHEDULED,
    "A node would not take or keep the pod; the message is the kubelet's.",
)

# Nothing is wrong with the pods: those that have come furthest first.
ASLEEP = _reason(
    "Asleep",
    conditions.MODEL_LOADED,
    "The server was put to sleep by POST /sleep, and serves again after POST /wake_up.",
    calm=True,
)
LOADING = _reason(
    "Loading",
    conditions.MODEL_LOADED,
    "The server downloads, loads or warms up the model. The message says how far it is where the "
    "operator can reach the pod.",
    calm=True,
)
FETCHING = _reason(
    "Fetching", conditions.MODEL_LOADED, "The init container fetches the model into the cache.", calm=True
)
STARTING = _reason(
    "Starting", conditions.MODEL_LOADED, "Images are pulled, volumes mounted, containers started.", calm=True
)
SCHEDULING = _reason(
    "Scheduling",
    conditions.SCHEDULED,
    "Pods are being made or wait for the scheduler.",
    calm=True,
    status=conditions.UNKNOWN,
)
ASKING = _reason(
    "Asking",
    conditions.FITS,
    "A pod without devices runs `slipway fit` for the devices that the labels of nodes name. The rollout "
    "waits for its answer, for five minutes at most.",
    calm=True,
    status=conditions.UNKNOWN,
)
PROGRESS_DEADLINE_EXCEEDED = _reason(
    "ProgressDeadlineExceeded",
    conditions.PROGRESSING,
    "The rollout did not move for spec.rollout.progressDeadlineSeconds, no model is fetched, and no server "
    "is known to come further with its load.",
    stalled=True,
)
ROLLING_OUT = _reason(
    "RollingOut",
    conditions.PROGRESSING,
    "Pods are being made, replaced or removed.",
    calm=True,
    status=conditions.TRUE,
)
SUSPENDED = _reason(
    "Suspended",
    conditions.PROGRESSING,
    "spec.suspend is true or spec.replicas is 0: no pod should run.",
    calm=True,
    status=conditions.TRUE,
)

# It serves, and someone should know this.
DOES_NOT_FIT = _reason(
    "DoesNotFit",
    conditions.FITS,
    "The model is too large for the memory by the estimate; the message says what is short and what to do. "
    "The server tries all the same: where it serves, it may be ended when requests come. `slipway fit` "
    "answers the same question before anything is started.",
)
TAKES_MORE = _reason(
    "TakesMore",
    conditions.FITS,
    "What the server took when it was ready is a tenth more than the estimate: something else uses its "
    "device, or the estimate is wrong, of which we would like to hear.",
    status=conditions.TRUE,
)
DRIFTED = _reason(
    "Drifted",
    conditions.DRIFTED,
    "Someone else added a VLLM_* or SLIPWAY_* variable to the Deployment. Remove it there and set it in "
    "spec.env.",
    status=conditions.TRUE,
)
MONITOR_KIND_MISSING = _reason(
    "MonitorKindMissing",
    conditions.UNMONITORED,
    "spec.monitoring is enabled, and the cluster has no such kind: nobody scrapes the pods. Install the "
    "Prometheus Operator, whose coming is noticed within a minute, or leave spec.monitoring out.",
    status=conditions.TRUE,
)
UPGRADE_AVAILABLE = _reason(
    "UpgradeAvailable",
    conditions.UPGRADE_AVAILABLE,
    "This operator would render other pods; they stay as they are. `spec.rollout.template: Latest` "
    "takes the new template, at the price of a rollout.",
    calm=True,
    status=conditions.TRUE,
)

# All is well, or nothing is known.
SERVING = _reason("Serving", conditions.AVAILABLE, "Pods admit requests.", calm=True, status=conditions.TRUE)
ROLLED_OUT = _reason(
    "RolledOut",
    conditions.PROGRESSING,
    "Every replica runs the current template.",
    calm=True,
    status=conditions.TRUE,
)
LOADED = _reason(
    "Loaded", conditions.MODEL_LOADED, "A server has loaded the model.", calm=True, status=conditions.TRUE
)
SCHEDULED = _reason(
    "Scheduled",
    conditions.SCHEDULED,
    "Every pod of the current template has a node.",
    calm=True,
    status=conditions.TRUE,
)
MEASURED = _reason(
    "Measured",
    conditions.FITS,
    "It fits by the estimate, and what the server took when it was ready was no more than that.",
    calm=True,
    status=conditions.TRUE,
)
ESTIMATED = _reason(
    "Estimated",
    conditions.FITS,
    "It fits by the estimate; nothing has been measured yet.",
    calm=True,
    status=conditions.TRUE,
)
SCHEMA_MATCHES = _reason(
    "SchemaMatches",
    conditions.ARGS_COMPATIBLE,
    "The schema in the profile has every argument, with its value.",
    calm=True,
    status=conditions.TRUE,
)
SCHEMA_UNKNOWN = _reason(
    "SchemaUnknown",
    conditions.ARGS_COMPATIBLE,
    "The image is not the operator's own, and no profile has its schema: whether it takes the arguments "
    "shows when it starts.",
    calm=True,
    status=conditions.UNKNOWN,
)
ACCEPTED = _reason(
    "Accepted", conditions.VALID, "The spec is rendered into objects.", calm=True, status=conditions.TRUE
)
NO_READY_POD = _reason("NoReadyPod", conditions.AVAILABLE, "No pod admits requests yet.", calm=True)
NO_PODS = _reason("NoPods", conditions.SCHEDULED, "There is no pod.", calm=True, status=conditions.UNKNOWN)

CATALOGUE = tuple(_TABLE)
RANK: Mapping[str, int] = {reason.name: rank for rank, reason in enumerate(CATALOGUE)}
BY_NAME: Mapping[str, Reason] = {reason.name: reason for reason in CATALOGUE}
OUT_OF_MEMORY = BY_NAME[exits.OUT_OF_MEMORY.reason]
KV_CACHE_TOO_SMALL = BY_NAME[exits.KV_CACHE_TOO_SMALL.reason]
ENGINE_STALLED = BY_NAME[exits.ENGINE_STALLED.reason]
LOAD_STALLED = BY_NAME[exits.LOAD_STALLED.reason]
BAD_CHECKPOINT = BY_NAME[exits.BAD_CHECKPOINT.reason]
NO_SPACE = BY_NAME[exits.NO_SPACE.reason]
KERNELS_MISSING = BY_NAME[exits.KERNELS_MISSING.reason]


def first(findings: Iterable[Finding]) -> Finding | None:
    """The one that counts most; of several with its reason the first."""
    return min(findings, key=lambda found: RANK[found.reason.name], default=None)


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
that decides. The order is that in which reasons count: where several apply, `Ready` and the summary have the
first. Where the last column says *yes* nothing moves until someone acts: the resource is `Stalled`.

| reason | condition | what it means, and what to do | waits for a person? |
|---|---|---|---|"""


def manual() -> str:
    """The page docs/reference/conditions.md."""
    lines = [f"| `{name}` | {sentence} |" for name, sentence in conditions.CONDITIONS.items()]
    reasons = [
        f"| `{one.name}` | `{one.condition}` | {one.sentence} | {'yes' if one.stalled else 'no'} |"
        for one in CATALOGUE
    ]
    return "\n".join((_MANUAL_HEAD, *lines, _MANUAL_REASONS, *reasons)) + "\n"
