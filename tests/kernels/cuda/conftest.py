"""Triton kernels, on a GPU where there is one and in the interpreter elsewhere."""

import pytest
import torch

from slipway_kernels.cuda.interpret import repair
from slipway_kernels.cuda.launch import device_in_use

if not torch.cuda.is_available():
    repair()


@pytest.fixture(scope="session")
def device() -> torch.device:
    return device_in_use()
