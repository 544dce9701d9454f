"""Devices by their names, and by the labels that a node has of them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches

MIB = 1 << 20
PRODUCT, MEMORY = "nvidia.com/gpu.product", "nvidia.com/gpu.memory"
MAJOR, MINOR = "nvidia.com/gpu.compute.major", "nvidia.com/gpu.compute.minor"
COUNT = "nvidia.com/gpu.count"
"""Labels that NVIDIA's GPU feature discovery gives a node; memory in MiB."""
_SLICE = "mig"
"""In the names of parts of a device, whose memory is in their labels alone."""
_SEEN = 0.994
"""Of what NVIDIA's own tool reports, the share that CUDA gives: 79.22 GiB of an H100's 81,559 MiB
(https://github.com/vllm-project/vllm/pull/10511). The driver keeps the rest."""


class UnknownDevice(ValueError):
    """A name, or labels, that say nothing of a device's memory."""


@dataclass(frozen=True, slots=True)
class Device:
    """What is known of a device, or of a host whose processors compute.

    memory  bytes that processes may have of it together
    arch    compute capability, times ten, as kernels count it; 0 where it is not CUDA's
    count   how many a node has; 0: not known
    """

    name: str
    memory: int
    arch: int = 0
    count: int = 0


@dataclass(frozen=True, slots=True)
class Fact:
    """A device of the table.

    mib     all of its memory, as the vendor's tool reports it
    arch    its compute capability, times ten
    source  where that is written
    seen    the share of it that processes are given
    """

    name: str
    mib: int
    arch: int
    source: str
    seen: float = _SEEN

    @property
    def device(self) -> Device:
        return Device(self.name, int(self.mib * self.seen * MIB), _counted(self.arch))


_MODAL = "https://github.com/modal-labs/modal-client/pull/2797"
_NVSIM = "https://github.com/thamada/nvidia-smi/tree/main/nvsim"
FACTS = (
    Fact("B200", 182630, 100, "https://github.com/unslothai/unsloth/issues/3411", seen=1),
    Fact("H200", 143156, 90, "bench/results/2026-11-27-h200.md", seen=1),
    Fact("H100 80GB", 81559, 90, _MODAL),
    Fact("A100 80GB", 81920, 80, _MODAL),
    Fact("A100 40GB", 40960, 80, _MODAL),
    Fact("L40S", 46068, 89, _MODAL),
    Fact("A40", 46068, 86, _NVSIM),
    Fact("L4", 23034, 89, _MODAL),
    Fact("A10", 23028, 86, _MODAL),
    Fact("A10G", 23028, 86, _MODAL),
    Fact("T4", 15360, 75, _MODAL),
    Fact("RTX 5090", 32607, 120, "https://github.com/noonghunna/club-3090/issues/617"),
    Fact("RTX 4090", 24564, 89, "https://github.com/RLinf/RLinf/issues/255"),
    Fact("RTX 3090", 24576, 86, "https://github.com/noonghunna/club-3090/issues/1128"),
    Fact("MI300X", 196592, 0, _NVSIM, seen=1),
)


def named(name: str) -> Device:
    """The device that a name means: as the table has it, as the vendor's tool prints it, or as a label.

    Raises UnknownDevice, with the names that are known.
    """
    words = _words(name)
    found = [] if _SLICE in words else [fact for fact in FACTS if _words(fact.name) <= words]
    if found:
        return max(found, key=lambda fact: len(_words(fact.name))).device
    family = [fact for fact in FACTS if words <= _words(fact.name)]
    if len(family) == 1:
        return family[0].device
    if family:
        raise UnknownDevice(f"{name} is {' or '.join(fact.name for fact in family)}. Say which.")
    known = [fact.name for fact in FACTS]
    near = get_close_matches(name, known, n=1)
    hint = f"Did you mean {near[0]}? " if near else ""
    raise UnknownDevice(
        f"{name} is no device that is known. {hint}Known are {', '.join(known)}; of others give "
        "--device-memory, such as 24GiB."
    )


def of_labels(labels: Mapping[str, str]) -> Device:
    """The device that a node's labels describe: what they say goes before the table.

    Raises UnknownDevice where they name none, or one that is not in the table without its memory.
    """
    product, mib, count = labels.get(PRODUCT, ""), _number(labels, MEMORY), _number(labels, COUNT)
    if not mib:
        if not product:
            raise UnknownDevice(f"The node has neither {MEMORY} nor {PRODUCT} among its labels.")
        return replace(named(product), count=count)
    arch = 10 * _number(labels, MAJOR) + _number(labels, MINOR)
    return Device(product or "GPU", int(mib * _SEEN * MIB), _counted(arch) or _arch(product), count)


def _counted(arch: int) -> int:
    """As kernels count it: 12.x has the instructions of 8.9."""
    return arch if arch < 120 else 89


def _number(labels: Mapping[str, str], name: str) -> int:
    """Of a label; 0 where it is absent or no number."""
    value = labels.get(name, "")
    return int(value) if value.isdecimal() else 0


def _arch(product: str) -> int:
    try:
        return named(product).arch
    except UnknownDevice:
        return 0


def _words(name: str) -> set[str]:
    """`NVIDIA-H100-80GB-HBM3`, `H100 80GB` and `h100-80gb` share their words."""
    return set(re.findall(r"[a-z]*\d[a-z\d]*|[a-z]+", name.lower()))
