"""Decoders of the types with 32 weights (NVFP4: 64) a block, and of the ternary ones.

Each takes blocks as records [n] and returns fp32 weights [n, block_size], with the operations in
ggml's order, so that the result is the same to the bit. Source: ggml/src/ggml-quants.c.
"""

from __future__ import annotations

import numpy as np

from slipway.load.gguf.blocks import Blocks, Floats, Integers, bits, floats, nibbles, scaled

_FP4 = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], dtype=np.float32)
"""Twice the values of E2M1."""


def _fifth_bits(field: Integers) -> Integers:
    """Bit i of each block's 32-bit word, times 16: [n] → [n, 32] uint8."""
    return np.unpackbits(field[:, None].view(np.uint8), axis=1, bitorder="little") << np.uint8(4)


def q4_0(b: Blocks) -> Floats:
    return scaled(nibbles(b["qs"], 16).view(np.int8) - np.int8(8), floats(b["d"]))


def q4_1(b: Blocks) -> Floats:
    return scaled(nibbles(b["qs"], 16), floats(b["d"]), floats(b["m"]))


def q5_0(b: Blocks) -> Floats:
    q = nibbles(b["qs"], 16) | _fifth_bits(b["qh"])
    return scaled(q.view(np.int8) - np.int8(16), floats(b["d"]))


def q5_1(b: Blocks) -> Floats:
    return scaled(nibbles(b["qs"], 16) | _fifth_bits(b["qh"]), floats(b["d"]), floats(b["m"]))


def q8_0(b: Blocks) -> Floats:
    return scaled(b["qs"], floats(b["d"]))


def mxfp4(b: Blocks) -> Floats:
    """OCP microscaling: E2M1 weights, one E8M0 scale a block, halved as the table is doubled."""
    e = b["e"].astype(np.uint32)[:, None]
    scale = np.where(e < 2, np.uint32(0x00200000) << e, (e - 1) << np.uint32(23))
    return scaled(_FP4[nibbles(b["qs"], 16)], scale.astype(np.uint32).view(np.float32))


def nvfp4(b: Blocks) -> Floats:
    """E2M1 weights, one unsigned E4M3 scale for each 16, halved as the table is doubled."""
    e = b["e"]
    exponent, mantissa = (e >> 3).astype(np.int32) & 15, (e & 7).astype(np.float32)
    normal = np.ldexp(1 + mantissa / 8, exponent - 7)
    scale = np.where(exponent == 0, mantissa * np.float32(2**-9), normal) * np.float32(0.5)
    scale[(e == 0) | (e == 0x7F)] = 0
    return scaled(_FP4[nibbles(b["qs"], 8)], scale.astype(np.float32))


def tq1_0(b: Blocks) -> Floats:
    """Five base-3 digits a byte: digit i is the top one of byte · 3^i."""

    def digits(field: Integers, group: int, places: int) -> Integers:
        powers = np.array([1, 3, 9, 27, 81][:places], dtype=np.uint8)[:, None]
        return (field.reshape(len(field), -1, 1, group) * powers).reshape(len(field), -1)

    qs = b["qs"]
    q = np.concatenate([digits(qs[:, :32], 32, 5), digits(qs[:, 32:], 16, 5), digits(b["qh"], 4, 4)], axis=1)
    return scaled(((q.astype(np.uint16) * 3) >> 8).astype(np.int8) - np.int8(1), floats(b["d"]))


def tq2_0(b: Blocks) -> Floats:
    q = bits(b["qs"], (0, 2, 4, 6), 3, 32)
    return scaled(q.view(np.int8) - np.int8(1), floats(b["d"]))
