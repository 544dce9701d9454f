"""Quantization in Triton: what other kernels call on a row that they hold, and a kernel of its own.

A number is stored as number / scale in fp8 or int8, rounded to nearest with ties to even. All of it is bound
by memory.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def saturated(x, LIMIT: tl.constexpr):
    """x within −LIMIT … LIMIT; a NaN stays one, so that what comes after still sees it."""
    return tl.clamp(x, -LIMIT, LIMIT, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def e4m3_byte(x):
    """The byte of a saturated x in fp8 e4m3, by integers alone: for devices that do not know the type.

    x · 2⁻¹²⁰  s 0000eeee mmmrrrrrrrrrrrrrrrrrrrr   fp32: bits 31, 30 to 23, 22 to 0
    e4m3       s     eeee mmm                       rounded by what r holds
    """
    # 2⁻¹²⁰ brings fp32's exponent down to e4m3's, subnormals included: its upper bits are the byte.
    bits = (x * 7.52316384526264e-37).to(tl.int32, bitcast=True)
    size = bits & 0x7FFFFFFF
    size = tl.where(size > 0x7F800000, 0x7F, (size + 0x7FFFF + ((size >> 20) & 1)) >> 20)
    return (size | ((bits >> 24) & 0x80)).to(tl.uint8)


@triton.jit
def stored(x, TYPE: tl.constexpr, LIMIT: tl.constexpr):
    """x as the cache keeps it: saturated where that has a LIMIT; an unsigned byte means fp8 e4m3."""
    if LIMIT > 0:
        x = saturated(x, LIMIT)
    return e4m3_byte(x) if tl.uint8 == TYPE else x.to(TYPE)


@triton.jit
def rounded(x, TYPE: tl.constexpr, LIMIT: tl.constexpr):
    """x in an 8-bit type, saturated."""
    x = saturated(x, LIMIT)
    if tl.int8 == TYPE:
        # 1.5 · 2²³: adding it leaves no bits behind the point, and fp32 rounds ties to even.
        x = (x + 12582912.0) - 12582912.0
    return x.to(TYPE)


@triton.jit
def largest(x, AXIS: tl.constexpr):
    """max |x|; NaN where there is one."""
    # As integers, magnitudes are in order and a NaN is above them all.
    return tl.max(tl.abs(x).to(tl.int32, bitcast=True), axis=AXIS).to(tl.float32, bitcast=True)


@triton.jit
def inverse_scale(most, LIMIT: tl.constexpr):
    """What numbers up to `most` are multiplied by to reach up to LIMIT; 0 where they are as good as 0."""
    return tl.where(most > 1e-30, LIMIT / tl.maximum(most, 1e-30), 0.0)


@triton.jit
def store_quantized(
    y,  # [WIDTH] fp32
    width,
    out_ptr,  # [width], of the row
    scales_ptr,  # [width / GROUP], of the row
    LIMIT: tl.constexpr,
    GROUP: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """Each GROUP of columns by its own scale = max |y| / LIMIT."""
    GROUPS: tl.constexpr = WIDTH // GROUP
    column = tl.arange(0, WIDTH)
    inside = column < width
    y = tl.reshape(tl.where(inside, y, 0.0), (GROUPS, GROUP))
    most = largest(y, 1)  # [GROUPS]
    group = tl.arange(0, GROUPS)
    tl.store(scales_ptr + group, most / LIMIT, mask=group * GROUP < width)
    values = rounded(y * inverse_scale(most, LIMIT)[:, None], out_ptr.dtype.element_ty, LIMIT)
    # As a row again: where addresses have been reshaped, Triton no longer sees that they are adjacent.
    tl.store(out_ptr + column, tl.reshape(values, (WIDTH,)), mask=inside)


@triton.jit
def quantize_rows_kernel(
    x_ptr,  # [rows, width]
    out_ptr,  # [rows, width]
    scales_ptr,  # [rows, width / GROUP]
    x_stride,
    out_stride,
    scales_stride,
    width,
    LIMIT: tl.constexpr,
    GROUP: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """One program a row, which stays in registers."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, WIDTH)
    x = tl.load(x_ptr + row * x_stride + column, mask=column < width, other=0.0).to(tl.float32)
    out_ptr += row * out_stride
    scales_ptr += row * scales_stride
    store_quantized(x, width, out_ptr, scales_ptr, LIMIT, GROUP, WIDTH)
