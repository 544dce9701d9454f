"""Why a container does not run or ended: image, secrets, volumes, exit codes and last words."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace

from slipway import exits
from slipway.args.schema import ARGUMENTS
from slipway.exits import BY_CODE, BY_REASON
from slipway.service.companions import OURS, SERVER
from slipway_operator import reasons
from slipway_operator.reasons import Finding
from slipway_operator.shapes import Object, Objects, first_line, messages, sidecars
from slipway_operator.volume_types import volume_advice

_MET_WHILE_IT_LOADS = (
    reasons.OUT_OF_MEMORY,
    reasons.KV_CACHE_TOO_SMALL,
    reasons.BAD_CHECKPOINT,
    reasons.KERNELS_MISSING,
)
"""What ends a server only after it has read some of its model: it may be met again."""
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
_DENIED = re.compile(r"\b(401|403)\b|unauthori[sz]ed|denied|forbidden|authentication required", re.IGNORECASE)
_NOT_FOUND = re.compile(
    r"not found|manifest unknown|name unknown|does not exist|couldn't parse", re.IGNORECASE
)
_QUOTED_IMAGE = re.compile(r'image "([^"]+)"')
_MISSING = re.compile(r'(?P<kind>secret|configmap) "(?P<name>[^"]+)" not found', re.IGNORECASE)
_MISSING_KEY = re.compile(
    r"couldn't find key (?P<key>\S+) in (?P<kind>Secret|ConfigMap) [^/\s]+/(?P<name>\S+)"
)
_MISSING_FILE = re.compile(r"(?P<config>configmap )?references non-existent \w+ key: (?P<key>\S+)")
_ELSEWHERE = "Multi-Attach error"
_VOLUME = re.compile(r'volume "([^"]+)"')
_RPC = re.compile(r"rpc error: code = \w+ desc = ")
_LAYERS = re.compile(
    r"(?:failed to (?:create|start) (?:containerd|shim) task|OCI runtime create failed|runc create failed|"
    r"unable to start container process|(?:Failed to )?prepare dynamic resources|"
    r'failed to pull and unpack image "[^"]*"|failed to resolve (?:image|reference "[^"]*")|'
    r'failed to do request|(?:Get|Head) "[^"]*"): '
)
"""What containerd and its parts put before the cause, each its own words."""
_LOG_PREFIX = re.compile(r"^\S*(?:Error|Exception): ")


def container_findings(pod: Object, events: Objects, moves: bool = False) -> list[Finding]:
    """What keeps the pod's containers from serving; empty where nothing is known to be wrong.

    moves  whether its server loads right now, and comes further
    """
    all_found: list[Finding] = []
    for status, role in _statuses(pod):
        found = _waiting(pod, status, events) or _ended(pod, status, events, ends=role == INITIAL)
        if found is None or (moves and status["name"] == SERVER and _is_overcome(found)):
            continue
        hint = _before_the_proxy(pod, found) if role == INITIAL else ""
        text = f"{role} {status['name']}: {found.message}{hint}" if role else found.message
        all_found.append(replace(found, message=text))
    if not all_found and not _begun(pod):
        before = _volume_finding(pod, events) or _sandbox_finding(pod, events)
        all_found += [before] if before is not None else []
    return all_found


def _is_overcome(found: Finding) -> bool:
    """Whether a server that reads its model no longer has what ended it before."""
    return found.reason.stalled and found.reason not in _MET_WHILE_IT_LOADS


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
        said = [text for text in messages(events, pod, "Failed") if text.startswith("Failed to pull image")]
        if message.startswith("Back-off") and "ErrImagePull: " not in message and said:
            message = said[0]  # older kubelets leave the cause to the event
        return _image_finding(pod, status, reason, message)
    if reason == "CreateContainerConfigError":
        return _missing(message) or reasons.CONTAINER_REFUSED.found(_sentence(message))
    if reason in _REFUSALS and (advice := volume_advice(message)):
        return reasons.CONTAINER_REFUSED.found(f"{advice}. The node says: {_sentence(message)}")
    if reason in _REFUSALS:
        return reasons.CONTAINER_REFUSED.found(_sentence(_LAYERS.sub("", message or reason)))
    return None


def _image_finding(pod: Object, status: Object, reason: str, message: str) -> Finding:
    match = _QUOTED_IMAGE.search(message)
    image = match[1] if match else str(status.get("image") or "")
    field = _image_field(pod, str(status["name"]), image)
    words = first_line(_RPC.sub("", message.rpartition("ErrImagePull: ")[2]))
    if reason == "InvalidImageName":
        return reasons.IMAGE_NOT_FOUND.found(f"{image} is not the name of an image. Correct {field}. {words}")
    if reason == "ErrImageNeverPull":
        return reasons.IMAGE_NOT_FOUND.found(
            f"{image} is not on the node, and its pull policy is Never. Put it there, or set another policy.",
        )
    if _DENIED.search(words):
        return reasons.IMAGE_PULL_DENIED.found(
            f"the registry refuses {image}. Name a Secret with its credentials in "
            f"spec.runtime.imagePullSecrets, or correct {field}. The node says: {words}",
        )
    if _NOT_FOUND.search(words):
        return reasons.IMAGE_NOT_FOUND.found(
            f"{image} is not in its registry. Correct {field}. The node says: {words}"
        )
    return reasons.IMAGE_PULL_FAILED.found(f"{image} cannot be pulled: {_sentence(_LAYERS.sub('', words))}")


def _image_field(pod: Object, container: str, image: str) -> str:
    volumes = pod["spec"].get("volumes") or ()
    if any((volume.get("image") or {}).get("reference") == image for volume in volumes):
        return "spec.model.image.reference"
    return "spec.runtime.image" if container in OURS else f"the image of {container}"


def _missing(message: str) -> Finding | None:
    if match := _MISSING.search(message):
        text = f"{match['name']} does not exist. Create it, or correct the name in the spec."
        return _missing_finding(match["kind"], text)
    if match := _MISSING_KEY.search(message):
        text = f"{match['name']} has no key {match['key']}. Add it, or correct the key in the spec."
        return _missing_finding(match["kind"], text)
    return None


def _missing_finding(kind: str, text: str) -> Finding:
    if kind.lower() == "secret":
        return reasons.SECRET_MISSING.found(f"Secret {text}")
    return reasons.CONFIG_MAP_MISSING.found(f"ConfigMap {text}")


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
        why = _sentence(_LAYERS.sub("", message))
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
        for probe in ("startup", "liveness"):
            if f"Container {container} failed {probe} probe" in text:
                return probe
    return None


def _volume_finding(pod: Object, events: Objects) -> Finding | None:
    """A volume's Secret or ConfigMap is missed in events alone."""
    said = messages(events, pod, "FailedMount", "FailedAttachVolume", "FailedMapVolume")
    for text in said:
        if found := _missing(text):
            return found
        if match := _MISSING_FILE.search(text):
            volume, kind = _volume(pod, text)
            key = f"{volume} has no key {match['key']}. Add it, or correct the key in the spec."
            return _missing_finding("configmap" if match["config"] or kind == "configmap" else "secret", key)
    if said and said[0].startswith(_ELSEWHERE):
        return reasons.VOLUME_NOT_MOUNTED.found(
            f"a claim for one node is mounted on another: {_sentence(first_line(said[0]))} Keep its pods on "
            "one node by spec.scheduling.affinity, or name a ReadWriteMany claim.",
        )
    if said:
        return reasons.VOLUME_NOT_MOUNTED.found(_sentence(first_line(said[0])))
    if prepared := messages(events, pod, "FailedPrepareDynamicResources"):
        cause = _sentence(_LAYERS.sub("", first_line(prepared[0])))
        return reasons.CONTAINER_REFUSED.found(f"the node cannot prepare the claimed devices: {cause}")
    return None


def _volume(pod: Object, text: str) -> tuple[str, str]:
    """The object behind the volume that an event names, and its kind."""
    match = _VOLUME.search(text)
    for volume in pod["spec"].get("volumes") or ():
        if match and volume["name"] == match[1]:
            if "configMap" in volume:
                return str(volume["configMap"].get("name")), "configmap"
            if "secret" in volume:
                return str(volume["secret"].get("secretName")), "secret"
    return "of a volume", "secret"


def _sandbox_finding(pod: Object, events: Objects) -> Finding | None:
    said = messages(events, pod, "FailedCreatePodSandBox")
    return reasons.CONTAINER_REFUSED.found(_sentence(first_line(said[0]))) if said else None


def _sentence(text: str) -> str:
    text = text.strip()
    return text if text.endswith((".", "!", "?", "…")) else f"{text}."
