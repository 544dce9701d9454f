"""Kernels that VLLM_DISABLED_KERNELS leaves out, to compare what they gain."""

from __future__ import annotations

import os
from collections.abc import Collection
from functools import cache

from slipway.envs import read
from slipway.load.quantized.form import Form, GroupedForm

VARIABLE = "VLLM_DISABLED_KERNELS"


def left_out(form: Form) -> bool:
    """Whether a matrix of this form is to be dequantized, on either device."""
    kernel = "linear_w4a16" if isinstance(form, GroupedForm) else "linear_w8a8"
    return kernel in _named(os.environ.get(VARIABLE))


@cache  # asked for each of thousands of experts' matrices
def _named(value: str | None) -> Collection[str]:
    return read({} if value is None else {VARIABLE: value}).disabled_kernels or ()
