"""An encoder's weights: which there are, and how they are filled from a checkpoint."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate
from typing import cast

from slipway.load.arrays import FP32, Array, Floats
from slipway.load.checkpoint import Checkpoint
from slipway.load.cut import Cut, Stored
from slipway.load.quantized.form import Form
from slipway.load.quantized.on_the_fly import OnTheFly
from slipway.load.quantized.tensors import Unquantized, in_type
from slipway.model.encoder_registry import EncoderFamily
from slipway.model.encoder_spec import EncoderSpec
from slipway.model.roles import Entry, Place
from slipway.model.weights import check_complete, wrong_shape
from slipway.schemes.choice import SchemeChoice
from slipway.schemes.fused import FusedLinear, gated, stacked

_KEPT_PLAIN = ("positions", "types", "head_dense", "classifier")
"""Matrices that no product of the encoder reads: they stay arrays, as vectors do."""


@dataclass(frozen=True, slots=True)
class EncoderLayerWeights:
    """`inner` is up, with its gate where there is one."""

    qkv: FusedLinear
    out: FusedLinear
    inner: FusedLinear
    down: FusedLinear


@dataclass(frozen=True, slots=True)
class EncoderWeights:
    """`arrays`, by an entry's key such as `2.mlp_norm.bias`, are what no product reads, in fp32."""

    embedding: FusedLinear
    layers: tuple[EncoderLayerWeights, ...]
    arrays: Mapping[str, Floats]


def encoder_entries(spec: EncoderSpec) -> Iterator[Entry]:
    """Every tensor of an encoder, where a checkpoint has each role in one of its own."""
    hidden = spec.hidden
    yield Entry("embedding", (spec.vocab, hidden))
    for role, rows in (("positions", spec.positions), ("types", spec.types)):
        if rows:
            yield Entry(role, (rows, hidden))
    yield from _norm(spec, "embedding_norm")
    for number, layer in enumerate(spec.layers):
        attention, mlp = layer.attention, layer.mlp
        width = attention.heads * attention.head_dim
        for role in ("q", "k", "v"):
            yield from _matrix(role, (width, hidden), attention.qkv_bias, number)
        yield from _matrix("out", (hidden, width), attention.out_bias, number)
        for role in ("gate", "up") if mlp.gated else ("up",):
            yield from _matrix(role, (mlp.intermediate, hidden), mlp.bias, number)
        yield from _matrix("down", (hidden, mlp.intermediate), mlp.out_bias, number)
        if number or not spec.pre_norm:  # else the embedding's norm serves the first layer
            yield from _norm(spec, "attention_norm", number)
        yield from _norm(spec, "mlp_norm", number)
    if spec.pre_norm:
        yield from _norm(spec, "norm")
    if head := spec.classifier:
        yield from _matrix("head_dense", (hidden, hidden), head.dense_bias)
        if head.norm:
            yield from _norm(spec, "head_norm")
        yield from _matrix("classifier", (head.labels, hidden), True)


def _matrix(role: str, shape: tuple[int, int], bias: bool, layer: int = -1) -> Iterator[Entry]:
    yield Entry(role, shape, layer)
    if bias:
        yield Entry(role, shape[:1], layer, kind="bias")


def _norm(spec: EncoderSpec, role: str, layer: int = -1) -> Iterator[Entry]:
    for kind in ("weight", "bias") if spec.norm_bias else ("weight",):
        yield Entry(role, (spec.hidden,), layer, kind=kind)


def load_encoder(
    spec: EncoderSpec,
    family: EncoderFamily,
    checkpoint: Checkpoint,
    schemes: SchemeChoice,
    conversion: OnTheFly | None = None,
) -> EncoderWeights:
    """Stream a checkpoint into weights, one tensor above them in memory.

    schemes     how each matrix is held
    conversion  quantizes plain matrices on the way
    Raises LoadError, with names, where a tensor is missing, unexpected or of another shape.
    """
    forms = encoder_forms(spec, family, checkpoint, conversion)
    matrices = _matrices(spec, schemes, forms)
    arrays: dict[str, Floats] = {}
    for entry, stored in _entries(spec, family, checkpoint, schemes):
        owner = matrices.get((entry.layer, entry.role))
        held = stored.read()
        if owner is None:
            arrays[entry.key] = in_type(held, FP32).copy()
            continue
        if conversion is not None and entry.kind == "weight" and entry.place in forms:
            held = Unquantized(cast(Array, held), forms[entry.place], schemes.dtype)
        owner.load(entry.role, in_type(held, FP32) if entry.kind == "bias" else held)
    for linear in {id(owner): owner for owner in matrices.values()}.values():
        linear.finish(schemes.placed)
    layers = tuple(
        EncoderLayerWeights(*(matrices[number, role] for role in ("q", "out", "up", "down")))
        for number in range(len(spec.layers))
    )
    return EncoderWeights(matrices[-1, "embedding"], layers, arrays)


def encoder_forms(
    spec: EncoderSpec, family: EncoderFamily, checkpoint: Checkpoint, conversion: OnTheFly | None
) -> dict[Place, Form]:
    """How the quantized matrices are stored, or will be after `conversion`."""
    matrices = [
        entry for entry in encoder_entries(spec) if len(entry.shape) > 1 and entry.role not in _KEPT_PLAIN
    ]
    if conversion is not None:
        made = ((entry.place, conversion.form(entry.role, entry.shape)) for entry in matrices)
        return {place: form for place, form in made if form is not None}
    named = {family.usual(name): form for name, form in checkpoint.forms().items()}
    return {
        entry.place: named[name]
        for entry in matrices
        for name, _, _ in family.tensors_of(entry)
        if name in named
    }


def _matrices(
    spec: EncoderSpec, schemes: SchemeChoice, forms: Mapping[Place, Form]
) -> dict[tuple[int, str], FusedLinear]:
    """By layer and role, empty; roles that multiply the same rows share one."""
    found: dict[tuple[int, str], FusedLinear] = {}

    def add(layer: int, k: int, sizes: Mapping[str, int], bias: bool) -> None:
        choice = schemes.in_layer(layer)
        rows = dict(zip(sizes, accumulate(sizes.values(), initial=0), strict=False))
        made = {role: choice.of(forms.get((layer, role, -1)), row=rows[role]) for role in sizes}
        fuse = gated if "gate" in sizes and choice.gates_alternate else stacked
        linear = fuse(k, sizes, made, bias=bias)
        found.update({(layer, role): linear for role in sizes})

    hidden = spec.hidden
    add(-1, hidden, {"embedding": spec.vocab}, False)
    for number, layer in enumerate(spec.layers):
        attention, mlp = layer.attention, layer.mlp
        width = attention.heads * attention.head_dim
        add(number, hidden, dict.fromkeys("qkv", width), attention.qkv_bias)
        add(number, width, {"out": hidden}, attention.out_bias)
        add(
            number,
            hidden,
            dict.fromkeys(("gate", "up") if mlp.gated else ("up",), mlp.intermediate),
            mlp.bias,
        )
        add(number, mlp.intermediate, {"down": hidden}, mlp.out_bias)
    return found


def _entries(
    spec: EncoderSpec, family: EncoderFamily, checkpoint: Checkpoint, schemes: SchemeChoice
) -> Iterator[tuple[Entry, Stored]]:
    """Every entry of a checkpoint's stream with what it is; strict, see `load_encoder`."""
    missing = {entry.key: entry for entry in encoder_entries(spec)}
    held: dict[str, list[tuple[Entry, int, int]]] = {}  # by a tensor's name: its entries, and their parts
    for entry in missing.values():
        for name, part, parts in family.tensors_of(entry):
            held.setdefault(name, []).append((entry, part, parts))
    unexpected = []
    for stored_name, stored in checkpoint.stored(schemes.dtype):
        name = family.usual(stored_name)
        if name not in held and not family.is_unused(name):
            unexpected.append(stored_name)
        for entry, part, parts in held.get(name, ()):
            rows, *columns = entry.shape
            wanted = (rows * parts, *columns)
            if stored.shape != wanted:
                raise wrong_shape(stored_name, stored.shape, wanted)
            missing.pop(entry.key, None)
            yield entry, _part(stored, slice(part * rows, (part + 1) * rows)) if parts > 1 else stored
    names = sorted({next(family.tensors_of(entry))[0] for entry in missing.values()})
    check_complete(spec.architecture, names, sorted(unexpected))


def _part(stored: Stored, rows: slice) -> Stored:
    return Stored((rows.stop - rows.start, *stored.shape[1:]), lambda _: stored.read(Cut(rows=rows)))
