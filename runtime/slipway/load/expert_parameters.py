"""Factors of all experts in one tensor, as PEFT saves them for its `target_parameters`.

transformers keeps a layer's experts as two tensors, `experts.gate_up_proj` and `experts.down_proj`. PEFT
wraps the module once for each of them that an adapter adds to, the first innermost, so that the names of
factors say how deep they lie and not to which tensor they belong: `experts.base_layer.lora_A`,
`experts.lora_A`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from slipway.load.arrays import Array

_PARAMETERS = ("gate_up_proj", "down_proj")
_EXPERTS = re.compile(r"(.*\.experts)((?:\.base_layer)*)")
_INPUT_FIRST = (0, 19, 1)
"""The release of PEFT from which on A multiplies what enters, also where a tensor is [experts, out, in]."""


def expert_parameter(module: str, targets: Sequence[str]) -> str | None:
    """The tensor to which factors of such a name are added, of those that `target_parameters` names.

    The name itself where it is not that of experts; None where no tensor is so deep.
    """
    match = _EXPERTS.fullmatch(module)
    if match is None:
        return module
    experts, depth = match[1], match[2].count(".base_layer")
    wrapped = [
        name
        for name in (f"{experts}.{parameter}" for parameter in _PARAMETERS)
        if any(f".{name}".endswith(f".{target}") for target in targets)
    ]
    return wrapped[-1 - depth] if depth < len(wrapped) else None


def is_expert_parameter(name: str) -> bool:
    return name.endswith(tuple(f".experts.{parameter}" for parameter in _PARAMETERS))


def shrinks_output(peft_version: str) -> bool:
    """Whether that release has A and B of experts the wrong way round: A is [r, out], and B [in, r]."""
    numbers = re.match(r"(\d+)\.(\d+)\.(\d+)", peft_version)
    return numbers is not None and tuple(int(one) for one in numbers.groups()) < _INPUT_FIRST


def by_expert(a: Array, b: Array, experts: int) -> list[tuple[Array, Array]]:
    """A [r, k] and B [n, r] of each expert.

    a  [experts · r, k]: expert by expert
    b  [n, r · experts]: rank by rank, in each of which experts are neighbours
    """
    as_, bs = a.reshape(experts, -1, a.shape[1]), b.reshape(len(b), -1, experts)
    return [(as_[expert], bs[:, :, expert]) for expert in range(experts)]
