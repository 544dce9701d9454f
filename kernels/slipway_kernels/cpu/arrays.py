"""Arrays on the host: numpy's, with the floats of 8 and 16 bits that numpy lacks."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
DType = np.dtype[Any]

FP32: DType = np.dtype(np.float32)
FP16: DType = np.dtype(np.float16)
BF16: DType = np.dtype(ml_dtypes.bfloat16)
E4M3: DType = np.dtype(ml_dtypes.float8_e4m3fn)
E5M2: DType = np.dtype(ml_dtypes.float8_e5m2)
E8M0: DType = np.dtype(ml_dtypes.float8_e8m0fnu)
INT8: DType = np.dtype(np.int8)
UINT8: DType = np.dtype(np.uint8)
INT32: DType = np.dtype(np.int32)
INT64: DType = np.dtype(np.int64)

NARROW = frozenset((BF16, E4M3, E5M2, E8M0))
"""The floats that are not numpy's own."""
ELEMENTS = {
    FP32: "fp32",
    BF16: "bf16",
    FP16: "fp16",
    E4M3: "e4m3",
    E5M2: "e5m2",
    INT8: "int8",
    UINT8: "int4",
}
"""What the kernels call the types that they read. Codes of four bits come one in a byte."""


def is_float(dtype: DType) -> bool:
    """Also for the types of ml_dtypes, of which numpy says that they are none."""
    return dtype.kind == "f" or dtype in NARROW
