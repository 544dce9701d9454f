"""Where the stages run: import it before any kernel, which asks once whether it is interpreted."""

import os

import torch

CUDA = torch.cuda.is_available()

if not CUDA:
    os.environ["TRITON_INTERPRET"] = "1"

    from slipway_kernels.cuda.interpret import repair

    repair()

from slipway_kernels.cuda.launch import device_in_use  # noqa: E402  imports Triton, which reads the variable

DEVICE = device_in_use()
