"""Decoders of the K types: 256 weights a block, in 8 or 16 groups with quantized scales.

Conventions as in `simple`. Source: ggml/src/ggml-quants.c.
"""

from __future__ import annotations

import numpy as np

from slipway.load.gguf.blocks import SUPER, Blocks, Floats, Integers, bits, floats, nibbles, scaled

_PAIRS = (0, 2, 4, 6)
_EACH_BIT = tuple(range(8))


def _scales_and_minima(packed: Integers) -> tuple[Integers, Integers]:
    """Eight 6-bit scales and minima from 12 bytes: [n, 12] → two of [n, 8].

    The first four of each lie in the low six bits of bytes 0–3 and 4–7; the others have their low
    four bits in bytes 8–11 and their high two on top of the first ones.
    """
    first, second, rest = packed[:, 0:4], packed[:, 4:8], packed[:, 8:12]
    scales = np.concatenate([first & 63, (rest & 15) | ((first >> 2) & 48)], axis=1)
    minima = np.concatenate([second & 63, (rest >> 4) | ((second >> 2) & 48)], axis=1)
    return scales, minima


def _group_scales(b: Blocks) -> tuple[Floats, Floats]:
    scales, minima = _scales_and_minima(b["scales"])
    return floats(b["d"]) * floats(scales), -(floats(b["dmin"]) * floats(minima))


def q2_k(b: Blocks) -> Floats:
    scales = floats(b["d"]) * floats(b["scales"] & 15)
    minima = floats(b["dmin"]) * floats(b["scales"] >> 4)
    return scaled(bits(b["qs"], _PAIRS, 3, 32), scales, -minima)


def q3_k(b: Blocks) -> Floats:
    packed = b["scales"]
    scales = nibbles(packed[:, :8], 8) | (bits(packed[:, 8:], _PAIRS, 3, 4) << np.uint8(4))
    low = bits(b["qs"], _PAIRS, 3, 32).view(np.int8)
    absent = bits(b["hmask"], _EACH_BIT, 1, 32) ^ np.uint8(1)
    q = low - (absent << np.uint8(2)).view(np.int8)
    return scaled(q, floats(b["d"]) * floats(scales.view(np.int8) - np.int8(32)))


def q4_k(b: Blocks) -> Floats:
    return scaled(nibbles(b["qs"], 32), *_group_scales(b))


def q5_k(b: Blocks) -> Floats:
    high = bits(b["qh"], _EACH_BIT, 1, 32) << np.uint8(4)
    return scaled(nibbles(b["qs"], 32) | high, *_group_scales(b))


def q6_k(b: Blocks) -> Floats:
    high = bits(b["qh"], _PAIRS, 3, 32) << np.uint8(4)
    q = (nibbles(b["ql"], 64) | high).view(np.int8) - np.int8(32)
    return scaled(q.reshape(-1, SUPER), floats(b["d"]) * floats(b["scales"]))
