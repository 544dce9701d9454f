"""Rows as files have them: every stored type, scales by group and by block, columns in another order."""

from __future__ import annotations

import numpy as np
import pytest

from slipway_kernels.cpu import Packed, Threads
from slipway_kernels.cpu.arrays import BF16, E4M3, E5M2, E8M0, FP16, FP32, INT8, UINT8, DType, is_float
from slipway_kernels.cpu.sources import Source, cast, converted, rounded

N, K = 150, 333
FLOATS = (FP32, FP16, BF16, E4M3, E5M2)


def drawn(n: int = N, k: int = K) -> np.ndarray:
    return np.random.default_rng(n + k).standard_normal((n, k), np.float32)


@pytest.mark.parametrize("dtype", [*FLOATS, E8M0])
def test_numpy_calls_few_of_them_floats_and_all_are(dtype: DType) -> None:
    assert is_float(dtype)
    assert not is_float(INT8)


@pytest.mark.parametrize("target", [FP32, BF16, FP16])
@pytest.mark.parametrize("stored", [*FLOATS, np.dtype(np.float64)])
def test_a_cast_is_that_of_ml_dtypes_in_any_shape(stored: DType, target: DType) -> None:
    numbers = drawn().astype(stored)
    expected = numbers.astype(np.float32).astype(target)
    for given, wanted in ((numbers, expected), (numbers[3], expected[3]), (numbers[2, 5], expected[2, 5])):
        found = cast(np.asarray(given), target)
        assert found.dtype == target
        assert np.array_equal(found.astype(np.float32), np.asarray(wanted).astype(np.float32))


@pytest.mark.parametrize("threads", [None, 1, 3])
@pytest.mark.parametrize("kind", [UINT8, INT8, E4M3])
@pytest.mark.parametrize("block", [(1, 32), (1, K), (64, 100)])
def test_scales_are_for_rows_and_columns_of_their_block(
    block: tuple[int, int], kind: DType, threads: int | None
) -> None:
    rows, columns = block
    draw = np.random.default_rng(0)
    numbers = draw.integers(0, 16, (N, K)).astype(kind)
    scales = draw.random((-(-N // rows), -(-K // columns)), np.float32)
    wide = np.repeat(np.repeat(scales, rows, 0)[:N], columns, 1)[:, :K]
    shift = np.float32(8 if kind == UINT8 else 0)
    expected = (numbers.astype(np.float32) - shift) * wide
    pool = None if threads is None else Threads(threads)
    source = Source(numbers, scales, block=block)
    assert np.array_equal(converted(source, FP32, pool), expected)
    packed = Packed(N, K, "bf16")
    packed.load_rows(source, threads=pool)
    assert np.array_equal(packed.rows(np.arange(N)), expected.astype(BF16).astype(np.float32))


def test_columns_go_back_to_where_they_were() -> None:
    order = np.random.default_rng(1).permutation(K).astype(np.int32)
    codes = np.random.default_rng(2).integers(-128, 128, (N, K)).astype(np.int8)
    scales = np.random.default_rng(3).random((N, K // 37), np.float32)
    minimums = np.random.default_rng(4).random(scales.shape, np.float32)
    stored = codes.astype(np.float32) * np.repeat(scales, 37, 1) + np.repeat(minimums, 37, 1)
    expected = np.empty_like(stored)
    expected[:, order] = stored
    assert np.array_equal(converted(Source(codes, scales, minimums, (1, 37), order), FP32), expected)


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(ValueError, match=r"Scales of shape \[2, 3\] do not fit a matrix of 4 rows"):
        converted(Source(drawn(4, 64), np.ones((2, 3), np.float32), block=(1, 32)), FP32)
    with pytest.raises(ValueError, match="64 columns cannot be rounded to uint8 in groups of 48"):
        rounded(Source(drawn(4, 64)), UINT8, 48, through=FP32)
    with pytest.raises(ValueError, match="An array of int32 holds no floats"):
        cast(np.arange(3, dtype=np.int32), BF16)
