"""RMS norm on the device, alone or with the addition that comes before it."""

from __future__ import annotations

from torch import Tensor

from slipway_kernels.cuda.launch import Tile, arch_of, launch, pick
from slipway_kernels.rms_norm.kernel import rms_norm_kernel

# Wide rows take more warps, so that a thread holds at most 16 numbers of each operand.
TILES = (
    Tile(80, {"WIDTH": 256}, num_warps=1, when={"width": 256}),
    Tile(80, {"WIDTH": 1024}, num_warps=4, when={"width": 1024}),
    Tile(80, {"WIDTH": 2048}, num_warps=4, when={"width": 2048}),
    Tile(80, {"WIDTH": 4096}, num_warps=8, when={"width": 4096}),
    Tile(80, {"WIDTH": 8192}, num_warps=16, when={"width": 8192}),
    Tile(80, {"WIDTH": 16384}, num_warps=32, when={"width": 16384}),
)


def rms_norm(
    x: Tensor,
    weight: Tensor,
    eps: float,
    out: Tensor,
    *,
    residual: Tensor | None = None,
    add_one: bool = False,
) -> Tensor:
    """out = y / sqrt(mean(y²) + eps) · weight, where y is x, or residual + x, which the residual becomes.

    x, residual, out  [rows, width]  bf16, fp16 or fp32; neighbours in a row are adjacent
    weight            [width]        its one is implied where `add_one`
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
    launch(
        rms_norm_kernel,
        (rows,),
        *(
            x,
            residual,
            weight,
            out,
            x.stride(0),
            0 if residual is None else residual.stride(0),
            out.stride(0),
        ),
        *(width, eps),
        tile=pick(TILES, arch_of(x.device), width=width),
        ADD_ONE=add_one,
    )
    return out
