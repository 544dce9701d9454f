"""Low-rank adapters (LoRA) as PEFT saves them: `adapter_config.json` and `adapter_model.safetensors`.

Method: Hu et al. 2021, https://arxiv.org/abs/2106.09685; rank-stabilized: Kalajdzievski 2023.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import sqrt
from pathlib import Path

from slipway.load.arrays import Array
from slipway.load.config import flag, integer, number
from slipway.load.errors import LoadError
from slipway.load.folder import read_json
from slipway.load.safetensors import SafetensorsWeights

FACTORS = re.compile(r"base_model\.model\.(.+)\.lora_(A|B)\.weight")
_OTHERWISE = {
    "use_dora": False,
    "fan_in_fan_out": False,
    "lora_bias": False,
    "bias": "none",
    "modules_to_save": None,
    "layer_replication": None,
    "rank_pattern": {},
    "alpha_pattern": {},
}
"""Features of PEFT that we lack, by what their fields hold where they are not used."""


@dataclass(frozen=True, slots=True)
class Adapter:
    """What is added to a model: by module, such as `model.layers.0.self_attn.q_proj`, A [r, k] and B [n, r].

    The module's result gets scaling · B · (A · x).
    """

    name: str
    folder: Path
    scaling: float
    factors: Mapping[str, tuple[Array, Array]]

    def wrong(self, why: str, hint: str = "Save it again by PEFT, or leave it out.") -> LoadError:
        """The error for an adapter that cannot be served."""
        text = f"The adapter {self.name} in {self.folder} {why}."
        return LoadError("BadCheckpoint", text, hint=hint, argument="lora_modules")


def read_adapter(name: str, folder: Path) -> Adapter:
    """Raises LoadError, with the name of what is wrong, for what is no such adapter or more than we add."""
    config = read_json(folder / "adapter_config.json")
    rank = integer(config, "r", 0)
    share = max(1, rank) if not flag(config, "use_rslora", False) else sqrt(max(1, rank))
    adapter = Adapter(name, folder, number(config, "lora_alpha", 8.0) / share, {})
    kind = config.get("peft_type")
    if kind != "LORA" or rank < 1:
        raise adapter.wrong(f"is of the kind {kind} with a rank of {rank}; LORA of a rank above 0 is served")
    for field, unused in _OTHERWISE.items():
        if (config.get(field) or unused) != unused:
            raise adapter.wrong(f"uses {field}: {config[field]!r}, which is not supported")
    path = folder / "adapter_model.safetensors"
    if not path.is_file():
        raise adapter.wrong(f"has no {path.name}")
    weights = SafetensorsWeights([path], lambda *told: None)
    found: dict[str, dict[str, Array]] = {}
    for stored in weights.entries:
        match = FACTORS.fullmatch(stored)
        if match is None:
            raise adapter.wrong(f"has a tensor {stored}, which is no factor of a linear layer")
        found.setdefault(match[1], {})[match[2]] = weights.view(stored)
    if not found:
        raise adapter.wrong("adds to no matrix")
    for module, pair in found.items():
        shapes = [list(pair[side].shape) for side in "AB" if side in pair]
        if len(pair) < 2 or any(array.ndim != 2 for array in pair.values()) or shapes[0][0] != shapes[1][1]:
            raise adapter.wrong(f"has factors of shape {shapes} for {module}; they are [r, k] and [n, r]")
    return replace(adapter, factors={module: (pair["A"], pair["B"]) for module, pair in found.items()})
