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
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)
