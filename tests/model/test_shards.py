"""A rank's shard is read without the rest, and ranks together hold what one would: for every stored form."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from model.ranks import Make, check_together, held, quantized
from packed_forms import DENSE, GGUF, QUANTIZED, STORED, as_gguf, plain, sources
from slipway.load.cut import Cut, numbered
from slipway.load.errors import LoadError
from slipway.load.quantized.form import ScaledForm
from slipway.model.shard import Shard, Sharded
from slipway.model.spec import Attention, DecoderSpec, Layer, Mlp
from slipway_kernels.cpu import PackedCodes

MODELS: dict[str, tuple[Make, dict[str, Any]]] = {
    name: (make, settings) for name, make, settings in sources() if name != "fp8-block"
} | {
    # Heads of 128 numbers: each begins on a block of scales.
    "fp8-block": (quantized("fp8-block", size=512), {}),
    "GGUF MXFP4": (lambda place: as_gguf(place / "model.gguf", "MXFP4", near_one=True), {}),
    **{
        f"dense {how}": (lambda p: plain(p / "plain", "bfloat16"), {"quantization": how})
        for how in ("int4", "int8")
    },
    **{
        f"{kv_heads} of {heads} heads": (
            lambda p, kind=kind, size=16 * heads: plain(p / "plain", "bfloat16", kind, size),
            {},
        )
        for heads, kv_heads in ((9, 3), (6, 3), (4, 1))
        for kind in ({**DENSE, "num_attention_heads": heads, "num_key_value_heads": kv_heads},)
    },
}
CASES = [(name, "bfloat16") for name in MODELS] + [
    (name, "float32") for name in ("gptq-act-order", "w8a8", "GGUF Q4_K", "bfloat16")
]


def test_every_form_is_among_the_models() -> None:
    assert {*STORED, *QUANTIZED, *(f"GGUF {kind}" for kind in GGUF)} <= MODELS.keys()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize(("name", "dtype"), CASES)
def test_ranks_together_compute_what_one_does(name: str, dtype: str, tmp_path: Path) -> None:
    """Cut by rows to the bit, cut by columns but for the order of additions."""
    make, settings = MODELS[name]
    (alone,), *others = held(make(tmp_path), {**settings, "dtype": dtype}, (1, 2, 3, 4))
    for ranks in others:
        assert all(dict(one.linears()).keys() == dict(alone.linears()).keys() for one in ranks)
        check_together(alone, ranks)


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
