"""What one layer's tensors mean, against the definition of each format and against packers."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from quantize import awq, fp8, gptq, int8, packed, rounded, words

from random_codes import random
from slipway.load.arrays import BF16, E4M3, FP16, FP32, INT8, UINT8, DType
from slipway.load.quantized.awq import AwqLayout
from slipway.load.quantized.compressed import WHOLE_TENSOR, PackedLayout
from slipway.load.quantized.form import GroupedForm, ScaledForm
from slipway.load.quantized.gptq import GptqLayout
from slipway.load.quantized.layout import Layout
from slipway.load.quantized.scaled import ScaledLayout
from slipway.load.quantized.tensors import Grouped, Scaled
from tensor_files import Tensors, same

SHAPES = [(8, 64, 32), (24, 128, 128), (40, 256, 64), (16, 96, -1)]


def check(layout: Layout, pieces: Tensors, expected: np.ndarray) -> Grouped | Scaled:
    """The layout gives exactly these weights [n, k] fp32, in the form that it announces."""
    form, matrix = layout.form("layer", pieces), layout.read("layer", pieces)
    assert {piece for piece, needed in layout.wanted.items() if needed} <= set(pieces) <= set(layout.wanted)
    assert matrix.shape == expected.shape
    assert same(matrix.dequantized(FP32), expected)
    if isinstance(matrix, Grouped):
        assert isinstance(form, GroupedForm)
        assert (form.bits, form.group) == (matrix.bits, matrix.group)
        assert form.scales == matrix.scales.dtype
        assert form.minimums == (matrix.minimums is not None)
        assert form.order == (b"" if matrix.order is None else matrix.order.tobytes())
        assert matrix.codes.dtype == (UINT8 if matrix.bits == 4 else INT8)
    else:
        assert form == ScaledForm(matrix.values.dtype, matrix.block, layout.static)
        assert matrix.scales.dtype == FP32
    return matrix


def test_a_word_of_awq_holds_even_columns_before_odd_ones() -> None:
    word = np.array([[0x75316420]], np.int32)  # from the lowest nibble up: 0 2 4 6 1 3 5 7
    pieces = {"qweight": word, "qzeros": np.zeros((1, 1), np.int32), "scales": np.ones((1, 8), np.float32)}
    found = AwqLayout(-1).read("layer", pieces).dequantized(FP32)
    assert found[:, 0].tolist() == [0, 1, 2, 3, 4, 5, 6, 7]


def test_a_word_of_gptq_holds_rows_in_order_and_zeros_less_one() -> None:
    word = np.array([[0x76543210]], np.int32)
    zeros = np.array([[0x0F]], np.int32)  # column 0: 15 + 1 is 0 again; column 1: 0 + 1
    pieces = {"qweight": np.repeat(word, 8, axis=1), "qzeros": zeros, "scales": np.ones((1, 8), np.float32)}
    found = GptqLayout(4, -1, symmetric=False).read("layer", pieces).dequantized(FP32)
    assert found[0].tolist() == [0, 1, 2, 3, 4, 5, 6, 7]
    assert found[1].tolist() == [-1, 0, 1, 2, 3, 4, 5, 6]
    newer = GptqLayout(4, -1, symmetric=False, zeros_less_one=False).read("layer", pieces)
    assert newer.dequantized(FP32)[0].tolist() == [-15, -14, -13, -12, -11, -10, -9, -8]


def test_a_word_of_compressed_tensors_holds_signed_columns_plus_eight() -> None:
    pieces = {
        "weight_packed": np.array([[0x76543210]], np.int32),
        "weight_scale": np.ones((1, 1), np.float32),
        "weight_shape": np.array([1, 7]),
    }
    found = PackedLayout(4, -1).read("layer", pieces).dequantized(FP32)
    assert found.tolist() == [[-8, -7, -6, -5, -4, -3, -2]]


@pytest.mark.parametrize(("n", "k", "group"), SHAPES)
def test_awq_is_read_exactly(n: int, k: int, group: int) -> None:
    quantized = random(n, k, group)
    check(AwqLayout(group), awq(quantized), quantized.weights())


def test_awq_without_zero_points_means_eight() -> None:
    quantized = random(16, 64, 32, symmetric=True)
    pieces = awq(quantized)
    check(AwqLayout(32, zero_point=False), pieces, quantized.weights())
    del pieces["qzeros"]
    matrix = check(AwqLayout(32, zero_point=False), pieces, quantized.weights())
    assert isinstance(matrix, Grouped)
    assert matrix.minimums is None


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("v2", [False, True], ids=["gptq", "gptq_v2"])
@pytest.mark.parametrize("symmetric", [False, True], ids=["zeros", "symmetric"])
@pytest.mark.parametrize("act_order", [False, True], ids=["in-order", "act-order"])
@pytest.mark.parametrize(("n", "k", "group"), SHAPES)
def test_gptq_is_read_exactly(
    n: int, k: int, group: int, act_order: bool, symmetric: bool, v2: bool, bits: int
) -> None:
    quantized = random(n, k, group, bits=bits, symmetric=symmetric, act_order=act_order)
    layout = GptqLayout(bits, group, symmetric, act_order, zeros_less_one=not v2)
    matrix = check(layout, gptq(quantized, v2=v2), quantized.weights())
    assert isinstance(matrix, Grouped)
    assert (matrix.minimums is None) == symmetric
    # One group is in order whatever the order.
    assert (matrix.order is not None) == (act_order and -1 < group < k)


def test_gptq_without_act_order_needs_no_groups() -> None:
    quantized = random(16, 64, 32)
    pieces = gptq(quantized)
    del pieces["g_idx"]
    check(GptqLayout(4, 32, symmetric=False), pieces, quantized.weights())


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("symmetric", [False, True], ids=["zeros", "symmetric"])
@pytest.mark.parametrize("act_order", [False, True], ids=["in-order", "act-order"])
@pytest.mark.parametrize(("n", "k", "group"), [*SHAPES, (9, 70, -1), (7, 15, 5)])
def test_packed_compressed_tensors_are_read_exactly(
    n: int, k: int, group: int, act_order: bool, symmetric: bool, bits: int
) -> None:
    quantized = random(n, k, group, bits=bits, symmetric=symmetric, act_order=act_order)
    pieces = packed(quantized, symmetric=symmetric, act_order=act_order)
    check(PackedLayout(bits, group, symmetric, act_order), pieces, quantized.weights())


def test_one_scale_may_be_for_the_whole_matrix() -> None:
    draw = np.random.default_rng(0)
    codes = draw.integers(256, size=(12, 40))
    scale = np.array([0.25], BF16)
    pieces = {"weight_packed": words(codes, 8), "weight_scale": scale, "weight_shape": np.array([12, 40])}
    check(PackedLayout(8, WHOLE_TENSOR), pieces, (codes - 128).astype(np.float32) * np.float32(0.25))


def test_integers_that_are_not_packed_may_have_zero_points() -> None:
    draw = np.random.default_rng(0)
    codes = draw.integers(-128, 128, (12, 40), np.int8)
    zeros, scales = draw.integers(-128, 128, (12, 1), np.int8), draw.random((12, 1)).astype(FP16)
    pieces = {"weight": codes, "weight_scale": scales, "weight_zero_point": zeros}
    expected = (codes.astype(np.float32) - zeros.astype(np.float32)) * scales.astype(np.float32)
    check(PackedLayout(8, -1, symmetric=False, packed=False), pieces, expected)


def test_int8_with_int8_activations_keeps_its_scales_by_row() -> None:
    draw = np.random.default_rng(0)
    pieces = int8(draw.standard_normal((24, 64), np.float32))
    expected = pieces["weight"].astype(np.float32) * pieces["weight_scale"]
    matrix = check(ScaledLayout(floats=False), pieces, expected)
    assert isinstance(matrix, Scaled)
    assert matrix.scales.shape == (24,)
    check(ScaledLayout(floats=False, static=True), pieces | {"input_scale": np.ones(1, np.float32)}, expected)


def dequantized_blocks(values: np.ndarray, scales: np.ndarray, rows: int, columns: int) -> np.ndarray:
    """Number by number."""
    expected = np.empty(values.shape, np.float32)
    for i in range(values.shape[0]):
        for j in range(values.shape[1]):
            expected[i, j] = np.float32(values[i, j]) * np.float32(scales[i // rows, j // columns])
    return expected


@pytest.mark.parametrize("scheme", ["dynamic", "static"])
@pytest.mark.parametrize("by", ["tensor", "row"])
def test_fp8_is_read_exactly(by: str, scheme: str) -> None:
    draw = np.random.default_rng(0)
    pieces = fp8(draw.standard_normal((24, 64), np.float32), by)
    if scheme == "static":
        pieces["input_scale"] = np.array(0.5, np.float32)
    expected = pieces["weight"].astype(np.float32) * pieces["weight_scale"]
    matrix = check(ScaledLayout(static=scheme == "static"), pieces, expected)
    assert isinstance(matrix, Scaled)
    assert matrix.scales.shape == (1 if by == "tensor" else 24,)


@pytest.mark.parametrize("scale_dtype", [FP32, BF16, np.dtype("float8_e8m0fnu")])
def test_fp8_by_blocks_is_read_exactly_where_blocks_are_cut_off(scale_dtype: DType) -> None:
    draw = np.random.default_rng(0)
    pieces = fp8(draw.standard_normal((130, 200), np.float32), "block")
    scales = (2.0 ** np.log2(pieces["weight_scale_inv"]).round()).astype(scale_dtype)
    expected = dequantized_blocks(pieces["weight"], scales, 128, 128)
    named = {**pieces, "weight_scale_inv": scales}
    check(ScaledLayout(block=(128, 128), scale="weight_scale_inv"), named, expected)
    found = {"weight": pieces["weight"], "weight_scale": scales}
    check(ScaledLayout(True, block=(128, 128)), found, expected)


def test_fp8_by_groups_of_a_row_is_blocks_of_one_row() -> None:
    draw = np.random.default_rng(0)
    values, scales = draw.standard_normal((6, 64), np.float32).astype(E4M3), draw.random((6, 2), np.float32)
    expected = dequantized_blocks(values, scales, 1, 32)
    check(ScaledLayout(True, block=(1, 32)), {"weight": values, "weight_scale": scales}, expected)


@settings(max_examples=60)
@given(
    n=st.integers(1, 6),
    groups=st.integers(1, 4),
    group=st.sampled_from([8, 16, 32]),
    bits=st.sampled_from([4, 8]),
    symmetric=st.booleans(),
    seed=st.integers(0, 2**31),
)
def test_what_was_rounded_and_packed_is_read_back(
    n: int, groups: int, group: int, bits: int, symmetric: bool, seed: int
) -> None:
    draw = np.random.default_rng(seed)
    quantized = rounded(
        draw.standard_normal((8 * n, groups * group), np.float32),
        bits,
        group,
        symmetric=symmetric,
        act_order=True,
    )
    expected = quantized.weights()
    read = GptqLayout(bits, group, symmetric, act_order=True).read("layer", gptq(quantized))
    assert same(read.dequantized(FP32), expected)
    pieces = packed(quantized, symmetric=symmetric, act_order=True)
    again = PackedLayout(bits, group, symmetric, act_order=True).read("layer", pieces)
    assert same(again.dequantized(FP32), expected)
    if bits == 4:
        in_order = rounded(draw.standard_normal((8 * n, groups * group), np.float32), 4, group)
        found = AwqLayout(group).read("layer", awq(in_order)).dequantized(FP32)
        assert same(found, in_order.weights())
