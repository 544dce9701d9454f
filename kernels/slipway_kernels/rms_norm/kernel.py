"""RMS norm in Triton: one program a row, which stays in registers."""

from __future__ import annotations

import triton
import triton.language as tl

from slipway_kernels.quantize.kernel import store_quantized


@triton.jit
def load_added(x_ptr, residual_ptr, row, column, inside, x_stride, residual_stride):
    """A row of x in fp32; where there is a residual, the sum of both, which the residual becomes."""
    x = tl.load(x_ptr + row * x_stride + column, mask=inside, other=0.0).to(tl.float32)
    if residual_ptr is not None:
        at = residual_ptr + row * residual_stride + column
        x += tl.load(at, mask=inside, other=0.0).to(tl.float32)
        # A norm reads what the next layer will: the sum as it is stored.
        stored = x.to(residual_ptr.dtype.element_ty)
        tl.store(at, stored, mask=inside)
        x = stored.to(tl.float32)
    return x


@triton.jit
def rms_norm_kernel(
    x_ptr,  # [rows, width]
    residual_ptr,  # [rows, width]  or None
    weight_ptr,  # [width]
    out_ptr,  # [rows, width]
    scales_ptr,  # [rows, width / GROUP]  or None
    x_stride,
    residual_stride,
    out_stride,
    scales_stride,
    width,
    eps,
    ADD_ONE: tl.constexpr,
    LIMIT: tl.constexpr,
    GROUP: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """residual += x where there is one; out = residual / sqrt(mean(residual²) + eps) · weight.

    Where it has scales, out is quantized.
    """
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, WIDTH)
    inside = column < width
    x = load_added(x_ptr, residual_ptr, row, column, inside, x_stride, residual_stride)
    weight = tl.load(weight_ptr + column, mask=inside, other=0.0).to(tl.float32)
    if ADD_ONE:
        weight += 1.0
    scale = tl.rsqrt(tl.sum(x * x, axis=0) / width + eps)
    y = x * scale * weight
    out_ptr += row * out_stride
    if scales_ptr is not None:
        store_quantized(y, width, out_ptr, scales_ptr + row * scales_stride, LIMIT, GROUP, WIDTH)
    else:
        tl.store(out_ptr + column, y.to(out_ptr.dtype.element_ty), mask=inside)
