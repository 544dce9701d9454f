"""Activations in Triton, with the gate's product and the quantization that follows. Bound by memory."""

from __future__ import annotations

import triton
import triton.language as tl

from slipway_kernels.quantize.kernel import store_quantized


@triton.jit
def activated(x, KIND: tl.constexpr):
    """The activation of that name, in fp32."""
    if KIND == "silu":
        y = x * tl.sigmoid(x)
    elif KIND == "gelu_tanh":
        # 0.5 · (1 + tanh(u)) = sigmoid(2u), u = √(2/π) · (x + 0.044715 · x³)
        y = x * tl.sigmoid(1.5957691216 * (x + 0.044715 * x * x * x))
    elif KIND == "gelu":
        y = 0.5 * x * (1.0 + tl.erf(x * 0.7071067812))
    elif KIND == "relu":
        y = tl.maximum(x, 0.0, propagate_nan=tl.PropagateNan.ALL)
    elif KIND == "tanh":
        y = 2.0 * tl.sigmoid(2.0 * x) - 1.0
    else:
        tl.static_assert(KIND == "relu2")
        y = tl.maximum(x, 0.0, propagate_nan=tl.PropagateNan.ALL)
        y *= y
    return y


@triton.jit
def activation_kernel(
    x_ptr,  # [rows, 2 · width], or [rows, width] without a gate
    out_ptr,  # [rows, width]
    scales_ptr,  # [rows, width / GROUP]  or None
    x_stride,
    out_stride,
    scales_stride,
    width,
    KIND: tl.constexpr,
    GATED: tl.constexpr,
    RUN: tl.constexpr,
    LIMIT: tl.constexpr,
    GROUP: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """out = act(gate) · up: halves of x, or RUN columns of each in turn; quantized where it has scales."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    inside = column < width
    x_ptr += row * x_stride
    out_ptr += row * out_stride
    x_ptr += column // RUN * (2 * RUN) + column % RUN if RUN else column
    y = activated(tl.load(x_ptr, mask=inside, other=0.0).to(tl.float32), KIND)
    if GATED:
        y *= tl.load(x_ptr + (RUN if RUN else width), mask=inside, other=0.0).to(tl.float32)
    if scales_ptr is not None:
        store_quantized(y, width, out_ptr, scales_ptr + row * scales_stride, LIMIT, GROUP, WIDTH)
    else:
        tl.store(out_ptr + column, y.to(out_ptr.dtype.element_ty), mask=inside)


@triton.jit
def add_gated_kernel(
    out_ptr,  # [rows, width]
    y_ptr,  # [rows, width]
    gate_ptr,  # [rows, 1]
    out_stride,
    y_stride,
    gate_stride,
    width,
    WIDTH: tl.constexpr,
):
    """out += sigmoid(gate) · y"""
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    inside = column < width
    share = tl.sigmoid(tl.load(gate_ptr + row * gate_stride).to(tl.float32))
    y = tl.load(y_ptr + row * y_stride + column, mask=inside, other=0.0).to(tl.float32)
    out_ptr += row * out_stride + column
    total = tl.load(out_ptr, mask=inside, other=0.0).to(tl.float32) + share * y
    tl.store(out_ptr, total.to(out_ptr.dtype.element_ty), mask=inside)
