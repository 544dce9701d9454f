"""Where the stages run: import it before any kernel, which asks once whether it is interpreted.

With TRITON_INTERPRET=0 none is without a GPU either: that is for stages that compile, and launch nothing.
"""

import os

import torch

CUDA = torch.cuda.is_available()

if not CUDA and os.environ.get("TRITON_INTERPRET") != "0":
    os.environ["TRITON_INTERPRET"] = "1"

    from slipway_kernels.cuda.interpret import repair

    repair()

from slipway_kernels.cuda.launch import device_in_use  # noqa: E402  imports Triton, which reads the variable

DEVICE = device_in_use()
