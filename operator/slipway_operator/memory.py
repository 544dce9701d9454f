"""What a service's model takes of memory: the server's estimate, and what it has taken, as .status has them.

One pod of a template speaks for all of them. Its word stays until the template changes, so that a service at
rest is neither asked nor written.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from slipway.service.quantity import parse
from slipway_operator import reasons
from slipway_operator.reasons import Finding
from slipway_operator.shapes import Object, name

MORE = 1.1
"""Times what was estimated: the estimate was wrong from there on."""
SHORT: Mapping[str, str] = {
    "devices": "its ranks are more than there are devices. Lower spec.engine.tensorParallelSize or "
    "pipelineParallelSize, or raise spec.devices.count.",
    "weights": "its weights leave nothing for anything else. Take a larger device or more memory, spread the "
    "model by spec.engine.tensorParallelSize, or quantize it.",
    "activations": "its largest step and its CUDA graphs leave nothing for the KV cache. Set "
    "spec.engine.enforceEager, or lower maxNumSeqs or maxNumBatchedTokens.",
    "kv_cache": "its KV cache takes more than is left for it, that of one request or what was asked for. "
    "Lower spec.engine.maxModelLen or kvCacheMemoryBytes, on processors the variable "
    "VLLM_CPU_KVCACHE_SPACE, or take more memory.",
    "memory": "weights, KV cache and requests in full are more together. Raise spec.resources.memory, or "
    "lower spec.engine.kvCacheMemoryBytes or maxNumSeqs.",
}
"""Which part is too large, and what to do. A server names the part; what is said of it is ours."""
_LARGE = "it is too large. Take a larger device or more memory."
"""Of a part that an operator of another version has written."""
_MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Memory:
    """What a server says of the first device that it has, or of its host; in bytes.

    capacity       of the device, or that the container may have
    estimated      in full
    at_rest        estimated before the first request
    measured       once the server was ready; 0: not yet, or nobody can tell
    kv_tokens      that the KV cache holds
    max_model_len  the largest that fits; 0: none does
    short          the part that is too large, one of SHORT; empty where the model fits
    """

    capacity: int
    estimated: int
    at_rest: int
    measured: int
    kv_tokens: int
    max_model_len: int
    short: str


def parsed(answer: object) -> Memory | None:
    """What stands under `memory` in the answer of /ready; None where nothing does. Raises ValueError."""
    said = answer.get("memory") if isinstance(answer, dict) else None
    if said is None:
        return None
    if not isinstance(said, dict) or said.get("short", "") not in ("", *SHORT):
        raise ValueError("it does not say what the model takes of memory")
    return Memory(
        capacity=count(said.get("capacity")),
        estimated=count(said.get("estimated")),
        at_rest=count(said.get("at_rest")),
        measured=count(said.get("measured", 0)),
        kv_tokens=count(said.get("kv_tokens")),
        max_model_len=count(said.get("max_model_len")),
        short=said.get("short", ""),
    )


def told_before(resource: Object, replica_set: Object | None) -> Mapping[str, Any] | None:
    """`.status.memory`, where it is of a pod of this ReplicaSet."""
    told: Mapping[str, Any] | None = (resource.get("status") or {}).get("memory")
    if told is None or replica_set is None:
        return None
    return told if told.get("replicaSet") == name(replica_set) else None


def is_whole(told: Mapping[str, Any] | None) -> bool:
    """Whether nothing is left to be asked for."""
    return told is not None and "measured" in told


def told(
    before: Mapping[str, Any] | None, replica_set: Object | None, heard: Mapping[str, Memory]
) -> Mapping[str, Any] | None:
    """`.status.memory`; None where no pod of the ReplicaSet has said anything.

    before  what it was of this ReplicaSet
    heard   by the names of its pods, and of no other's
    """
    if is_whole(before) or not heard or replica_set is None:
        return before
    pod = before["pod"] if before is not None and before["pod"] in heard else min(heard)
    return _told(replica_set, pod, heard[pod])


def _told(replica_set: Object, pod: str, memory: Memory) -> dict[str, Any]:
    told: dict[str, Any] = {
        "pod": pod,
        # A pod's name does not say whose it is: Kubernetes cuts what it makes of a long one.
        "replicaSet": name(replica_set),
        "capacity": _quantity(memory.capacity),
        "estimated": _quantity(memory.estimated),
        "estimatedAtRest": _quantity(memory.at_rest),
        "kvCacheTokens": memory.kv_tokens,
        "maxModelLen": memory.max_model_len,
    }
    if memory.measured:
        told["measured"] = _quantity(memory.measured)
    if memory.short:
        told["short"] = memory.short
    return told


def verdict(memory: Mapping[str, Any]) -> Finding:
    """What `.status.memory` comes down to."""
    said = f"{memory['estimated']} of {memory['capacity']} by the estimate"
    if "short" in memory:
        longest = memory["maxModelLen"]
        length = f" spec.engine.maxModelLen may be {longest} at most." if longest else ""
        return reasons.DOES_NOT_FIT.found(f"{SHORT.get(memory['short'], _LARGE)} It takes {said}.{length}")
    if "measured" not in memory:
        return reasons.ESTIMATED.found(f"{said}.")
    taken = f"{memory['measured']} were taken when the server was ready"
    measured, estimated = parse(memory["measured"]) or 0, parse(memory["estimated"]) or 0
    if measured > MORE * estimated:
        return reasons.TAKES_MORE.found(f"{taken}, and {said}.")
    return reasons.MEASURED.found(f"{said}; {taken}.")


def count(value: object) -> int:
    """A number of bytes, tokens or steps, of an answer. Raises ValueError for anything else."""
    if not isinstance(value, int) or not 0 <= value < 2**63:
        raise ValueError(f"{value!r} is no number of bytes or steps")
    return value


def _quantity(size: int) -> str:
    return f"{round(size / _MIB)}Mi"
