"""Triton kernels, on a GPU where there is one and in the interpreter elsewhere."""

import os

import pytest
import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # read when a kernel's module is imported

    from slipway_kernels.cuda.interpret import repair

    repair()


@pytest.fixture(scope="session")
def device() -> torch.device:
    from slipway_kernels.cuda.launch import device_in_use  # imports Triton, which reads the variable

    return device_in_use()


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)
