"""What only some installations have."""

from __future__ import annotations

from importlib.util import find_spec

from slipway.extras import install
from slipway.load.errors import LoadError

IMAGES = {"torch": "runtime-cpu-torch", "cuda": "runtime-cuda"}
"""The image that has what an extra installs."""


def require_torch(
    why: str, instead: str, *beside: str, extra: str = "torch", argument: str = "model"
) -> None:
    """Raise LoadError, naming the extra, unless torch can be imported, and these packages beside it.

    why      the half sentence that says what needs it
    instead  what else can be done
    """
    missing = [name for name in ("torch", *beside) if not _is_there(name)]
    if missing:
        raise LoadError(
            "MissingPackage",
            f"{why}, and {' and '.join(missing)} cannot be imported here.",
            hint=f"Run {install(extra)}, use the image {IMAGES[extra]}, or {instead}.",
            argument=argument,
        )


def _is_there(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except (ImportError, ValueError):
        return False
