"""Every type that the gguf library dequantizes is read, chunk by chunk, as the library reads it whole."""

from __future__ import annotations

import gguf
import gguf.quants
import numpy as np
import pytest

from packed_forms import BY_NAME, SCALES
from slipway.load.arrays import BF16, FP32
from slipway.load.errors import LoadError
from slipway.load.gguf import dequantize
from slipway.load.gguf.grouped import FORMS, grouped
from slipway.load.gguf.types import TYPES, GgmlType
from slipway_kernels.cpu import PackedCodes

QUANTIZED = sorted(kind.name for kind in gguf.quants._type_traits)
PLAIN = ["F32", "F16"]


def random_blocks(name: str, rows: int, blocks: int) -> np.ndarray:
    """Random bytes, with the scales made finite: [rows, blocks · block_bytes]."""
    kind = BY_NAME[name]
    raw = np.random.default_rng(7).integers(0, 256, (rows * blocks, kind.block_bytes), np.uint8)
    for at in SCALES.get(name, {}).values():
        scales = np.random.default_rng(8).normal(0, 1, rows * blocks).astype(np.float16)
        raw[:, at : at + 2] = scales[:, None].view(np.uint8)
    return raw.reshape(rows, -1)


@pytest.mark.parametrize(("number", "kind"), TYPES.items())
def test_numbers_and_block_sizes_equal_the_librarys(number: int, kind: GgmlType) -> None:
    theirs = gguf.GGMLQuantizationType(number)
    assert kind == (theirs.name, *gguf.GGML_QUANT_SIZES[theirs])


@pytest.mark.parametrize("name", QUANTIZED + PLAIN)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_weights_equal_the_librarys(name: str) -> None:
    kind = BY_NAME[name]
    if name in ("F32", "F16"):
        values = np.random.default_rng(1).normal(0, 1, (5, 64))
        raw = values.astype(np.float32 if name == "F32" else np.float16).view(np.uint8)
    else:
        raw = random_blocks(name, 5, 4)
    expected = gguf.dequantize(raw, gguf.GGMLQuantizationType[name])
    flat = raw.reshape(-1)
    found = dequantize.dequantize(kind, flat, expected.shape, FP32)
    np.testing.assert_array_equal(found.astype(np.float32), expected)
    if name in QUANTIZED:
        bfloat16 = dequantize.dequantize(kind, flat, expected.shape, BF16)
        assert bfloat16.dtype == BF16
        np.testing.assert_array_equal(bfloat16.astype(np.float32), expected.astype(BF16).astype(np.float32))


@pytest.mark.parametrize("name", FORMS)
def test_types_that_stay_packed_are_their_numbers_to_the_bit(name: str) -> None:
    """In the parts that they are taken apart to, and in what products multiply by."""
    form, kind = FORMS[name], BY_NAME[name]
    raw = random_blocks(name, 40, 512 // kind.block_size)
    if name == "MXFP4":  # exponents whose numbers are finite
        raw.reshape(-1, kind.block_bytes)[:, 0] %= 250
    expected = gguf.dequantize(raw, gguf.GGMLQuantizationType[name])
    parts = grouped(name, raw.reshape(-1), (40, 512))
    assert np.array_equal(parts.dequantized(FP32), expected)
    wide = form.scales == FP32
    packed = PackedCodes(40, 512, form.bits, form.group, minimums=form.minimums, wide_scales=wide)
    packed.load_rows(parts.codes, parts.scales, parts.minimums)
    assert np.array_equal(packed.rows(np.arange(40, dtype=np.int32)), expected)


def test_a_tensor_longer_than_a_chunk_is_the_same_as_its_rows() -> None:
    kind = BY_NAME["Q6_K"]
    rows, columns = 7, 3 * dequantize.CHUNK // 8
    raw = random_blocks("Q6_K", rows, columns // 256)
    assert rows * columns > 2 * dequantize.CHUNK
    whole = dequantize.dequantize(kind, raw.reshape(-1), (rows, columns), FP32)
    for row in range(rows):
        alone = dequantize.dequantize(kind, raw[row], (columns,), FP32)
        assert np.array_equal(whole[row], alone)


def test_a_type_that_nobody_decodes_is_refused_with_the_alternatives() -> None:
    with pytest.raises(LoadError, match=r"type Q8_K cannot be read\.") as raised:
        dequantize.dequantize(BY_NAME["Q8_K"], np.zeros(292, np.uint8), (256,), FP32)
    assert raised.value.code == "UnsupportedFormat"
