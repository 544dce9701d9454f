"""The worker for CUDA: on a GPU where there is one, its kernels in the interpreter elsewhere."""

import torch

from slipway_kernels.cuda.interpret import repair

if not torch.cuda.is_available():
    repair()
