"""A decoder's weights: built from its specification, filled tensor by tensor from a checkpoint."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor

from slipway.load.checkpoint import Checkpoint
from slipway.load.errors import LoadError
from slipway.model.registry import Family
from slipway.model.roles import Entry, expected, is_ignored, unstacked
from slipway.model.spec import DecoderSpec, Layer, Mlp, Moe
from slipway.schemes.dense import DenseScheme
from slipway.schemes.fused import FusedLinear, gated, stacked
from slipway.schemes.scheme import NewScheme, Scheme
from slipway_kernels.cpu import Threads

_SHOWN = 5
"""Names that an error lists; the rest is counted."""


class Vector:
    """A norm's weight [n], kept in fp32."""

    def __init__(self, size: int) -> None:
        self.values = torch.zeros(size)  # [n]

    def load(self, name: str, tensor: Tensor) -> None:
        self.values.copy_(tensor)


@dataclass(frozen=True, slots=True)
class MlpWeights:
    gate_up: FusedLinear
    down: FusedLinear


@dataclass(frozen=True, slots=True)
class MoeWeights:
    router: FusedLinear
    experts: tuple[MlpWeights, ...]
    shared: MlpWeights | None
    shared_scale: FusedLinear | None


@dataclass(frozen=True, slots=True)
class LayerWeights:
    norms: dict[str, Vector]
    """By role: `attention_norm`, `mlp_norm`, and where there are `q_norm`, `attention_post_norm`, …"""
    qkv: FusedLinear
    out: FusedLinear
    mlp: MlpWeights | MoeWeights


@dataclass(frozen=True, slots=True)
class ModelWeights:
    """`head` is `embedding` itself where the two are tied: it is held once."""

    embedding: FusedLinear
    norm: Vector
    head: FusedLinear
    layers: tuple[LayerWeights, ...]

    @property
    def embedding_rows(self) -> Scheme:
        return self.embedding.parts[0].scheme


Owner = FusedLinear | Vector


@dataclass
class Builder:
    """Allocates the weights of a specification, and remembers which of them takes which entry."""

    spec: DecoderSpec
    scheme: NewScheme
    owners: dict[tuple[int, str, int], Owner] = field(default_factory=dict)

    def build(self) -> ModelWeights:
        spec = self.spec
        embedding = self._own(-1, stacked(spec.hidden, {"embedding": spec.vocab}, self.scheme))
        norm = self._vector(-1, "norm", spec.hidden)
        head = embedding
        if not spec.tied_embedding:
            matrix = stacked(spec.hidden, {"head": spec.vocab}, self.scheme, bias=spec.head_bias)
            head = self._own(-1, matrix)
        layers = tuple(self._layer(number, layer) for number, layer in enumerate(spec.layers))
        return ModelWeights(embedding, norm, head, layers)

    def _layer(self, number: int, layer: Layer) -> LayerWeights:
        attention, hidden = layer.attention, self.spec.hidden
        sizes = {"attention_norm": hidden, "mlp_norm": hidden}
        if attention.qk_norm:
            sizes |= {"q_norm": attention.head_dim, "k_norm": attention.head_dim}
        if self.spec.sandwich:
            sizes |= {"attention_post_norm": hidden, "mlp_post_norm": hidden}
        queries, keys = attention.heads * attention.head_dim, attention.kv_heads * attention.head_dim
        qkv = stacked(hidden, {"q": queries, "k": keys, "v": keys}, self.scheme, bias=attention.qkv_bias)
        out = stacked(queries, {"out": hidden}, self.scheme, bias=attention.out_bias)
        return LayerWeights(
            {role: self._vector(number, role, size) for role, size in sizes.items()},
            self._own(number, qkv),
            self._own(number, out),
            self._mlp(number, layer.mlp) if isinstance(layer.mlp, Mlp) else self._moe(number, layer.mlp),
        )

    def _mlp(self, number: int, mlp: Mlp, roles: Sequence[str] = ("gate", "up", "down")) -> MlpWeights:
        return self._gated(number, -1, mlp.intermediate, roles, mlp.bias)

    def _moe(self, number: int, moe: Moe) -> MoeWeights:
        hidden = self.spec.hidden
        roles = ("expert_gate", "expert_up", "expert_down")
        shared, shared_scale = None, None
        if moe.shared is not None:
            shared = self._mlp(number, moe.shared, ("shared_gate", "shared_up", "shared_down"))
            shared_scale = self._own(number, stacked(hidden, {"shared_scale": 1}, self.scheme))
        return MoeWeights(
            self._own(number, stacked(hidden, {"router": moe.experts}, self.scheme)),
            tuple(self._gated(number, expert, moe.intermediate, roles) for expert in range(moe.experts)),
            shared,
            shared_scale,
        )

    def _gated(
        self, number: int, expert: int, intermediate: int, roles: Sequence[str], bias: bool = False
    ) -> MlpWeights:
        gate, up, down = roles
        hidden = self.spec.hidden
        return MlpWeights(
            self._own(number, gated(hidden, intermediate, self.scheme, gate=gate, up=up, bias=bias), expert),
            self._own(number, stacked(intermediate, {down: hidden}, self.scheme, bias=bias), expert),
        )

    def _own(self, layer: int, linear: FusedLinear, expert: int = -1) -> FusedLinear:
        self.owners.update(((layer, name, expert), linear) for name in linear.segments)
        return linear

    def _vector(self, layer: int, role: str, size: int) -> Vector:
        vector = Vector(size)
        self.owners[layer, role, -1] = vector
        return vector


def load_weights(
    spec: DecoderSpec,
    family: Family,
    checkpoint: Checkpoint,
    dtype: torch.dtype,
    threads: Threads | None = None,
) -> ModelWeights:
    """Stream a checkpoint into packed weights, one tensor above them in memory.

    Raises LoadError, with names, where a tensor is missing, unexpected or of another shape.
    """
    builder = Builder(spec, dense(dtype, threads))
    weights = builder.build()
    for entry, tensor in entries(spec, family, checkpoint, dtype):
        builder.owners[entry.layer, entry.role, entry.expert].load(entry.role, tensor)
    device = torch.device("cpu")
    for owner in {id(owner): owner for owner in builder.owners.values()}.values():
        if isinstance(owner, FusedLinear):
            owner.finish(device)
    return weights


def dense(dtype: torch.dtype, threads: Threads | None = None) -> NewScheme:
    """The scheme of weights that are stored as numbers of one type."""
    return partial(DenseScheme, dtype, threads)


def entries(
    spec: DecoderSpec, family: Family, checkpoint: Checkpoint, dtype: torch.dtype
) -> Iterator[tuple[Entry, Tensor]]:
    """Every tensor of the checkpoint with what it is; strict, see `load_weights`."""
    missing = expected(spec, family)
    unexpected: list[str] = []
    for stored_name, stored in checkpoint.tensors(dtype):
        for name, tensor in unstacked(stored_name, stored, family):
            entry = missing.pop(name, None)
            if entry is not None:
                _check_shape(name, tensor, entry)
                yield entry, tensor
            elif not is_ignored(name, spec, family):
                unexpected.append(name)
    check_complete(spec.architecture, sorted(missing), sorted(unexpected))


def check_complete(architecture: str, missing: Sequence[str], unexpected: Sequence[str]) -> None:
    """Raise LoadError, with names, unless a checkpoint held exactly what the model has."""
    if missing or unexpected:
        faults = [
            f"{len(names)} tensors {fault}: {_listed(names)}"
            for names, fault in ((missing, "are missing"), (unexpected, "have no place in the model"))
            if names
        ]
        raise LoadError(
            "BadCheckpoint",
            f"The checkpoint does not fit {architecture}; {'; '.join(faults)}.",
            hint="config.json and weights are of different models or versions: fetch both again.",
            argument="model",
        )


def _check_shape(name: str, tensor: Tensor, entry: Entry) -> None:
    if tuple(tensor.shape) != entry.shape:
        raise LoadError(
            "BadCheckpoint",
            f"The tensor {name} has the shape {list(tensor.shape)}, and config.json asks for "
            f"{list(entry.shape)}.",
            hint="config.json and weights are of different models or versions: fetch both again.",
            argument="model",
        )


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(names[:_SHOWN])
    return shown if len(names) <= _SHOWN else f"{shown} and {len(names) - _SHOWN} more"
