"""What an adapter has in place of a model's own: rows of tokens, added tokens, and another rotation."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from slipway.load.adapter import Adapter
from slipway.load.arrays import FP32, Array, DType, Floats, Ints
from slipway.load.own_tokens import OwnLimits
from slipway.load.quantized.tensors import in_type
from slipway.model.adapters import EMBEDDING, HEAD, Addition
from slipway.model.registry import Family
from slipway.model.roles import Place, usual
from slipway.model.spec import DecoderSpec, Rope

ReadRows = Callable[[Ints], Floats]
"""Gives rows of one of the model's matrices, by their numbers, as it computes with them."""
_AT_ONCE = 4096
"""Rows that are compared."""


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows [n, hidden] of `tokens` [n], of numbers in fp32; ascending."""

    tokens: Ints
    numbers: Floats
    bias: Floats | None = None
    """[n], of the head."""


@dataclass(frozen=True, slots=True)
class Own:
    """What requests with an adapter have in place of the model's own; rows have what its factors add."""

    added: int = 0
    """Tokens behind the vocabulary."""
    embedding: Rows | None = None
    """As they enter the first layer."""
    head: Rows | None = None
    rotation: int = 0
    """0: the model's; else the place of its factor, from 1 on."""

    def __bool__(self) -> bool:
        return bool(self.added or self.embedding or self.head or self.rotation)


def own_of(
    adapter: Adapter,
    spec: DecoderSpec,
    family: Family,
    limits: OwnLimits,
    dtype: DType,
    embedding: ReadRows | None = None,
    head: ReadRows | None = None,
    tokens: range | None = None,
) -> Own:
    """Raises LoadError, with the name of what is wrong, for what cannot be served.

    dtype            in which the model multiplies
    embedding, head  the model's rows; None: it has none, they are on another stage, or none may be others
                     (`limits` says why)
    tokens           whose rows those are, of a rank; what is added is the first one's. None: all
    """
    tokens = tokens or range(spec.vocab)
    rotation = _rotation(adapter, spec, limits)
    matrices = _matrices(adapter, family)
    if not matrices and adapter.new_rows is None:
        return Own(rotation=rotation)
    if limits.refused:
        raise adapter.wrong(f"has rows of tokens of its own, which {limits.refused}", "Leave it out.")
    if adapter.new_rows is not None:
        if matrices:
            raise adapter.wrong("has new_embeddings and whole matrices: which rows count is not said")
        own = _of_new_rows(adapter, spec, dtype)
        if tokens.start:
            own = Own(own.added)
    else:
        own = _of_matrices(adapter, matrices, spec, dtype, embedding, head, tokens)
    if own.added > limits.max_added:
        raise adapter.wrong(
            f"adds {own.added} tokens to the vocabulary, and --lora-extra-vocab-size is {limits.max_added}",
            f"Serve it with --lora-extra-vocab-size {own.added}.",
        )
    for rows in (own.embedding, own.head):
        if rows is not None and not np.isfinite(rows.numbers).all():
            raise adapter.wrong("has rows of tokens that are infinite, or no numbers")
    return replace(own, rotation=rotation, head=own.head if head is not None else None)


def with_additions(
    own: Own,
    found: Mapping[Place, Addition],
    spec: DecoderSpec,
    head_bias: Floats | None,
    tokens: range | None = None,
) -> tuple[Own, dict[Place, Addition]]:
    """Rows that have what the factors add, once; and the factors of the model's own tokens.

    Rows of the embedding are scaled as the model scales its.
    head_bias  the model's, or None
    tokens     of a rank, those that it has, and the bias, too; None: all
    """
    cut = dict(found)
    embedding, head, tokens = own.embedding, own.head, tokens or range(spec.vocab)
    here = slice(tokens.start, tokens.stop)
    in_embedding, in_head = found.get(EMBEDDING, Addition()), found.get(HEAD, Addition())
    if embedding is not None:
        numbers = embedding.numbers * np.float32(spec.embedding_scale)
        if in_embedding.a is not None and in_embedding.b is not None:
            numbers = numbers + _rows(in_embedding.a, embedding.tokens) @ in_embedding.b.T
        embedding = replace(embedding, numbers=numbers)
    if head is not None:
        numbers = head.numbers
        if in_head.a is not None and in_head.b is not None:
            numbers = numbers + _rows(in_head.b, head.tokens) @ in_head.a
        biases = [_rows(part, head.tokens) for part in (in_head.bias, in_head.new_bias) if part is not None]
        if in_head.new_bias is None and head_bias is not None:
            biases.append(_rows(head_bias, head.tokens - tokens.start))
        head = replace(head, numbers=numbers, bias=sum(biases[1:], biases[0]) if biases else None)
    if in_embedding.a is not None:
        cut[EMBEDDING] = replace(in_embedding, a=np.ascontiguousarray(in_embedding.a[here]))
    if HEAD in found:
        parts = (in_head.b, in_head.bias, in_head.new_bias)
        b, bias, new_bias = (None if part is None else part[here] for part in parts)
        cut[HEAD] = replace(in_head, b=b, bias=bias, new_bias=new_bias)
    return replace(own, embedding=embedding, head=head), cut


def _rows(matrix: Floats, ids: Ints) -> Floats:
    """Rows [n, ...], zeros of those that it has not."""
    found = np.zeros((len(ids), *matrix.shape[1:]), np.float32)
    there = (ids >= 0) & (ids < len(matrix))
    found[there] = matrix[ids[there]]
    return found


def stretched(rope: Rope, factor: float) -> Rope:
    """The rotation by plain angles of position / factor."""
    return replace(rope, scaling={"rope_type": "linear", "factor": factor})


def _rotation(adapter: Adapter, spec: DecoderSpec, limits: OwnLimits) -> int:
    if adapter.context_length <= spec.max_position:
        return 0
    factor = float(math.ceil(adapter.context_length / spec.max_position))
    if factor not in limits.factors:
        allowed = " ".join(f"{one:g}" for one in limits.factors) or "unset"
        wanted = " ".join(f"{one:g}" for one in sorted({*limits.factors, factor}))
        raise adapter.wrong(
            f"has a context_length of {adapter.context_length}, which stretches the {spec.max_position} "
            f"positions of the model by {factor:g}, and --long-lora-scaling-factors is {allowed}",
            f"Serve it with --long-lora-scaling-factors {wanted}.",
        )
    return 1 + limits.factors.index(factor)


def unstretched(spec: DecoderSpec) -> str:
    """Why no factor can take the place of a model's rotation; empty: one can."""
    ropes = {layer.attention.rope for layer in spec.layers if layer.attention.rope is not None}
    if not ropes:
        return "its layers do not rotate positions"
    if len(ropes) > 1:
        return "its layers rotate positions in several ways"
    kind = str(next(iter(ropes)).scaling.get("rope_type", "default"))
    return "" if kind == "default" else f"its rotation is scaled by {kind}, which a factor would undo"


Matrix = Literal["embedding", "head"]


def _matrices(adapter: Adapter, family: Family) -> dict[Matrix, Array]:
    names: dict[str, Matrix] = {family.names["embedding"]: "embedding", family.names["head"]: "head"}
    found: dict[Matrix, Array] = {}
    for module, matrix in adapter.matrices.items():
        role = names.get(usual(module, family))
        if role is None:
            raise adapter.wrong(
                f"has a whole matrix of {module}; only the embedding's and the head's may be others",
                "Train it with other modules_to_save, or merge it into the model.",
            )
        found[role] = matrix
    return found


def _of_new_rows(adapter: Adapter, spec: DecoderSpec, dtype: DType) -> Own:
    assert adapter.new_rows is not None
    rows, head = adapter.new_rows.embedding, adapter.new_rows.head
    if rows.shape[1] != spec.hidden or not len(rows):
        raise adapter.wrong(
            f"has new_embeddings of {list(rows.shape)}; the model's rows have {spec.hidden} numbers"
        )
    tokens = np.arange(spec.vocab, spec.vocab + len(rows), dtype=np.int32)
    if head is None and spec.tied_embedding:
        head = rows
    return Own(
        len(rows), Rows(tokens, _as(rows, dtype)), None if head is None else Rows(tokens, _as(head, dtype))
    )


def _of_matrices(
    adapter: Adapter,
    matrices: Mapping[Matrix, Array],
    spec: DecoderSpec,
    dtype: DType,
    embedding: ReadRows | None,
    head: ReadRows | None,
    here: range,
) -> Own:
    shapes = {role: matrix.shape for role, matrix in matrices.items()}
    rows = {shape[0] for shape in shapes.values()}
    if (
        len(rows) > 1
        or min(rows) < spec.vocab
        or any(shape[1:] != (spec.hidden,) for shape in shapes.values())
    ):
        told = ", ".join(f"{role} {list(shape)}" for role, shape in shapes.items())
        raise adapter.wrong(
            f"has whole matrices of other shapes than [{spec.vocab}, {spec.hidden}] or more: {told}"
        )
    added = rows.pop() - spec.vocab
    if added and "embedding" not in matrices:
        raise adapter.wrong(
            f"has {added} more rows of the head than the model, and no matrix of the embedding"
        )
    own = {
        role: _differing(matrix, spec.vocab, here, dtype, read)
        for role, matrix in matrices.items()
        if (read := embedding if role == "embedding" else head) is not None
    }
    changed = own.get("embedding")
    if spec.tied_embedding and "head" not in matrices and head is not None and changed is not None:
        if changed.tokens[0] < spec.vocab:
            raise adapter.wrong(
                f"has another row of the embedding for the token {changed.tokens[0]}, and no matrix of the "
                "head, which is the embedding's in this model: which of them the head has is not said",
                "Save both matrices with it.",
            )
        own["head"] = changed
    return Own(added, own.get("embedding"), own.get("head"))


def _differing(matrix: Array, vocab: int, here: range, dtype: DType, read: ReadRows) -> Rows | None:
    """Of the tokens here, and on the first rank of those that are added, rows that are not the model's."""
    tokens: list[Ints] = []
    numbers: list[Floats] = []
    for first in range(here.start, here.stop, _AT_ONCE):
        ids = np.arange(first, min(first + _AT_ONCE, here.stop), dtype=np.int32)
        rows = _as(matrix[ids], dtype)
        other = (rows != read(ids - np.int32(here.start))).any(axis=1)
        tokens.append(ids[other])
        numbers.append(rows[other])
    if not here.start:
        tokens.append(np.arange(vocab, len(matrix), dtype=np.int32))
        numbers.append(_as(matrix[vocab:], dtype))
    found = Rows(np.concatenate(tokens), np.concatenate(numbers))
    return found if len(found.tokens) else None


def _as(rows: Array, dtype: DType) -> Floats:
    """Rounded to a type, in fp32."""
    return in_type(in_type(rows, dtype), FP32)
