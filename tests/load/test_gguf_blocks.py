"""Blocks of GGUF, packed from their bytes: their numbers to the bit, and products of these."""

from __future__ import annotations

import numpy as np
import pytest

from packed_forms import BY_NAME, finite_blocks
from slipway.load.arrays import FP16, FP32, Array
from slipway.load.cut import Cut
from slipway.load.gguf.grouped import FORMS, blocks
from slipway.load.quantized.tensors import Blocks, Grouped
from slipway_kernels.cpu import BLOCK_TYPES, PackedBlocks, PackedCodes, Threads, linear

N, K = 70, 512
ROWS = (1, 2, 3, 4, 5, 6, 7, 12, 13, 40)


def matrix(name: str, n: int = N, k: int = K) -> Array:
    return finite_blocks(name, n, k)


def codes(name: str, raw: Array) -> PackedCodes:
    """As integers with a scale in fp16 or fp32 for each group."""
    parts = blocks(name, raw).grouped()
    form = FORMS[name]
    packed = PackedCodes(
        *parts.shape, form.bits, form.group, minimums=form.minimums, wide_scales=form.scales != FP16
    )
    packed.load_rows(parts.codes, parts.scales, parts.minimums)
    return packed


def packed(name: str, raw: Array) -> PackedBlocks:
    found = PackedBlocks(len(raw), blocks(name, raw).shape[1], name)
    found.load_rows(raw)
    return found


def same(a: Array, b: Array) -> bool:
    return a.tobytes() == b.tobytes()


def test_every_type_that_products_read_is_known() -> None:
    assert BLOCK_TYPES.keys() == FORMS.keys()
    for name, kind in BLOCK_TYPES.items():
        assert (kind.columns, kind.nbytes) == (BY_NAME[name].block_size, BY_NAME[name].block_bytes)


def rows_on_the_grid(rows: int, k: int) -> Array:
    """Rows that products read without rounding: one of 128 columns is the largest code."""
    x = np.random.default_rng(0).integers(-3800, 3801, (rows, k)).astype(np.float32)
    x[:, ::128] = 32767
    return x


@pytest.mark.parametrize("name", BLOCK_TYPES)
def test_numbers_and_products_are_those_of_the_file(name: str) -> None:
    raw = matrix(name)
    ours = packed(name, raw)
    numbers = ours.rows(np.arange(N, dtype=np.int32))
    assert np.isfinite(numbers).all()
    assert len(np.unique(numbers)) > 100
    assert np.array_equal(numbers, blocks(name, raw).dequantized(FP32))
    if name == "MXFP4":  # powers whose products are normal numbers
        raw.reshape(-1, 17)[:, 0] = raw.reshape(-1, 17)[:, 0] % 64 + 64
        ours = packed(name, raw)
        numbers = blocks(name, raw).dequantized(FP32)
    x = rows_on_the_grid(max(ROWS), K)
    wide, weight = x.astype(np.float64), numbers.astype(np.float64)
    products = linear(x, ours)
    assert (np.abs(products - wide @ weight.T) <= 2.0**-22 * (np.abs(wide) @ np.abs(weight).T)).all()
    for rows in ROWS:
        assert same(linear(x[:rows], ours), products[:rows]), rows


@pytest.mark.parametrize("name", [name for name, kind in BLOCK_TYPES.items() if kind.columns == 32])
def test_products_of_one_level_of_scales_are_those_of_a_scale_for_each_group(name: str) -> None:
    raw = matrix(name)
    ours, theirs = packed(name, raw), codes(name, raw)
    x = np.random.default_rng(0).standard_normal((max(ROWS), K), np.float32)
    for rows in ROWS:
        assert same(linear(x[:rows], ours), linear(x[:rows], theirs)), rows


@pytest.mark.parametrize("name", ["Q2_K", "Q3_K", "Q4_0", "Q4_K", "Q5_1", "Q6_K", "IQ4_XS", "MXFP4"])
def test_rows_that_are_too_long_to_be_unfolded_at_once_are_the_same_in_a_batch(name: str) -> None:
    raw = matrix(name, 33, 2 * 4096 + 256)
    ours = packed(name, raw)
    x = np.random.default_rng(0).standard_normal((100, 2 * 4096 + 256), np.float32)
    alone = np.concatenate([linear(row[None], ours) for row in x])
    for rows in (1, 40, 100):
        assert same(linear(x[:rows], ours), alone[:rows]), rows


@pytest.mark.parametrize("name", BLOCK_TYPES)
def test_they_take_little_more_than_the_file(name: str) -> None:
    raw = matrix(name, 64, 1024)
    assert raw.nbytes <= packed(name, raw).nbytes <= raw.nbytes + 64 * 1024 / 8 / 8


def test_scales_and_minimums_of_four_bits_share_a_byte_as_in_the_file() -> None:
    raw = matrix("Q2_K", 64, 1024)
    assert packed("Q2_K", raw).nbytes == raw.nbytes


@pytest.mark.parametrize("name", BLOCK_TYPES)
def test_rows_go_where_they_are_told_on_any_number_of_threads(name: str) -> None:
    raw = matrix(name, 300)
    places = np.random.default_rng(0).permutation(320)[:300].astype(np.int32)
    alone, together = (PackedBlocks(320, K, name) for _ in range(2))
    for weight in (alone, together):
        weight.load_rows(raw[::-1], places)  # which others take the places of
    alone.load_rows(raw, places)
    together.load_rows(raw, np.sort(places), Threads(3))
    together.load_rows(raw, places, Threads(3))
    assert same(alone.rows(places), packed(name, raw).rows(np.arange(300, dtype=np.int32)))
    every = np.arange(320, dtype=np.int32)
    unsaid = np.setdiff1d(every, places)
    assert same(alone.rows(places), together.rows(places))
    assert not alone.rows(unsaid).any()


@pytest.mark.parametrize("name", ["Q2_K", "Q3_K", "Q4_K", "Q6_K", "IQ4_XS", "Q4_1", "MXFP4"])
def test_columns_of_whole_blocks_stay_blocks(name: str) -> None:
    whole, size = blocks(name, matrix(name)), BLOCK_TYPES[name].columns
    numbers = whole.dequantized(FP32)
    assert whole.cut(Cut(slice(3, 50))).shape == (47, K)
    for columns in (slice(0, size), slice(size, K), slice(0, K), slice(size, 2 * size)):
        part = whole.cut(Cut(slice(3, 50), columns))
        assert isinstance(part, Blocks)
        assert same(part.dequantized(FP32), np.ascontiguousarray(numbers[3:50, columns]))
        assert FORMS[name].cut(columns).blocks == name
    for columns in (slice(0, 16), slice(16, 48), slice(0, K, 2), np.arange(32, 0, -1, dtype=np.int32)):
        part = whole.cut(Cut(slice(3, 50), columns))
        assert isinstance(part, Grouped)
        assert same(part.dequantized(FP32), np.ascontiguousarray(numbers[3:50, columns]))
        assert FORMS[name].cut(columns).blocks == ""


def test_what_does_not_fit_is_refused() -> None:
    weight = PackedBlocks(32, 256, "Q4_K")
    with pytest.raises(ValueError, match="256 columns have rows of 144 bytes"):
        weight.load_rows(np.zeros((32, 128), np.uint8))
    with pytest.raises(ValueError, match="do not fit a weight of 32 rows"):
        weight.load_rows(np.zeros((1, 144), np.uint8), np.array([32], np.int32))
    with pytest.raises(ValueError, match="no whole blocks of 256"):
        PackedBlocks(32, 288, "Q6_K")
