"""Layer norm in Triton: one program a row, which stays in registers. Bound by memory."""

from __future__ import annotations

import triton
import triton.language as tl

from slipway_kernels.quantize.kernel import store_quantized
from slipway_kernels.rms_norm.kernel import load_added


@triton.jit
def layer_norm_kernel(
    x_ptr,  # [rows, width]
    residual_ptr,  # [rows, width]  or None
    weight_ptr,  # [width]  or None
    bias_ptr,  # [width]  or None
    out_ptr,  # [rows, width]
    scales_ptr,  # [rows, width / GROUP]  or None
    x_stride,
    residual_stride,
    out_stride,
    scales_stride,
    width,
    eps,
    LIMIT: tl.constexpr,
    GROUP: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """residual += x where there is one; out = (residual − mean) / sqrt(var + eps) · weight + bias.

    Where it has scales, out is quantized.
    """
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, WIDTH)
    inside = column < width
    x = load_added(x_ptr, residual_ptr, row, column, inside, x_stride, residual_stride)
    # The row is in registers, so the variance is taken of differences, where a sum of squares would cancel.
    centred = tl.where(inside, x - tl.sum(x, axis=0) / width, 0.0)
    y = centred * tl.rsqrt(tl.sum(centred * centred, axis=0) / width + eps)
    if weight_ptr is not None:
        y *= tl.load(weight_ptr + column, mask=inside, other=0.0).to(tl.float32)
    if bias_ptr is not None:
        y += tl.load(bias_ptr + column, mask=inside, other=0.0).to(tl.float32)
    out_ptr += row * out_stride
    if scales_ptr is not None:
        store_quantized(y, width, out_ptr, scales_ptr + row * scales_stride, LIMIT, GROUP, WIDTH)
    else:
        tl.store(out_ptr + column, y.to(out_ptr.dtype.element_ty), mask=inside)
