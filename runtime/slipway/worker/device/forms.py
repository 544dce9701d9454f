"""Which quantized matrices a device multiplies as they are stored. Imports no torch."""

from __future__ import annotations

from collections.abc import Callable

from slipway.load.arrays import FP32, INT8, DType
from slipway.load.quantized.form import Form, GroupedForm
from slipway.schemes.left_out import left_out

SCALE_BLOCK = (128, 128)
"""Rows and columns that share a scale, of the block-wise fp8 that the kernels multiply."""
FP8_ARCH = 89
"""Compute capability, times ten, from which fp8 is multiplied."""
GROUPED_FP8_ARCH = 90
"""The same, of experts."""
SMALLEST_GROUP = 32
"""Columns that share a scale, at least."""

Arch = Callable[[], int]
"""Compute capability, times ten; asked for where it matters alone, for that may need a device."""


def kept(form: Form, dtype: DType, arch: Arch) -> bool:
    """Whether a matrix of this form is multiplied as it is stored, by activations of `dtype`.

    What is not one of many experts', that is: those have fewer forms.
    """
    if dtype == FP32 or left_out(form):
        return False
    if isinstance(form, GroupedForm):
        return form.bits in (4, 8) and form.group >= SMALLEST_GROUP
    return form.block in (None, SCALE_BLOCK) and (form.values == INT8 or arch() >= FP8_ARCH)


def kept_of_experts(form: Form, dtype: DType, row: int, arch: Arch) -> bool:
    """The same of experts' matrices, whose products are one, and a second begins at `row` in each."""
    if not kept(form, dtype, arch):
        return False
    if isinstance(form, GroupedForm):
        return not form.order
    return row % form.steps[0] == 0 and (form.values == INT8 or arch() >= GROUPED_FP8_ARCH)
