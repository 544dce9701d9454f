"""Code of others in the server: plugins, and what arguments name by its import path.

Plugins are functions of installed packages that each process of the server calls at its start. Only those
that VLLM_PLUGINS names are loaded, and none by being installed.
"""

from __future__ import annotations

import importlib
import logging
import sys
from collections.abc import Sequence
from typing import Any

from slipway.exits import BAD_ARGUMENTS, Exit

GROUP = "slipway.general_plugins"
"""Entry points by which a package offers them; each is a function without arguments."""

log = logging.getLogger("slipway.plugins")


def load(names: Sequence[str]) -> None:
    """Call the plugins of these names, in turn. Raises Exit for one that is not there or fails."""
    if not names:
        return
    from importlib.metadata import entry_points  # not light, and seldom needed

    offered = {point.name: point for point in entry_points(group=GROUP)}
    for name in names:
        if name not in offered:
            installed = ", ".join(sorted(offered)) or "none"
            message = f"VLLM_PLUGINS names {name}, which no installed package offers. Installed: {installed}."
            hint = f"Correct the name, or install the package whose entry points {GROUP} have it."
            raise Exit(BAD_ARGUMENTS, message, hint)
        point = offered[name]
        try:
            point.load()()
        except Exception as error:
            message = f"The plugin {name} ({point.value}) failed: {type(error).__name__}: {error}."
            hint = "Mend it, or take it out of VLLM_PLUGINS."
            raise Exit(BAD_ARGUMENTS, message, hint) from error
        log.info("The plugin %s (%s) is loaded.", name, point.value)


def imported(path: str, flag: str, argument: str) -> Any:
    """What an import path such as `package.module.Name` names, the current folder included. Raises Exit."""
    module, _, name = path.rpartition(".")
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        return getattr(importlib.import_module(module), name)
    except Exception as error:
        message = f"{flag} {path} cannot be imported: {type(error).__name__}: {error}."
        hint = "Check the path, and that Python finds the module: PYTHONPATH may name its folder."
        raise Exit(BAD_ARGUMENTS, message, hint, argument) from error
