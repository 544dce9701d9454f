"""What arguments must be to environment variables other than their twins."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from slipway.args.derive import Warn
from slipway.envs import BY_NAME, Value


def check_variables(values: Mapping[str, Any], environ: Mapping[str, str], warn: Warn) -> None:
    """Raises InvalidEnvironment at a malformed variable."""
    if values["prefix_caching_hash_algo"] != "builtin" and _value("SLIPWAY_PREFIX_HASH_SECRET", environ):
        warn(
            "SLIPWAY_PREFIX_HASH_SECRET has no effect with --prefix-caching-hash-algo "
            f"{values['prefix_caching_hash_algo']}: only builtin has a key."
        )


def _value(name: str, environ: Mapping[str, str]) -> Value:
    return BY_NAME[name].parse(environ.get(name))
