"""What ranks hold of a model, and whether together they compute what one would."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from quantize import quantize, recipe

from model.stepping import plan
from packed_forms import DENSE, plain
from slipway.load.arrays import BF16, FP32, Floats
from slipway.load.cut import ALL, Cut, numbered
from slipway.model.registry import families
from slipway.model.roles import Place
from slipway.model.shard import Shard, Sharded
from slipway.model.weights import LayerWeights, MlpWeights, ModelWeights, forms_by_place, load_weights
from slipway.schemes.choice import Schemes
from slipway.schemes.fused import FusedLinear
from slipway_kernels.cpu import PackedCodes

Make = Callable[[Path], Path]
ROWS = 3
UNIT = 2.0**-24
"""Half the distance of 1 to the next number in fp32, and so the relative error of one addition."""
BF16_UNIT, CODE_UNIT = 2.0**-8, 1 / 65534
"""The same of a weight rounded to bf16; of an activation in 16 bits, over the largest of its 32 columns."""


def quantized(method: str, kind: dict[str, Any] = DENSE, size: int = 64, **options: Any) -> Make:
    """Makes a checkpoint in a folder."""

    def make(place: Path) -> Path:
        how = recipe(method, **{"group": 32, **options})
        return quantize(plain(place / "plain", "bfloat16", kind, size), place / "quantized", how)

    return make


@dataclass(frozen=True)
class Held:
    """A rank's weights, and how they were cut."""

    weights: ModelWeights
    part: Sharded

    def linears(self) -> Iterator[tuple[Place, FusedLinear]]:
        """Every matrix of the layers by its place, with what holds it."""
        for number, layer in enumerate(self.weights.layers):
            for role, expert, linear in _linears(layer):
                yield (number, role, expert), linear

    def cut(self, place: Place) -> Cut:
        return self.part.cuts.get(place, Cut())


def _linears(layer: LayerWeights) -> Iterator[tuple[str, int, FusedLinear]]:
    mlps: list[tuple[int, MlpWeights]] = []
    linears = [(-1, layer.qkv), (-1, layer.out)]
    if isinstance(layer.mlp, MlpWeights):
        mlps.append((-1, layer.mlp))
    else:
        linears.append((-1, layer.mlp.router))
        mlps += zip(layer.mlp.spec.held, layer.mlp.experts, strict=True)
        if layer.mlp.shared is not None:
            mlps.append((-1, layer.mlp.shared))
    linears += [(expert, one) for expert, mlp in mlps for one in (mlp.gate_up, mlp.down)]
    for expert, linear in linears:
        yield from ((role, expert, linear) for role in linear.segments)


def held(
    model: Path, settings: dict[str, Any], sizes: tuple[int, ...], *, whole_experts: bool = False
) -> Iterator[list[Held]]:
    """What the ranks of each size hold."""
    found = plan(model, **settings)
    spec = found.route.spec
    assert spec is not None
    family, conversion = families()[found.route.architecture], found.route.conversion
    forms = forms_by_place(spec, family, found.checkpoint, conversion)
    for size in sizes:
        ranks = [Shard(rank, size, whole_experts) for rank in range(size)]
        yield [
            Held(
                load_weights(spec, family, found.checkpoint, Schemes(found.element), conversion, rank),
                Sharded(spec, forms, rank, packed=found.element != FP32),
            )
            for rank in ranks
        ]


def applied(linear: FusedLinear, x: Floats) -> Floats:
    return np.concatenate([part.scheme.apply(x, bias) for part, bias in linear.products()], axis=1)


def outputs(held: Held, place: Place, linear: FusedLinear, x: Floats) -> dict[int, Floats]:
    """By row of the whole matrix: what the rank makes of x [ROWS, k], in the whole's order of columns."""
    cut, segment = held.cut(place), linear.segments[place[1]]
    result = applied(linear, np.ascontiguousarray(x[:, numbered(cut.columns, x.shape[1])]))
    rows = numbered(cut.rows, 1 << 20)[: len(segment.rows)]
    return {int(row): result[:, at] for row, at in zip(rows, segment.rows, strict=True)}


def bound(whole: FusedLinear, ranks: list[FusedLinear], aligned: bool, x: Floats) -> Floats:
    """‖error‖ of each row of x, at most, where ranks' results are added up.

    Products and their sum are each the sum of k terms in fp32: |error| ≤ k · 2⁻²⁴ · |x| · |W|ᵀ for either.
    Where a rank's matrix is dequantized to bf16 and the whole is not, its weights are off by 2⁻⁸ and the
    whole's activations by half a step of 16 bits; these steps differ, too, where a cut parts 32 columns.
    """
    (part,) = whole.parts
    size = np.abs(part.scheme.rows(np.arange(whole.n, dtype=np.int32)).astype(np.float64))
    x64 = np.abs(x.astype(np.float64))
    each = 2 * (x.shape[1] + 4 * len(ranks)) * UNIT * (x64 @ size.T)
    kinds = {type(rank.parts[0].packed) for rank in ranks}
    steps = x64.max(axis=1, keepdims=True) * size.sum(axis=1) * CODE_UNIT
    if kinds != {type(part.packed)}:
        each += BF16_UNIT * (x64 @ size.T) + steps
    elif isinstance(part.packed, PackedCodes) and not aligned:
        each += 2 * steps
    return np.linalg.norm(each, axis=1)


def check_together(alone: Held, ranks: list[Held]) -> None:
    """Products of matrices cut by rows to the bit, of those cut by columns but for the order of additions."""
    drawn = np.random.default_rng(0)
    theirs = [dict(rank.linears()) for rank in ranks]
    for place, linear in alone.linears():
        x = (drawn.standard_normal((ROWS, linear.k))).astype(BF16).astype(np.float32)
        expected = outputs(alone, place, linear, x)
        having = [(rank, one[place]) for rank, one in zip(ranks, theirs, strict=True) if place in one]
        found = [outputs(rank, place, one, x) for rank, one in having]
        columns = [rank.cut(place).columns for rank, _ in having]
        if len(having) == 1 or all(one is ALL for one in columns):
            assert set().union(*found) == expected.keys()
            assert all(np.array_equal(y, expected[row]) for one in found for row, y in one.items())
            continue
        numbers = [numbered(one, linear.k) for one in columns]
        assert sorted(np.concatenate(numbers)) == list(range(linear.k))
        total = sum(np.stack(list(one.values()), axis=1) for one in found).astype(np.float64)
        error = np.linalg.norm(total - np.stack(list(expected.values()), axis=1), axis=1)
        aligned = all(len(part) % 32 == 0 for part in numbers)
        assert (error <= bound(linear, [one for _, one in having], aligned, x)).all(), place
    whole = alone.weights.embedding.parts[0].scheme.rows(np.arange(128, dtype=np.int32))
    pieces = [rank.weights.embedding for rank in ranks]
    rows = [one.parts[0].scheme.rows(np.arange(one.n, dtype=np.int32)) for one in pieces]
    assert np.array_equal(np.concatenate(rows), whole)


def held_bytes(rank: Held) -> int:
    weights = rank.weights
    linears = {id(one): one for _, one in rank.linears()}
    linears |= {id(one): one for one in (weights.embedding, weights.head)}
    return sum(part.packed.nbytes for one in linears.values() for part in one.parts)
