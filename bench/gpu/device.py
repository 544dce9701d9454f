"""Where the stages run: import it before any kernel, which asks once whether it is interpreted."""

import os

import torch

CUDA = torch.cuda.is_available()
DEVICE = torch.device("cuda" if CUDA else "cpu")

if not CUDA:
    os.environ["TRITON_INTERPRET"] = "1"

    from slipway_kernels.cuda.interpret import repair

    repair()
