"""A decoder's weights: built from its specification, filled tensor by tensor from a checkpoint."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import cast

import numpy as np

from slipway.load.arrays import FP32, Array, Floats
from slipway.load.checkpoint import Checkpoint
from slipway.load.cut import WHOLE, Cut, Stored
from slipway.load.errors import LoadError
from slipway.load.quantized.form import Form
from slipway.load.quantized.on_the_fly import OnTheFly
from slipway.load.quantized.tensors import Quantized, Unquantized, in_type
from slipway.model.registry import Family
from slipway.model.roles import Entry, Place, entries_of, expected, is_ignored, unstacked, usual
from slipway.model.shard import WHOLE_MODEL, Shard, Sharded
from slipway.model.spec import DecoderSpec, Mlp, Moe
from slipway.model.stage import Stage
from slipway.schemes.choice import SchemeChoice
from slipway.schemes.fused import FusedLinear, gated, stacked
from slipway.schemes.scheme import NewScheme

_SHOWN = 5
"""Names that an error lists; the rest is counted."""


class Vector:
    """A norm's weight [n], kept in fp32."""

    def __init__(self, size: int) -> None:
        self.values = np.zeros(size, np.float32)  # [n]

    def load(self, name: str, given: Array | Quantized) -> None:
        self.values[:] = in_type(given, FP32)


class ScoreWeights:
    """A layer of the head that scores, kept in fp32."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.weight = np.zeros(shape, np.float32)  # [n, k]
        self.bias: Floats | None = None  # [n]

    def load(self, name: str, given: Array | Quantized) -> None:
        numbers = np.array(in_type(given, FP32))
        if numbers.ndim == 1:
            self.bias = numbers
        else:
            self.weight[:] = numbers


@dataclass(frozen=True, slots=True)
class MlpWeights:
    spec: Mlp
    gate_up: FusedLinear
    down: FusedLinear


@dataclass(frozen=True, slots=True)
class MoeWeights:
    spec: Moe
    router: FusedLinear
    experts: tuple[MlpWeights, ...]
    """Those of `spec.held`, in order."""
    shared: MlpWeights | None
    shared_scale: FusedLinear | None


@dataclass(frozen=True, slots=True)
class LayerWeights:
    norms: dict[str, Vector]
    """By role: `attention_norm`, `mlp_norm`, and where there are `q_norm`, `mlp_post_norm`, `sinks`, …"""
    qkv: FusedLinear
    out: FusedLinear
    mlp: MlpWeights | MoeWeights


@dataclass(frozen=True, slots=True)
class ModelWeights:
    """`head` is `embedding` itself where the two are tied: it is held once. What a stage has not has no
    rows."""

    embedding: FusedLinear
    norm: Vector
    head: FusedLinear
    layers: tuple[LayerWeights, ...]
    scores: tuple[ScoreWeights, ...] = ()


Owner = FusedLinear | Vector | ScoreWeights


@dataclass
class Builder:
    """Allocates the weights of a specification, and remembers which of them takes which entry.

    forms  of the matrices that the checkpoint holds quantized
    stage  whose layers are built; None: all are
    """

    spec: DecoderSpec
    schemes: SchemeChoice
    forms: Mapping[Place, Form] = field(default_factory=dict)
    stage: Stage | None = None
    owners: dict[Place, Owner] = field(default_factory=dict)
    _shapes: dict[Place, tuple[int, ...]] = field(default_factory=dict)
    _biased: set[Place] = field(default_factory=set)

    def build(self) -> ModelWeights:
        vectors: dict[int, dict[str, Vector]] = defaultdict(dict)
        scores: dict[str, ScoreWeights] = {}
        stage = self.stage or Stage.whole(len(self.spec.layers))
        none = FusedLinear(self.spec.hidden, ())
        for entry in filter(stage.has, entries_of(self.spec)):
            if entry.kind == "bias":
                self._biased.add(entry.place)
            elif entry.role.startswith("score"):
                self.owners[entry.place] = scores[entry.role] = ScoreWeights(entry.shape)
            elif len(entry.shape) > 1:
                self._shapes[entry.place] = entry.shape
            else:
                self.owners[entry.place] = vectors[entry.layer][entry.role] = Vector(*entry.shape)
        embedding = self._stacked(-1, "embedding") if stage.embeds else none
        head = none
        if stage.is_last:
            head = embedding if self.spec.tied_embedding else self._stacked(-1, "head")
        own = ((number, self.spec.layers[number]) for number in stage.layers)
        layers = [
            LayerWeights(
                vectors[number],
                self._stacked(number, "q", "k", "v"),
                self._stacked(number, "out"),
                self._mlp(layer.mlp, number) if isinstance(layer.mlp, Mlp) else self._moe(layer.mlp, number),
            )
            for number, layer in own
        ]
        norm = vectors[-1].get("norm", Vector(0))
        return ModelWeights(embedding, norm, head, tuple(layers), tuple(scores.values()))

    def finish(self) -> None:
        """All entries are loaded: finish every matrix, once however many entries it has."""
        for owner in {id(owner): owner for owner in self.owners.values()}.values():
            if isinstance(owner, FusedLinear):
                owner.finish(self.schemes.placed)

    def _moe(self, moe: Moe, layer: int) -> MoeWeights:
        return MoeWeights(
            moe,
            self._stacked(layer, "router"),
            tuple(self._mlp(moe.expert, layer, "expert_", expert) for expert in moe.held),
            self._mlp(moe.shared, layer, "shared_") if moe.shared else None,
            self._stacked(layer, "shared_scale") if moe.shared else None,
        )

    def _mlp(self, mlp: Mlp, layer: int, prefix: str = "", expert: int = -1) -> MlpWeights:
        gate, up, down = (f"{prefix}{role}" for role in ("gate", "up", "down"))
        gate_up = self._gated(layer, gate, up, expert)
        return MlpWeights(mlp, gate_up, self._stacked(layer, down, expert=expert))

    def _gated(self, layer: int, gate: str, up: str, expert: int) -> FusedLinear:
        choice = self.schemes.in_layer(layer)
        if not choice.gates_alternate and expert < 0:
            return self._stacked(layer, gate, up)
        forms = {role: self.forms.get((layer, role, expert)) for role in (gate, up)}
        if expert < 0:
            schemes = {role: choice.of(form) for role, form in forms.items()}
        else:  # whose matrices are one
            form = forms[gate] if forms[gate] == forms[up] else None
            scheme = choice.of(form, row=self._shapes[layer, gate, expert][0], expert=True)
            schemes = dict.fromkeys(forms, scheme)
        return self._fused(layer, expert, gated if choice.gates_alternate else stacked, schemes)

    def _stacked(self, layer: int, *roles: str, expert: int = -1) -> FusedLinear:
        choice = self.schemes.in_layer(layer)
        schemes, row = {}, 0
        for role in roles:
            place = layer, role, expert
            schemes[role] = choice.of(self.forms.get(place), row=row, expert=expert >= 0)
            row += self._shapes[place][0]
        return self._fused(layer, expert, stacked, schemes)

    def _fused(
        self, layer: int, expert: int, fuse: Callable[..., FusedLinear], schemes: Mapping[str, NewScheme]
    ) -> FusedLinear:
        places = {role: (layer, role, expert) for role in schemes}
        sizes = {role: self._shapes[place][0] for role, place in places.items()}
        first = next(iter(places.values()))
        linear = fuse(self._shapes[first][1], sizes, schemes, bias=first in self._biased)
        self.owners.update(dict.fromkeys(places.values(), linear))
        return linear


def load_weights(
    spec: DecoderSpec,
    family: Family,
    checkpoint: Checkpoint,
    schemes: SchemeChoice,
    conversion: OnTheFly | None = None,
    shard: Shard = WHOLE_MODEL,
    stage: Stage | None = None,
) -> ModelWeights:
    """Stream a checkpoint into weights, one tensor above them in memory.

    schemes     how each matrix is held, and where
    conversion  quantizes plain matrices on the way
    shard       of whose part of each matrix the rest is not read
    stage       of whose layers the others are not read; None: it has all
    Raises LoadError, with names, where a tensor is missing, unexpected or of another shape.
    """
    whole = forms_by_place(spec, family, checkpoint, conversion)
    part = Sharded(spec, whole, shard, packed=schemes.dtype != FP32)
    stage = stage or Stage.whole(len(spec.layers))
    builder = Builder(part.spec, schemes, part.forms, stage)
    weights = builder.build()
    for entry, stored in entries(spec, family, checkpoint.stored(schemes.dtype)):
        if not (stage.has(entry) and part.has(entry.place)):
            continue  # another rank's
        if entry.kind == "bias" and not shard.adds_bias(entry.role):
            continue
        cut = part.cuts.get(entry.place, WHOLE)
        if conversion is not None and entry.kind == "weight" and entry.place in whole:
            rows = cast(Array, stored.read(Cut(rows=cut.rows)))
            held: Array | Quantized = Unquantized(rows, whole[entry.place], schemes.dtype, cut.columns)
        else:
            held = stored.read(cut)
        if not isinstance(held, Quantized) and held.ndim == 1:
            held = in_type(held, schemes.dtype)
        builder.owners[entry.place].load(entry.role, held)
    builder.finish()
    return weights


def forms_by_place(
    spec: DecoderSpec, family: Family, checkpoint: Checkpoint, conversion: OnTheFly | None = None
) -> dict[Place, Form]:
    """How the quantized matrices are stored, or will be after `conversion`."""
    known = expected(spec, family)
    if conversion is not None:
        matrices = [entry for entry in known.values() if entry.kind == "weight"]
        made = ((entry.place, conversion.form(entry.role, entry.shape)) for entry in matrices)
        return {place: form for place, form in made if form is not None}
    named = ((known.get(usual(name, family)), form) for name, form in checkpoint.forms().items())
    return {entry.place: form for entry, form in named if entry is not None}


def entries(
    spec: DecoderSpec, family: Family, stream: Iterable[tuple[str, Stored]]
) -> Iterator[tuple[Entry, Stored]]:
    """Every tensor of a checkpoint's stream with what it is; strict, see `load_weights`."""
    missing = expected(spec, family)
    unexpected: list[str] = []
    for stored_name, found in stream:
        for name, stored in unstacked(stored_name, found, family):
            entry = missing.pop(name, None)
            if entry is None:
                if not is_ignored(name, spec, family) and not _adds_nothing(name, stored):
                    unexpected.append(name)
            elif stored.shape != entry.shape:
                raise wrong_shape(name, stored.shape, entry.shape)
            else:
                yield entry, stored
    check_complete(spec.architecture, sorted(missing), sorted(unexpected))


def _adds_nothing(name: str, stored: Stored) -> bool:
    """A bias of zeros: GPTQ's packers write one for every layer."""
    return name.endswith(".bias") and not in_type(stored.read(), FP32).any()


def check_complete(architecture: str, missing: Sequence[str], unexpected: Sequence[str]) -> None:
    """Raise LoadError, with names, unless a checkpoint held exactly what the model has."""
    if missing or unexpected:
        faults = [
            f"{len(names)} tensors {fault}: {_listed(names)}"
            for names, fault in ((missing, "are missing"), (unexpected, "have no place in the model"))
            if names
        ]
        raise _other_model(f"The checkpoint does not fit {architecture}; {'; '.join(faults)}.")


def wrong_shape(name: str, stored: Sequence[int], wanted: Sequence[int]) -> LoadError:
    shapes = f"{list(stored)}, and config.json asks for {list(wanted)}"
    return _other_model(f"The tensor {name} has the shape {shapes}.")


def _other_model(message: str) -> LoadError:
    hint = "config.json and weights are of different models or versions: fetch both again."
    return LoadError("BadCheckpoint", message, hint=hint)


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(names[:_SHOWN])
    return shown if len(names) <= _SHOWN else f"{shown} and {len(names) - _SHOWN} more"
