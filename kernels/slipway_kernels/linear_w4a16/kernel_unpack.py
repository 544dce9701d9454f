"""From packed words to weights, in registers: the operand of linear_w4a16 and of the experts' products.

A word of four-bit codes holds four pairs of neighbouring columns, a code of each in either half; of eight-bit
codes, two (layout.py):

    bit    31    28 27    24 23    20 19    16 15    12 11     8 7      4 3      0
    4 bits [ pair 3 | pair 2 | pair 1 | pair 0 | pair 3 | pair 2 | pair 1 | pair 0 ]
    8 bits [      pair 1     |      pair 0     |      pair 1     |      pair 0     ]
            ── second column of each pair ────  ── first column of each pair ─────

A params word has a group's scale in its lower half, and in its upper one the shift or the minimum, both as
numbers of 16 bits in the activations' type.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from __future__ import annotations

import triton
import triton.language as tl

# number + shift, (number + shift) · scale and (number - offset) · scale + minimum of two weights. On sm_80
# all that bf16 has is fma: a sum is one with a factor of 1, a product one with a summand of -0.
CODE_BF16 = tl.constexpr("{ .reg .b32 t; mov.b32 t, 0x3F803F80; fma.rn.bf16x2 $0, $1, t, $3; }")
CODE_FP16 = tl.constexpr("add.rn.f16x2 $0, $1, $3;")
SHIFT_BF16 = tl.constexpr(
    "{ .reg .b32 t, u; mov.b32 t, 0x3F803F80; mov.b32 u, 0x80008000;"
    " fma.rn.bf16x2 t, $1, t, $3; fma.rn.bf16x2 $0, t, $2, u; }"
)
SHIFT_FP16 = tl.constexpr("{ .reg .b32 t; add.rn.f16x2 t, $1, $3; mul.rn.f16x2 $0, t, $2; }")
MINIMUM_BF16 = tl.constexpr(
    "{ .reg .b32 t, u; mov.b32 t, 0x3F803F80; mov.b32 u, 0xC300C300;"
    " fma.rn.bf16x2 t, $1, t, u; fma.rn.bf16x2 $0, t, $2, $3; }"
)
MINIMUM_FP16 = tl.constexpr(
    "{ .reg .b32 t; mov.b32 t, 0xE400E400; add.rn.f16x2 t, $1, t; fma.rn.f16x2 $0, t, $2, $3; }"
)


@triton.jit
def halves(words, dtype: tl.constexpr):
    """The lower and the upper 16 bits of words, as they are, in another type."""
    lower = (words & 0xFFFF).to(tl.uint16).to(dtype, bitcast=True)
    upper = ((words >> 16) & 0xFFFF).to(tl.uint16).to(dtype, bitcast=True)
    return lower, upper


@triton.jit
def numbers(words, mask, PAIR: tl.constexpr, BITS: tl.constexpr, dtype: tl.constexpr):
    """One code of each half of the words [N, WORDS] → [N, WORDS, 2], with `offset` added to it.

    A code is or-ed to the bits of a power of two whose last mantissa bit is worth 1: of 128 in bf16, of 1024
    in fp16, of 2²³ in fp32, which eight bits take, since the mantissa of bf16 is too short for them:

        bf16  0 10000110 000cccc           128 + c      0x4300 | c
        fp16  0 11001 000000cccc          1024 + c      0x6400 | c
        fp32  0 10010110 0…0cccccccc     2²³ + c  0x4B000000 | c
    """
    if BITS == 4:
        magic: tl.constexpr = 0x43004300 if dtype == tl.bfloat16 else 0x64006400
        lower, upper = halves(((words >> (4 * PAIR)) & mask) | magic, dtype)
    else:
        pair = words >> (8 * PAIR)
        lower = ((pair & 0xFF) | 0x4B000000).to(tl.float32, bitcast=True)
        upper = (((pair >> 16) & 0xFF) | 0x4B000000).to(tl.float32, bitcast=True)
    return tl.join(lower, upper)


@triton.jit
def along_k(params, N: tl.constexpr, K: tl.constexpr):
    """[N, GROUPS] → [N, K]"""
    groups: tl.constexpr = params.shape[1]
    return tl.broadcast_to(params[:, :, None], (N, groups, K // groups)).reshape(N, K)


@triton.jit
def weights(
    words,  # [N, WORDS]
    params,  # [N, GROUPS]
    mask,  # [1, 1]
    BITS: tl.constexpr,
    FORM: tl.constexpr,
    dtype: tl.constexpr,
    PTX: tl.constexpr,
):
    """One block of each of N rows → [N, K], rounded once.

    number = code + offset; the weight is number + shift, whose scale is yet to come, (number + shift) · scale
    or (number - offset) · scale + minimum, by FORM: one or two instructions for two weights.
    """
    N: tl.constexpr = words.shape[0]
    K: tl.constexpr = 32 // BITS * words.shape[1]
    if BITS == 4:
        even = tl.join(numbers(words, mask, 0, BITS, dtype), numbers(words, mask, 2, BITS, dtype))
        odd = tl.join(numbers(words, mask, 1, BITS, dtype), numbers(words, mask, 3, BITS, dtype))
        number = tl.join(even, odd).permute(0, 3, 4, 1, 2).reshape(N, K)
    else:
        first, second = numbers(words, mask, 0, BITS, dtype), numbers(words, mask, 1, BITS, dtype)
        number = tl.join(first, second).permute(0, 3, 1, 2).reshape(N, K)
    scale, other = halves(params, dtype)
    if PTX and BITS == 4:
        # Triton's own sums and products of bf16 are packed in twos only sometimes.
        bf16: tl.constexpr = CODE_BF16 if FORM == "code" else SHIFT_BF16 if FORM == "shift" else MINIMUM_BF16
        fp16: tl.constexpr = CODE_FP16 if FORM == "code" else SHIFT_FP16 if FORM == "shift" else MINIMUM_FP16
        return tl.inline_asm_elementwise(
            bf16 if dtype == tl.bfloat16 else fp16,
            "=r,r,r,r",
            [number, along_k(scale, N, K), along_k(other, N, K)],
            dtype=number.dtype,
            is_pure=True,
            pack=2,
        )
    number, scale, other = number.to(tl.float32), scale.to(tl.float32), other.to(tl.float32)
    high: tl.constexpr = 8388608.0 if BITS == 8 else 0.0
    if FORM == "minimum":
        offset: tl.constexpr = high + (1024.0 if BITS == 4 and dtype == tl.float16 else 128.0)
        number = (number - offset) * along_k(scale, N, K) + along_k(other, N, K)
    else:
        number += along_k(other - high, N, K)
        if FORM == "shift":
            number *= along_k(scale, N, K)
    return number.to(dtype)
