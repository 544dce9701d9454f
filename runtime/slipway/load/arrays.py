"""The host's arrays, as every room above takes and gives them."""

from slipway_kernels.cpu.arrays import (
    BF16,
    E4M3,
    E5M2,
    E8M0,
    ELEMENTS,
    FP16,
    FP32,
    INT8,
    INT32,
    INT64,
    NARROW,
    UINT8,
    Array,
    DType,
    is_float,
)
from slipway_kernels.cpu.binding import Floats, Ints
from slipway_kernels.cpu.sources import Source, cast, converted, rounded

__all__ = [
    "BF16",
    "E4M3",
    "E5M2",
    "E8M0",
    "ELEMENTS",
    "FP16",
    "FP32",
    "INT8",
    "INT32",
    "INT64",
    "NARROW",
    "UINT8",
    "Array",
    "DType",
    "Floats",
    "Ints",
    "Source",
    "cast",
    "converted",
    "is_float",
    "rounded",
]
