"""The block types of GGUF that stay as they are: integers with a scale for each 32 columns."""

from __future__ import annotations

import numpy as np

from slipway.load.arrays import Array
from slipway.load.gguf.types import GgmlType
from slipway.load.quantized.form import GroupedForm
from slipway.load.quantized.tensors import Grouped

FORMS = {
    "Q4_0": GroupedForm(4, 32),
    "Q4_1": GroupedForm(4, 32, minimums=True),
    "Q5_0": GroupedForm(8, 32),
    "Q5_1": GroupedForm(8, 32, minimums=True),
    "Q8_0": GroupedForm(8, 32),
}
"""Each type's; five bits are held in eight."""
# Codes as one item of 16 bytes, not as 16 items: numpy copies them three times faster.
_QS, _SCALE, _MINIMUM, _FIFTH_BITS = ("qs", "V16"), ("d", "<f2"), ("m", "<f2"), ("qh", "u1", 4)
_RECORDS = {
    "Q4_0": np.dtype([_SCALE, _QS]),
    "Q4_1": np.dtype([_SCALE, _MINIMUM, _QS]),
    "Q5_0": np.dtype([_SCALE, _FIFTH_BITS, _QS]),
    "Q5_1": np.dtype([_SCALE, _MINIMUM, _FIFTH_BITS, _QS]),
    "Q8_0": np.dtype([_SCALE, ("qs", "V32")]),
}
"""A block. Source: ggml/src/ggml-common.h."""


def grouped(kind: GgmlType, raw: Array, shape: tuple[int, int]) -> Grouped:
    """The integers and scales of a matrix, to the bit.

    raw    [n · k / 32 · block_bytes] uint8, whole blocks of a type in `FORMS`
    shape  (n, k)
    """
    form = FORMS[kind.name]
    blocks = raw.view(_RECORDS[kind.name])
    codes = _codes(kind.name, blocks).reshape(shape)
    scales = blocks["d"].reshape(shape[0], -1)
    minimums = blocks["m"].reshape(shape[0], -1) if form.minimums else None
    return Grouped(form.bits, form.group, codes, scales, minimums)


def _codes(name: str, blocks: Array) -> Array:
    """[n] → [n, 32] uint8 for four bits, int8 for eight."""
    packed = blocks["qs"].copy()
    if name == "Q8_0":
        return packed.view(np.int8).reshape(-1, 32)
    low = packed.view(np.uint8)
    high = low >> np.uint8(4)
    low &= np.uint8(15)
    halves = np.empty((len(blocks), 2), packed.dtype)
    halves[:, 0], halves[:, 1] = low.view(packed.dtype), high.view(packed.dtype)
    codes = halves.view(np.uint8)
    if name in ("Q4_0", "Q4_1"):
        return codes
    codes |= np.unpackbits(blocks["qh"], axis=1, bitorder="little") << np.uint8(4)
    if name == "Q5_0":
        codes -= 16
    return codes.view(np.int8)
