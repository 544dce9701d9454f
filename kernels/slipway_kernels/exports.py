"""What a kernel's folder offers by its own name, imported when it is asked for.

References, layouts and records lie in the same folders and are read where there is no Triton: importing one
of them must not import the operation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any


def exports(package: str, **modules: Sequence[str]) -> Callable[[str], Any]:
    """The `__getattr__` of a package (PEP 562) that has these names from these modules of its own."""
    home = {name: module for module, names in modules.items() for name in names}

    def get(name: str) -> Any:
        if name not in home:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(f"{package}.{home[name]}"), name)

    return get
