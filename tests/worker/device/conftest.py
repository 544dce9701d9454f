"""The worker for CUDA: on a GPU where there is one, its kernels in the interpreter elsewhere."""

import os

import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # read when a kernel's module is imported
