"""A parser of one's own: a Python file that has formats by their names, as the modules here do."""

from __future__ import annotations

from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any


def formats_of(plugin: Path) -> dict[str, Any]:
    """The file's FORMATS. Raises ValueError where it is no Python file, and what it raises itself."""
    spec = spec_from_file_location(f"slipway_parsers_of_{plugin.stem}", plugin)
    if spec is None or spec.loader is None:
        raise ValueError(f"{plugin} is no Python file")
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    formats: dict[str, Any] = getattr(module, "FORMATS", {})
    return formats
