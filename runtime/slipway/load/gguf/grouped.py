"""The block types of GGUF that stay as they are: integers with a scale for each 32 columns, or each 16.

Layouts and formulas are ggml's (ggml/src/ggml-common.h, ggml-quants.c).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import numpy as np

from slipway.load.arrays import FP32, UINT8, Array, Floats
from slipway.load.quantized.form import GroupedForm
from slipway.load.quantized.tensors import Blocks, Grouped

_FORMS = {
    "Q4_0": GroupedForm(4, 32),
    "Q4_1": GroupedForm(4, 32, minimums=True),
    "Q5_0": GroupedForm(8, 32),
    "Q5_1": GroupedForm(8, 32, minimums=True),
    "Q8_0": GroupedForm(8, 32),
    "Q2_K": GroupedForm(4, 16, minimums=True, scales=FP32),
    "Q3_K": GroupedForm(4, 16, scales=FP32),
    "Q4_K": GroupedForm(4, 32, minimums=True, scales=FP32),
    "Q5_K": GroupedForm(8, 32, minimums=True, scales=FP32),
    "Q6_K": GroupedForm(8, 16, scales=FP32),
    "IQ4_NL": GroupedForm(8, 32),
    "IQ4_XS": GroupedForm(8, 32, scales=FP32),
    "MXFP4": GroupedForm(8, 32, scales=FP32),
}
FORMS = {name: replace(form, blocks=name) for name, form in _FORMS.items()}
"""Each type's, as who does not pack the blocks themselves holds it: two and three bits in four; five and six,
and four that number the entries of a table, in eight. A scale is in fp32 where it is the product of two."""

_IQ4 = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.int8)
_E2M1 = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], np.int8)
"""Twice the numbers of four bits that MXFP4 has."""
# Codes as one item of 16 bytes, not as 16 items: numpy copies them three times faster.
_QS, _SCALE, _MINIMUM, _FIFTH_BITS = ("qs", "V16"), ("d", "<f2"), ("m", "<f2"), ("qh", "u1", 4)
_K = [_SCALE, _MINIMUM, ("scales", "u1", 12)]
_TWOS = ("qs", "u1", (2, 32))
_RECORDS = {
    "Q4_0": np.dtype([_SCALE, _QS]),
    "Q4_1": np.dtype([_SCALE, _MINIMUM, _QS]),
    "Q5_0": np.dtype([_SCALE, _FIFTH_BITS, _QS]),
    "Q5_1": np.dtype([_SCALE, _MINIMUM, _FIFTH_BITS, _QS]),
    "Q8_0": np.dtype([_SCALE, ("qs", "V32")]),
    "Q2_K": np.dtype([("scales", "u1", 16), _TWOS, _SCALE, _MINIMUM]),
    "Q3_K": np.dtype([("hmask", "u1", 32), _TWOS, ("scales", "u1", 12), _SCALE]),
    "Q4_K": np.dtype([*_K, ("qs", "u1", (4, 32))]),
    "Q5_K": np.dtype([*_K, ("qh", "u1", 32), ("qs", "u1", (4, 32))]),
    "Q6_K": np.dtype([("ql", "u1", (2, 2, 32)), ("qh", "u1", (2, 32)), ("scales", "i1", 16), _SCALE]),
    "IQ4_NL": np.dtype([_SCALE, _QS]),
    "IQ4_XS": np.dtype([_SCALE, ("scales_h", "<u2"), ("scales_l", "u1", 4), ("qs", "V16", 8)]),
    "MXFP4": np.dtype([("e", "u1"), _QS]),
}
"""A block."""


class _Parts(NamedTuple):
    """Of n blocks: codes [n, columns], scales and, where there are any, minimums [n, groups]."""

    codes: Array
    scales: Array
    minimums: Array | None = None


def blocks(name: str, rows: Array) -> Blocks:
    """A matrix of a type in `FORMS`; rows [n, bytes of a row] uint8."""
    return Blocks(name, rows, partial(grouped, name))


def grouped(name: str, raw: Array, shape: tuple[int, int]) -> Grouped:
    """The integers and scales of a matrix, to the bit.

    raw    [n · k / block_size · block_bytes] uint8, whole blocks of a type in `FORMS`
    shape  (n, k)
    """
    form = FORMS[name]
    parts = _PARTS.get(name, _small)(name, raw.view(_RECORDS[name]))
    minimums = None if parts.minimums is None else parts.minimums.reshape(shape[0], -1)
    scales = parts.scales.reshape(shape[0], -1)
    return Grouped(form.bits, form.group, parts.codes.reshape(shape), scales, minimums)


def _small(name: str, blocks: Array) -> _Parts:
    """Blocks of 32 columns: codes uint8 for four bits, int8 for eight."""
    minimums = blocks["m"] if FORMS[name].minimums else None
    if name == "Q8_0":
        return _Parts(blocks["qs"].copy().view(np.int8).reshape(-1, 32), blocks["d"])
    codes = _halves(blocks["qs"])
    if name in ("Q5_0", "Q5_1"):
        codes |= np.unpackbits(blocks["qh"], axis=1, bitorder="little") << np.uint8(4)
        if name == "Q5_0":
            codes -= 16
        codes = codes.view(np.int8)
    return _Parts(codes, blocks["d"], minimums)


def _halves(packed: Array) -> Array:
    """[*, V16] → [*, 32] uint8: the low halves of all bytes, then the high ones."""
    low = np.ascontiguousarray(packed).view(np.uint8)
    high = low >> np.uint8(4)
    low = low & np.uint8(15)
    halves = np.empty((packed.size, 2), packed.dtype)
    halves[:, 0], halves[:, 1] = low.view(packed.dtype).reshape(-1), high.view(packed.dtype).reshape(-1)
    return halves.view(np.uint8).reshape(*packed.shape, 32)


def _tabled(table: Array, packed: Array) -> Array:
    """[*, V16] → [*, 32] int8: the entries that four bits number."""
    return table[_halves(packed)]


def _twos(packed: Array) -> Array:
    """[n, 2, 32] → [n, 8, 32] uint8: of each 32 bytes the lowest two bits of all, then the next ones."""
    shifts = np.array([0, 2, 4, 6], UINT8)[:, None]
    codes: Array = packed[:, :, None, :] >> shifts & 3  # [n, 2, 4, 32]
    return codes.reshape(-1, 8, 32)


def _two(name: str, blocks: Array) -> _Parts:
    """Q2_K: sixteen groups of 16 columns, with scales and minimums of four bits."""
    packed = blocks["scales"]
    scales = (packed & 15) * blocks["d"][:, None].astype(np.float32)
    minimums = (packed >> 4) * -blocks["m"][:, None].astype(np.float32)
    return _Parts(_twos(blocks["qs"]), scales, minimums)


def _three(name: str, blocks: Array) -> _Parts:
    """Q3_K: sixteen groups of 16 columns, with scales of six bits."""
    packed = blocks["scales"]
    low = np.concatenate((packed[:, :8] & 15, packed[:, :8] >> 4), 1)
    high = (packed[:, None, 8:] >> np.array([0, 2, 4, 6], UINT8)[:, None] & 3).reshape(-1, 16)
    scales: Floats = ((low | high << 4).astype(np.float32) - 32) * blocks["d"][:, None].astype(np.float32)
    thirds = blocks["hmask"][:, None, :] >> np.arange(8, dtype=np.uint8)[:, None] & 1  # [n, 8, 32]
    # A code of three bits means itself less 4, one of four less 8.
    return _Parts((_twos(blocks["qs"]) | thirds << 2) + np.uint8(4), scales)


def _k(name: str, blocks: Array) -> _Parts:
    """Q4_K and Q5_K: eight groups of 32 columns, with scales and minimums of six bits."""
    packed = blocks["scales"]
    low, high = packed[:, :8] & 63, packed[:, 8:]
    tops = packed[:, :8] >> 6 << 4
    scales = np.concatenate((low[:, :4], high & 15 | tops[:, :4]), 1).astype(np.float32)
    minimums = np.concatenate((low[:, 4:], high >> 4 | tops[:, 4:]), 1).astype(np.float32)
    scales *= blocks["d"][:, None].astype(np.float32)
    minimums *= -blocks["m"][:, None].astype(np.float32)
    quarters = blocks["qs"]  # [n, 4, 32]
    codes = np.stack((quarters & 15, quarters >> 4), 2)  # [n, 4, 2, 32]
    if name == "Q5_K":
        bits = blocks["qh"][:, None, :] >> np.arange(8, dtype=np.uint8)[:, None] & 1  # [n, 8, 32]
        codes = (codes.reshape(-1, 8, 32) | bits << 4).view(np.int8)
    return _Parts(codes, scales, minimums)


def _six(name: str, blocks: Array) -> _Parts:
    """Q6_K: sixteen groups of 16 columns, with scales of eight bits."""
    low, high = blocks["ql"], blocks["qh"]  # [n, 2, 2, 32], [n, 2, 32]
    fours = np.stack((low & 15, low >> 4), 2)  # [n, 2, 2, 2, 32]: halves, nibbles, rows of 32
    shifts = np.array([[0, 2], [4, 6]], UINT8)[:, :, None]
    twos = high[:, :, None, None, :] >> shifts & 3
    codes = (fours | twos << 4).view(np.int8) - np.int8(32)
    return _Parts(codes, blocks["scales"] * blocks["d"][:, None].astype(np.float32))


def _iq4_nl(name: str, blocks: Array) -> _Parts:
    return _Parts(_tabled(_IQ4, blocks["qs"]), blocks["d"])


def _iq4_xs(name: str, blocks: Array) -> _Parts:
    """Eight groups of 32 columns, with scales of six bits."""
    eight = np.arange(8, dtype=np.uint16)
    low = np.repeat(blocks["scales_l"], 2, 1) >> (eight % 2 * 4).astype(np.uint8) & 15
    high = (blocks["scales_h"][:, None] >> 2 * eight & 3).astype(np.uint8)
    scales: Floats = ((low | high << 4).astype(np.float32) - 32) * blocks["d"][:, None].astype(np.float32)
    return _Parts(_tabled(_IQ4, blocks["qs"]), scales)


def _mxfp4(name: str, blocks: Array) -> _Parts:
    """The scale is half of the block's power of two, because `_E2M1` holds doubled numbers."""
    return _Parts(_tabled(_E2M1, blocks["qs"]), np.ldexp(np.float32(1), blocks["e"].astype(np.int32) - 128))


_PARTS: dict[str, Callable[[str, Array], _Parts]] = {
    "Q2_K": _two,
    "Q3_K": _three,
    **dict.fromkeys(("Q4_K", "Q5_K"), _k),
    "Q6_K": _six,
    "IQ4_NL": _iq4_nl,
    "IQ4_XS": _iq4_xs,
    "MXFP4": _mxfp4,
}
"""The others are `_small`."""
