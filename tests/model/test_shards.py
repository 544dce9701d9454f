"""A rank's shard is read without the rest, and ranks together hold what one would: for every stored form."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from quantize import quantize, recipe

from model.stepping import plan
from packed_forms import DENSE, GGUF, QUANTIZED, STORED, as_gguf, plain, sources
from slipway.load.arrays import BF16, FP32, Floats
from slipway.load.cut import ALL, Cut, numbered
from slipway.load.errors import LoadError
from slipway.load.quantized.form import ScaledForm
from slipway.model.registry import families
from slipway.model.roles import Place
from slipway.model.shard import Shard, Sharded
from slipway.model.spec import Attention, DecoderSpec, Layer, Mlp
from slipway.model.weights import LayerWeights, MlpWeights, ModelWeights, forms_by_place, load_weights
from slipway.schemes.choice import Schemes
from slipway.schemes.fused import FusedLinear
from slipway_kernels.cpu import PackedCodes

ROWS = 3
UNIT = 2.0**-24
"""Half the distance of 1 to the next number in fp32, and so the relative error of one addition."""
BF16_UNIT, CODE_UNIT = 2.0**-8, 1 / 65534
"""The same of a weight rounded to bf16; of an activation in 16 bits, over the largest of its 32 columns."""


def blocks(place: Path) -> Path:
    """Heads of 128 numbers: each begins on a block of scales."""
    how = recipe("fp8-block", group=32)
    return quantize(plain(place / "plain", "bfloat16", size=512), place / "quantized", how)


MODELS = {name: (make, settings) for name, make, settings in sources() if name != "fp8-block"} | {
    "fp8-block": (blocks, {}),
    "GGUF MXFP4": (lambda place: as_gguf(place / "model.gguf", "MXFP4", near_one=True), {}),
    **{
        f"dense {how}": (lambda p: plain(p / "plain", "bfloat16"), {"quantization": how})
        for how in ("int4", "int8")
    },
}
CASES = [(name, "bfloat16") for name in MODELS] + [
    (name, "float32") for name in ("gptq-act-order", "w8a8", "GGUF Q4_K", "bfloat16")
]


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
        mlps += enumerate(layer.mlp.experts)
        if layer.mlp.shared is not None:
            mlps.append((-1, layer.mlp.shared))
    linears += [(expert, one) for expert, mlp in mlps for one in (mlp.gate_up, mlp.down)]
    for expert, linear in linears:
        yield from ((role, expert, linear) for role in linear.segments)


def held(model: Path, settings: dict[str, Any], sizes: tuple[int, ...]) -> Iterator[list[Held]]:
    """What the ranks of each size hold."""
    found = plan(model, **settings)
    spec = found.route.spec
    assert spec is not None
    family, conversion = families()[found.route.architecture], found.route.conversion
    forms = forms_by_place(spec, family, found.checkpoint, conversion)
    for size in sizes:
        ranks = [Shard(rank, size) for rank in range(size)]
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


def test_every_form_is_among_the_models() -> None:
    assert {*STORED, *QUANTIZED, *(f"GGUF {kind}" for kind in GGUF)} <= MODELS.keys()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize(("name", "dtype"), CASES)
def test_ranks_together_compute_what_one_does(name: str, dtype: str, tmp_path: Path) -> None:
    """Cut by rows to the bit, cut by columns but for the order of additions."""
    make, settings = MODELS[name]
    (alone,), *others = held(make(tmp_path), {**settings, "dtype": dtype}, (1, 2, 3, 4))
    known, drawn = dict(alone.linears()), np.random.default_rng(0)
    for ranks in others:
        theirs = [dict(rank.linears()) for rank in ranks]
        assert all(one.keys() == known.keys() for one in theirs)
        for place, linear in known.items():
            x = (drawn.standard_normal((ROWS, linear.k))).astype(BF16).astype(np.float32)
            expected = outputs(alone, place, linear, x)
            found = [outputs(rank, place, one[place], x) for rank, one in zip(ranks, theirs, strict=True)]
            if all(rank.cut(place).columns is ALL for rank in ranks):
                assert set().union(*found) == expected.keys()
                assert all(np.array_equal(y, expected[row]) for one in found for row, y in one.items())
                continue
            columns = [numbered(rank.cut(place).columns, linear.k) for rank in ranks]
            assert sorted(np.concatenate(columns)) == list(range(linear.k))
            total = sum(np.stack(list(one.values()), axis=1) for one in found).astype(np.float64)
            error = np.linalg.norm(total - np.stack(list(expected.values()), axis=1), axis=1)
            aligned = all(len(part) % 32 == 0 for part in columns)
            assert (error <= bound(linear, [one[place] for one in theirs], aligned, x)).all(), place
        ids = np.arange(128, dtype=np.int32)
        whole = alone.weights.embedding.parts[0].scheme.rows(ids)
        pieces = [rank.weights.embedding for rank in ranks]
        rows = [one.parts[0].scheme.rows(np.arange(one.n, dtype=np.int32)) for one in pieces]
        assert np.array_equal(np.concatenate(rows), whole)


def test_down_in_an_order_of_its_own_stays_packed_and_the_rows_before_it_move(tmp_path: Path) -> None:
    make, settings = MODELS["gptq-act-order"]
    for ranks in held(make(tmp_path), {**settings, "dtype": "bfloat16"}, (1, 3)):
        for rank in ranks:
            packed = {place[1]: one.parts[0].packed for place, one in rank.linears()}
            assert isinstance(packed["down"], PackedCodes)
            assert not isinstance(packed["out"], PackedCodes)  # no rows before it could be moved
            gate = rank.cut((0, "gate", -1)).rows
            assert np.array_equal(gate, rank.cut((0, "down", -1)).columns)
            assert (np.diff(numbered(gate, 96)) != 1).any()


def spec(heads: int, kv_heads: int, dim: int, intermediate: int, vocab: int = 4096) -> DecoderSpec:
    layer = Layer(Attention(heads, kv_heads, dim, None, 1.0), Mlp(intermediate, "silu"))
    return DecoderSpec("Any", heads * dim, vocab, (layer,), 1e-5, 4096, tied_embedding=False)


@given(
    share=st.integers(1, 8),
    kv_heads=st.integers(1, 8),
    intermediate=st.integers(8, 5000),
    size=st.integers(1, 16),
)
def test_every_head_and_column_is_some_ranks_and_query_heads_one_ranks_alone(
    share: int, kv_heads: int, intermediate: int, size: int
) -> None:
    whole = spec(share * kv_heads, kv_heads, 8, intermediate)
    if size > share * kv_heads or size > intermediate:
        with pytest.raises(LoadError, match="The largest that fits is"):
            [Sharded(whole, {}, Shard(rank, size)) for rank in range(size)]
        return
    parts = [Sharded(whole, {}, Shard(rank, size)) for rank in range(size)]
    for role, count in (("q", share * kv_heads * 8), ("down", intermediate)):
        pieces = [part.cuts.get((0, role, -1), Cut()) for part in parts]
        numbers = [numbered(piece.rows if role == "q" else piece.columns, count) for piece in pieces]
        assert np.array_equal(np.concatenate(numbers), np.arange(count))
    for part in parts:
        attention = part.spec.layers[0].attention
        queries = numbered(part.cuts.get((0, "q", -1), Cut()).rows, share * kv_heads * 8)[::8] // 8
        keys = numbered(part.cuts.get((0, "k", -1), Cut()).rows, kv_heads * 8)[::8] // 8
        assert (len(queries), len(keys)) == (attention.heads, attention.kv_heads)
        assert attention.heads % attention.kv_heads == 0
        assert np.array_equal(queries // share, np.repeat(keys, attention.heads // attention.kv_heads))


@pytest.mark.parametrize(
    ("whole", "size", "largest"),
    [(spec(8, 8, 64, 1024), 5, 4), (spec(8, 8, 128, 512), 6, 4), (spec(4, 2, 128, 4096), 5, 4)],
    ids=["keys by two", "down", "heads"],
)
def test_blocks_of_scales_are_not_parted(whole: DecoderSpec, size: int, largest: int) -> None:
    block = ScaledForm(np.dtype(np.int8), (128, 128))
    forms = {(0, role, -1): block for role in ("q", "k", "v", "out", "gate", "up", "down")}
    assert len(Sharded(whole, forms, Shard(0, largest)).cuts) > 0
    with pytest.raises(LoadError, match=rf"cut \d+ .* that come by \d+. The largest that fits is {largest}"):
        Sharded(whole, forms, Shard(0, size))


def test_what_is_whole_is_read_as_it_stands() -> None:
    assert Sharded(spec(8, 8, 64, 1024), {}).cuts == {}


def test_the_model_of_gguf_is_cut_within_its_blocks_after_they_are_decoded(tmp_path: Path) -> None:
    """Blocks of 256 columns, of which no rank has a whole one."""
    (alone,), ranks = held(as_gguf(tmp_path / "model.gguf", "Q6_K"), {"dtype": "float32"}, (1, 4))
    whole = dict(alone.linears())[0, "down", -1].parts[0].scheme.rows(np.arange(256, dtype=np.int32))
    parts = [dict(rank.linears())[0, "down", -1].parts[0].scheme for rank in ranks]
    assert np.array_equal(
        np.concatenate([one.rows(np.arange(256, dtype=np.int32)) for one in parts], axis=1), whole
    )


def test_a_bias_that_ranks_would_add_up_is_the_firsts(tmp_path: Path) -> None:
    model = plain(tmp_path / "plain", "float32", DENSE)
    (alone,), ranks = held(model, {"dtype": "float32"}, (1, 2))
    whole, first, second = (one.weights.layers[0].out.bias for one in (alone, *ranks))
    assert np.array_equal(first, whole)
    assert not second.any()
