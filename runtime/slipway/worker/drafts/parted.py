"""A rank's part of layers that go on from the target's rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Protocol, Self, TypeVar

from slipway.load.cut import Cut
from slipway.load.quantized.form import Form
from slipway.model.shard import Shard, Sharded
from slipway.model.spec import DecoderSpec

MATRICES = {
    "q": "self_attn.q_proj",
    "k": "self_attn.k_proj",
    "v": "self_attn.v_proj",
    "out": "self_attn.o_proj",
    "gate": "mlp.gate_proj",
    "up": "mlp.up_proj",
    "down": "mlp.down_proj",
}
"""By role, the names of a layer's matrices."""


class Parting(Protocol):
    """What has such layers."""

    @property
    def decoder(self) -> DecoderSpec: ...
    @property
    def names(self) -> Sequence[str]:
        """[layer]  how the names of its tensors begin"""

    def with_decoder(self, decoder: DecoderSpec) -> Self: ...


Spec = TypeVar("Spec", bound=Parting)
Cuts = Mapping[str, Cut | None]
"""By tensor; None: another rank has it."""


def parted(spec: Spec, forms: Mapping[str, Form], shard: Shard, *, packed: bool) -> tuple[Spec, Cuts]:
    """A rank's part, and what it reads of each tensor that is not read whole.

    forms   of the quantized matrices, by tensor
    packed  whether any stays as it is stored
    Raises LoadError where they cannot be cut.
    """
    if shard.size == 1:
        return spec, {}
    decoder = replace(spec.decoder, layers=spec.decoder.layers[:1] * len(spec.names))
    tensors = {
        (number, role, -1): f"{name}.{matrix}"
        for number, name in enumerate(spec.names)
        for role, matrix in MATRICES.items()
    }
    quantized = {
        place: form for place, name in tensors.items() if (form := forms.get(f"{name}.weight")) is not None
    }
    part = Sharded(decoder, quantized, replace(shard, whole_vocabulary=True), packed=packed)
    cuts: dict[str, Cut | None] = {}
    for place, name in tensors.items():
        cuts[f"{name}.weight"] = part.cuts[place]
        adds = shard.adds_bias(place[1])
        cuts[f"{name}.bias"] = Cut(rows=part.cuts[place].rows) if adds else None
    return spec.with_decoder(part.spec), cuts
