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
    """The CUDA runtime of VLLM_CUDART_SO_PATH, and the assembler of CUDA_HOME.

    Raises Exit where the library cannot be loaded.
    """
    if library := environment.cudart_so_path:
        try:
            ctypes.CDLL(str(Path(library).expanduser()), mode=ctypes.RTLD_GLOBAL)
        except OSError as error:
            message = f"VLLM_CUDART_SO_PATH={library} cannot be loaded: {error}."
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
