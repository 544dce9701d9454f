"""Why a container does not run or ended: image, secrets, volumes, exit codes and last words."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator
from dataclasses import replace

from slipway import exits
from slipway.args.schema import ARGUMENTS
from slipway.exits import BY_CODE, BY_REASON
from slipway.service.companions import FETCH, OURS, SERVER
from slipway_operator import reasons, wordings
from slipway_operator.reasons import Finding
from slipway_operator.shapes import Object, Objects, first_line, messages, sidecars
from slipway_operator.volume_types import volume_advice
from slipway_operator.wordings import (
    BACK_OFF,
    LAYERS,
    PULL_CAUSE,
    PULL_FAILED,
    QUOTED_IMAGE,
    RPC,
    VOLUME,
    Source,
    meanings,
)

_MET_WHILE_IT_LOADS = (
    reasons.OUT_OF_MEMORY,
    reasons.NO_SPACE,
    reasons.KV_CACHE_TOO_SMALL,
    reasons.BAD_CHECKPOINT,
    reasons.KERNELS_MISSING,
)
"""What ends a container only after it has read some of the model: it may be met again."""
INITIAL = "init container"
"""What a container is that ends before the server starts."""

ISTIO_PROXY = "istio-proxy"
_NATIVE_SIDECAR = (
    " Istio's proxy starts only after the init containers of this pod, which may have no network without it. "
    "Native sidecars start first: they need Istio 1.24, and sidecar.istio.io/nativeSidecar must not be false "
    "in spec.runtime.podAnnotations."
)
_IMAGE_REASONS = (
    "ErrImagePull",
    "ImagePullBackOff",
    "InvalidImageName",
    "ErrImageNeverPull",
    "ImageInspectError",
    "RegistryUnavailable",
    "SignatureValidationFailed",
)
_REFUSALS = ("CreateContainerError", "RunContainerError", "PreCreateHookError", "PostStartHookError")
_KINDS = {reasons.SECRET_MISSING: "Secret", reasons.CONFIG_MAP_MISSING: "ConfigMap"}
_LOG_PREFIX = re.compile(r"^\S*(?:Error|Exception): ")


def container_findings(pod: Object, events: Objects, moving: Collection[str] = ()) -> list[Finding]:
    """What keeps the pod's containers from serving; empty where nothing is known to be wrong.

    moving  those that run and come further
    """
    all_found: list[Finding] = []
    for status, role in _statuses(pod):
        found = _waiting(pod, status, events) or _ended(pod, status, events, ends=role == INITIAL)
        if found is None or (status["name"] in moving and _is_overcome(found, str(status["name"]))):
            continue
        hint = _before_the_proxy(pod, found) if role == INITIAL else ""
        text = f"{role} {status['name']}: {found.message}{hint}" if role else found.message
        all_found.append(replace(found, message=text))
    if not all_found and not _begun(pod):
        before = _volume_finding(pod, events) or _sandbox_finding(pod, events)
        all_found += [before] if before is not None else []
    return all_found


def _is_overcome(found: Finding, container: str) -> bool:
    """Whether one that comes further no longer has what ended it before."""
    met_before = found.reason.stalled or container == FETCH
    return met_before and found.reason not in _MET_WHILE_IT_LOADS


def _statuses(pod: Object) -> Iterator[tuple[Object, str]]:
    """Each with what its container is, or nothing where it is the server."""
    status, beside = pod.get("status") or {}, sidecars(pod)
    for one in status.get("initContainerStatuses") or ():
        yield one, "sidecar" if one["name"] in beside else INITIAL
    for one in status.get("containerStatuses") or ():
        yield one, ""


def _before_the_proxy(pod: Object, found: Finding) -> str:
    """What to do where an init container has no network since Istio's proxy is to start after it; else
    nothing."""
    refused = found.reason is reasons.CRASH_LOOP and "refused" in found.message
    offline = refused or found.reason.name == exits.NO_NETWORK.reason
    after = any(one["name"] == ISTIO_PROXY for one in pod["spec"].get("containers") or ())
    return _NATIVE_SIDECAR if offline and after else ""


def _begun(pod: Object) -> bool:
    """Whether a container has run: its volumes are mounted then."""
    states = [status.get(when) or {} for status, _ in _statuses(pod) for when in ("lastState", "state")]
    return any("running" in state or "terminated" in state for state in states)


def _waiting(pod: Object, status: Object, events: Objects) -> Finding | None:
    waiting = (status.get("state") or {}).get("waiting") or {}
    reason, message = str(waiting.get("reason") or ""), str(waiting.get("message") or "")
    if reason in _IMAGE_REASONS:
        said = [text for text in messages(events, pod, "Failed") if text.startswith(PULL_FAILED)]
        if message.startswith(BACK_OFF) and PULL_CAUSE not in message and said:
            message = said[0]  # older kubelets leave the cause to the event
        return _image_finding(pod, status, reason, message)
    if reason == "CreateContainerConfigError":
        return _absent(pod, message) or reasons.CONTAINER_REFUSED.found(_sentence(message))
    if reason in _REFUSALS and (advice := volume_advice(message)):
        return reasons.CONTAINER_REFUSED.found(f"{advice}. The node says: {_sentence(message)}")
    if reason in _REFUSALS:
        return reasons.CONTAINER_REFUSED.found(_sentence(LAYERS.sub("", message or reason)))
    return None


def _image_finding(pod: Object, status: Object, reason: str, message: str) -> Finding:
    match = QUOTED_IMAGE.search(message)
    image = match[1] if match else str(status.get("image") or "")
    field = _image_field(pod, str(status["name"]), image)
    words = first_line(RPC.sub("", message.rpartition(PULL_CAUSE)[2]))
    if reason == "InvalidImageName":
        return reasons.IMAGE_NOT_FOUND.found(f"{image} is not the name of an image. Correct {field}. {words}")
    if reason == "ErrImageNeverPull":
        return reasons.IMAGE_NOT_FOUND.found(
            f"{image} is not on the node, and its pull policy is Never. Put it there, or set another policy.",
        )
    row = next((row for row, _ in meanings(Source.PULL, words)), None)
    if row is wordings.PULL_DENIED:
        return row.reason.found(
            f"the registry refuses {image}. Name a Secret with its credentials in "
            f"spec.runtime.imagePullSecrets, or correct {field}. The node says: {words}",
        )
    if row is wordings.PLATFORM_ABSENT:
        return row.reason.found(
            f"{image} is not there for the node's processor architecture. Correct {field}, or choose other "
            f"nodes in spec.scheduling.nodeSelector. The node says: {words}",
        )
    if row is wordings.IMAGE_ABSENT:
        return row.reason.found(f"{image} is not in its registry. Correct {field}. The node says: {words}")
    return reasons.IMAGE_PULL_FAILED.found(f"{image} cannot be pulled: {_sentence(LAYERS.sub('', words))}")


def _image_field(pod: Object, container: str, image: str) -> str:
    volumes = pod["spec"].get("volumes") or ()
    if any((volume.get("image") or {}).get("reference") == image for volume in volumes):
        return "spec.model.image.reference"
    return "spec.runtime.image" if container in OURS else f"the image of {container}"


def _absent(pod: Object, text: str) -> Finding | None:
    """The Secret or ConfigMap, or its key, that a message misses."""
    row, match = next(meanings(Source.MOUNT, text), (None, None))
    if row is None or match is None or row.reason not in _KINDS:
        return None
    kind, named = _KINDS[row.reason], match.groupdict()
    which = named.get("name") or _behind(pod, text, kind)
    if key := named.get("key"):
        return row.reason.found(f"{kind} {which} has no key {key}. Add it, or correct the key in the spec.")
    return row.reason.found(f"{kind} {which} does not exist. Create it, or correct the name in the spec.")


def _ended(pod: Object, status: Object, events: Objects, ends: bool) -> Finding | None:
    """Why the container last ended, until it is ready: between two ends of a loop it runs for a while.

    ends  whether it should end at all
    """
    last = (status.get("lastState") or {}).get("terminated")
    ended = (status.get("state") or {}).get("terminated") or last
    if status.get("ready") or ended is None or (ends and int(ended.get("exitCode") or 0) == 0):
        return None
    return _end_finding(pod, str(status["name"]), ended, events)


def _end_finding(pod: Object, container: str, ended: Object, events: Objects) -> Finding:
    code, message = int(ended.get("exitCode") or 0), str(ended.get("message") or "")
    if ended.get("reason") == "OOMKilled":
        return reasons.OUT_OF_MEMORY.found(_out_of_memory(pod, container))
    if ended.get("reason") in ("StartError", "ContainerCannotRun"):
        why = _sentence(LAYERS.sub("", message))
        return reasons.CONTAINER_REFUSED.found(f"the container cannot start: {why}")
    if found := _cause(message):
        return found
    if code in (0, 137, 143) and (probe := _failed_probe(pod, container, events)):
        return reasons.UNRESPONSIVE.found(
            f"the kubelet restarts {container} because its {probe} probe fails. "
            f"{_log(container)} shows what it did.",
        )
    words = _last_words(message)
    if code in BY_CODE and container in OURS:
        known = BY_CODE[code]
        text = f"{_sentence(words) if words else known.message} {known.hint}"
        return reasons.BY_NAME[known.reason].found(text)
    how = f"signal {code - 128}" if code > 128 else f"exit code {code}"
    said = f": {_sentence(words)}" if words else "."
    return reasons.CRASH_LOOP.found(f"{container} ended with {how}{said} {_log(container)} has more.")


def _log(container: str) -> str:
    """The command that prints what it has said; of several in a pod kubectl takes the server."""
    return f"`kubectl logs --previous{'' if container == SERVER else f' --container {container}'}`"


def _out_of_memory(pod: Object, container: str) -> str:
    containers = [*(pod["spec"].get("initContainers") or ()), *(pod["spec"].get("containers") or ())]
    given = next((one.get("resources") or {} for one in containers if one["name"] == container), {})
    limit = (given.get("limits") or {}).get("memory")
    at = f"at its limit of {limit}" if limit else "because its node ran out of memory"
    if container not in OURS:
        return f"killed {at}. Raise the memory limit of {container}."
    return f"killed {at}. Raise spec.resources.memory, or lower maxModelLen, maxNumSeqs or the KV cache."


def _cause(message: str) -> Finding | None:
    """The runtime's own account in the termination message, {code, reason, message, hint, argument}."""
    try:
        said = json.loads(message)
    except ValueError:
        return None
    if not isinstance(said, dict):
        return None
    known = BY_REASON.get(str(said.get("reason"))) or BY_CODE.get(said.get("code") or 0)
    if known is None:
        return None
    text = _sentence(" ".join(str(said.get("message") or known.message).split()))
    argument, hint = str(said.get("argument") or ""), str(said.get("hint") or known.hint)
    declared = ARGUMENTS.get(argument)
    field = f"spec.engine.{declared.camel}" if declared is not None and declared.in_spec else argument
    if argument and argument not in text and argument.replace("_", "-") not in text:
        text = f"{field}: {text}"
    elif field != argument:
        hint = f"{_sentence(hint)} The field is {field}."
    return reasons.BY_NAME[known.reason].found(f"{text} {hint}")


def _last_words(message: str) -> str:
    """The last line of a log that says something: a traceback ends with its exception."""
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    return first_line(_LOG_PREFIX.sub("", lines[-1])) if lines else ""


def _failed_probe(pod: Object, container: str, events: Objects) -> str | None:
    for text in messages(events, pod, "Killing"):
        if (match := wordings.PROBE_FAILED.search(text)) and match["container"] == container:
            return match["probe"]
    return None


def _volume_finding(pod: Object, events: Objects) -> Finding | None:
    """A volume's Secret or ConfigMap is missed in events alone."""
    said = messages(events, pod, "FailedMount", "FailedAttachVolume", "FailedMapVolume")
    # What only says that it waits comes again and again, behind what says for what.
    said.sort(key=lambda text: wordings.MOUNT_AWAITED.search(text) is not None)
    for text in said:
        if found := _absent(pod, text):
            return found
    for text in said:
        if wordings.VOLUME_ATTACHED.search(text):
            return reasons.VOLUME_NOT_MOUNTED.found(
                f"a claim for one node is mounted on another: {_sentence(first_line(text))} Keep its pods on "
                "one node by spec.scheduling.affinity, or name a ReadWriteMany claim.",
            )
    if said:
        return reasons.VOLUME_NOT_MOUNTED.found(_sentence(first_line(said[0])))
    if prepared := messages(events, pod, "FailedPrepareDynamicResources"):
        cause = _sentence(LAYERS.sub("", first_line(prepared[0])))
        return reasons.CONTAINER_REFUSED.found(f"the node cannot prepare the claimed devices: {cause}")
    return None


def _behind(pod: Object, text: str, kind: str) -> str:
    """The Secret or ConfigMap of the volume that an event names."""
    match = VOLUME.search(text)
    volumes: Objects = pod["spec"].get("volumes") or ()
    volume = next((one for one in volumes if match and one["name"] == match[1]), {})
    field, name = ("secret", "secretName") if kind == "Secret" else ("configMap", "name")
    if field in volume:
        return str(volume[field].get(name))
    parts = (volume.get("projected") or {}).get("sources") or ()
    return " or ".join(str(part[field].get("name")) for part in parts if field in part) or "of a volume"


def _sandbox_finding(pod: Object, events: Objects) -> Finding | None:
    said = next(iter(messages(events, pod, "FailedCreatePodSandBox")), None)
    if said is None:
        return None
    if match := wordings.NO_RUNTIME.search(said):
        return reasons.CONTAINER_REFUSED.found(
            f"the node has no container runtime {match['name'] or match['handler']}, which the RuntimeClass "
            "asks for. Install it there, or correct spec.scheduling.runtimeClassName.",
        )
    return reasons.CONTAINER_REFUSED.found(_sentence(first_line(said)))


def _sentence(text: str) -> str:
    text = text.strip()
    return text if text.endswith((".", "!", "?", "…")) else f"{text}."
