"""Decoders of the IQ types: groups of weights are points of a codebook, signed and scaled.

Conventions as in `simple`. Source: ggml/src/ggml-quants.c.
"""

from __future__ import annotations

import numpy as np

from slipway.load.gguf.blocks import Blocks, Floats, Integers, bits, floats, nibbles, scaled
from slipway.load.gguf.codebooks import points

_LEVELS = np.array(
    [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], dtype=np.float32
)
"""The 16 values of the non-linear 4-bit types."""
_SIGN_FIELDS = (0, 7, 14, 21)
_HALF = np.float32(0.5)
_SHIFT = np.float32(0.125)
"""By which the 1-bit types move a whole group up or down."""


def _signs(octets: Integers) -> Floats:
    """±1 for each bit, -1 where it is set: [n, k] uint8 → [n, 8k]."""
    return 1 - 2 * np.unpackbits(octets, axis=1, bitorder="little").astype(np.float32)


def _even_signs(seven: Integers) -> Floats:
    """Signs of eight weights from seven bits: the eighth makes the number of -1 even."""
    low = seven.astype(np.uint8)
    parity = low ^ (low >> 4)
    parity ^= parity >> 2
    parity ^= parity >> 1
    return _signs(low | ((parity & 1) << np.uint8(7)))


def _spread(scale: Floats, book: str, index: Integers, signs: Floats) -> Floats:
    """scale · point · sign: scale [n, s], index [n, k] into the codebook, signs [n, 256]."""
    weights = points(book)[index].reshape(*scale.shape, -1)
    weights *= scale[..., None]
    return weights.reshape(len(index), -1) * signs


def _fine(b: Blocks, steps: Integers, unit: float) -> Floats:
    """Scales in half steps: d · (1/2 + step) · unit."""
    return floats(b["d"]) * (_HALF + floats(steps)) * np.float32(unit)


def iq2_xxs(b: Blocks) -> Floats:
    words = b["qs"].reshape(len(b), -1, 2)  # [n, 8, (points, signs and scale)]
    index = np.ascontiguousarray(words[..., 0]).view(np.uint8)
    signs = _even_signs(bits(words[..., 1], _SIGN_FIELDS, 127, 1))
    return _spread(_fine(b, words[..., 1] >> 28, 0.25), "IQ2_XXS", index, signs)


def iq2_xs(b: Blocks) -> Floats:
    qs = b["qs"]
    scale = _fine(b, nibbles(b["scales"], 1), 0.25)
    return _spread(scale, "IQ2_XS", qs & np.uint16(511), _even_signs(qs >> 9))


def iq2_s(b: Blocks) -> Floats:
    high = bits(b["qh"], (0, 2, 4, 6), 3, 1).astype(np.uint16) << 8
    scale = _fine(b, nibbles(b["scales"], 1), 0.25)
    return _spread(scale, "IQ2_S", b["qs"] | high, _signs(b["signs"]))


def iq3_xxs(b: Blocks) -> Floats:
    words = b["scales"]
    signs = _even_signs(bits(words, _SIGN_FIELDS, 127, 1))
    return _spread(_fine(b, words >> 28, 0.5), "IQ3_XXS", b["qs"], signs)


def iq3_s(b: Blocks) -> Floats:
    high = bits(b["qh"], tuple(range(8)), 1, 1).astype(np.uint16) << 8
    scale = floats(b["d"]) * floats(1 + 2 * nibbles(b["scales"], 1))
    return _spread(scale, "IQ3_S", b["qs"] | high, _signs(b["signs"]))


def _moved(scale: Floats, index: Integers, down: Integers) -> Floats:
    """scale · (point ± 1/8): index [n, 32], scale and down [n, s], a group of weights each."""
    shift = np.where(down, -_SHIFT, _SHIFT)
    weights = points("IQ1_S")[index].reshape(*shift.shape, -1) + shift[..., None]
    weights = weights.reshape(*scale.shape, -1)
    weights *= scale[..., None]
    return weights.reshape(len(index), -1)


def iq1_s(b: Blocks) -> Floats:
    qh = b["qh"]
    index = b["qs"] | (bits(qh, (0, 3, 6, 9), 7, 1) << np.uint16(8))
    scale = floats(b["d"]) * floats(2 * ((qh >> 12) & 7) + 1)
    return _moved(scale, index, qh & 0x8000)


def iq1_m(b: Blocks) -> Floats:
    words = b["scales"]  # [n, 4]; the top four bits of each are a quarter of the fp16 scale
    quarters = (words & 0xF000) >> np.array([12, 8, 4, 0], dtype=np.uint16)
    d = np.bitwise_or.reduce(quarters, axis=1).view(np.float16)
    scale = floats(d) * floats(2 * bits(words, (0, 3, 6, 9), 7, 1) + 1)
    high = nibbles(b["qh"], 1).astype(np.uint16)
    return _moved(scale, b["qs"] | ((high & 7) << 8), high & 8)


def iq4_nl(b: Blocks) -> Floats:
    return scaled(_LEVELS[nibbles(b["qs"], 16)], floats(b["d"]))


def iq4_xs(b: Blocks) -> Floats:
    high = bits(b["scales_h"][:, None], tuple(range(0, 16, 2)), 3, 1).astype(np.uint8)
    scales = (nibbles(b["scales_l"], 1) | (high << 4)).view(np.int8) - np.int8(32)
    return scaled(_LEVELS[nibbles(b["qs"], 16)], floats(b["d"]) * floats(scales))
