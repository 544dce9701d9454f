"""Libraries of attention that may be installed beside us, as `--attention-backend` names them."""

from __future__ import annotations

from importlib.util import find_spec

LIBRARIES = {"FLASH_ATTN": ("flash_attn", "flash-attn"), "FLASHINFER": ("flashinfer", "flashinfer-python")}
"""Name → module and package."""


def missing_package(backend: str) -> str:
    """The package that a backend lacks, or "". vLLM brings both, so commands for it name them anywhere."""
    module, package = LIBRARIES.get(backend, ("", ""))
    return package if module and find_spec(module) is None else ""
