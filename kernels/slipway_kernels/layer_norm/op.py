"""Layer norm on the device, alone or with the addition that comes before it."""

from __future__ import annotations

from torch import Tensor

from slipway_kernels.cuda.launch import arch_of, launch
from slipway_kernels.cuda.prepared import prepared
from slipway_kernels.cuda.rows import row_stride
from slipway_kernels.layer_norm.kernel import layer_norm_kernel
from slipway_kernels.quantize.op import check_columns, check_rows, row_format, row_tile


@prepared
def layer_norm(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    out: Tensor,
    *,
    residual: Tensor | None = None,
    scales: Tensor | None = None,
    group: int = 0,
) -> Tensor:
    """out = (y − mean(y)) / sqrt(var(y) + eps) · weight + bias, where y is x, or residual + x.

    x, residual, out  [rows, width]  bf16, fp16 or fp32; neighbours in a row are adjacent. The residual
                      becomes the sum
    weight, bias      [width]        or None: 1 and 0
    scales            [rows] or [rows, ceil(width / group)]  fp32: out is int8 or fp8, quantized as by
                      `quantize_rows`
    Returns out, which may be x. All is computed in fp32. Raises ValueError where shapes disagree.
    Source: Ba et al. 2016.
    """
    rows, width = x.shape
    check_rows(x.shape, x=x, residual=residual, out=out)
    check_columns(width, weight=weight, bias=bias)
    limit, group = row_format(x.shape, out, scales, group)
    tile = row_tile(arch_of(x.device), width, group)
    launch(
        layer_norm_kernel,
        (rows,),
        tile=tile,
        x_ptr=x,
        residual_ptr=residual,
        weight_ptr=weight,
        bias_ptr=bias,
        out_ptr=out,
        scales_ptr=scales,
        x_stride=x.stride(0),
        residual_stride=row_stride(residual),
        out_stride=out.stride(0),
        scales_stride=row_stride(scales),
        width=width,
        eps=eps,
        LIMIT=limit,
        GROUP=group or tile.constants["WIDTH"],
    )
    return out
