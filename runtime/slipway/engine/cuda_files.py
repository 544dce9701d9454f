"""CUDA's own files where the environment names them, before torch and Triton look for theirs."""

from __future__ import annotations

import ctypes
import logging
import os
from pathlib import Path

from slipway.envs import Environment
from slipway.exits import BAD_ARGUMENTS, Exit

log = logging.getLogger("slipway.engine")

PTXAS = ("TRITON_PTXAS_PATH", "TRITON_PTXAS_BLACKWELL_PATH")
"""Where Triton is told of the assembler; the second is for devices from 10.0 on."""


def use_given(environment: Environment) -> None:
    """CUDA's runtime and NCCL where variables name them, and the assembler of CUDA_HOME.

    Raises Exit where a library cannot be loaded.
    """
    named = {
        "VLLM_CUDART_SO_PATH": environment.cudart_so_path,
        "VLLM_NCCL_SO_PATH": environment.nccl_so_path,
    }
    for variable, library in named.items():
        if not library:
            continue
        try:
            ctypes.CDLL(str(Path(library).expanduser()), mode=ctypes.RTLD_GLOBAL)
        except OSError as error:
            message = f"{variable}={library} cannot be loaded: {error}."
            raise Exit(
                BAD_ARGUMENTS, message, "Correct it, or unset it to have torch find its own."
            ) from None
    if environment.cuda_home is None:
        return
    ptxas = Path(environment.cuda_home).expanduser() / "bin" / "ptxas"
    if not os.access(ptxas, os.X_OK):
        log.warning("CUDA_HOME=%s has no bin/ptxas: Triton compiles with its own.", environment.cuda_home)
        return
    for name in PTXAS:
        os.environ.setdefault(name, str(ptxas))
