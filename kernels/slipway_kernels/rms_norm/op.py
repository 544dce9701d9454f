"""RMS norm on the device, alone or with the addition that comes before it."""

from __future__ import annotations

from torch import Tensor

from slipway_kernels.cuda.launch import arch_of, launch
from slipway_kernels.quantize.op import row_format, row_tile
from slipway_kernels.rms_norm.kernel import rms_norm_kernel


def rms_norm(
    x: Tensor,
    weight: Tensor,
    eps: float,
    out: Tensor,
    *,
    residual: Tensor | None = None,
    add_one: bool = False,
    scales: Tensor | None = None,
    group: int = 0,
) -> Tensor:
    """out = y / sqrt(mean(y²) + eps) · weight, where y is x, or residual + x, which the residual becomes.

    x, residual, out  [rows, width]  bf16, fp16 or fp32; neighbours in a row are adjacent
    weight            [width]        its one is implied where `add_one`
    scales            [rows] or [rows, ceil(width / group)]  fp32: out is int8 or fp8, quantized as by
                      `quantize_rows`
    Returns out, which may be x. The mean is taken in fp32. Raises ValueError where shapes disagree.
    Source: Zhang & Sennrich 2019.
    """
    rows, width = x.shape
    for name, tensor in (("residual", residual), ("out", out)):
        if tensor is not None and tensor.shape != x.shape:
            raise ValueError(f"{name} is {list(tensor.shape)}, x is {list(x.shape)}: they must be equal.")
    if weight.shape != (width,) or x.stride(1) != 1 or out.stride(1) != 1:
        raise ValueError(
            f"the weight is {list(weight.shape)} and x {list(x.shape)}, by strides of {x.stride()}: a weight "
            "has one number a column, and the columns of a row are adjacent."
        )
    limit = 0.0
    if scales is not None:
        limit, group = row_format(x.shape, out, scales, group)
    tile = row_tile(arch_of(x.device), width, group)
    launch(
        rms_norm_kernel,
        (rows,),
        *(x, residual, weight, out, scales),
        *(0 if tensor is None else tensor.stride(0) for tensor in (x, residual, out, scales)),
        *(width, eps),
        tile=tile,
        ADD_ONE=add_one,
        LIMIT=limit,
        GROUP=group or tile.constants["WIDTH"],
    )
    return out
