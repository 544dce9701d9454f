"""What arguments must be to environment variables other than their twins."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from slipway.args.derive import Warn
from slipway.args.errors import ArgumentError
from slipway.envs import BY_NAME, Value


def check_variables(values: Mapping[str, Any], environ: Mapping[str, str], warn: Warn) -> None:
    """Raises ArgumentError where both together cannot be had, InvalidEnvironment at a malformed variable."""
    if values["api_server_count"] > 1:
        _check_processes(values, environ)
    if values["prefix_caching_hash_algo"] != "builtin" and _value("SLIPWAY_PREFIX_HASH_SECRET", environ):
        warn(
            "SLIPWAY_PREFIX_HASH_SECRET has no effect with --prefix-caching-hash-algo "
            f"{values['prefix_caching_hash_algo']}: only builtin has a key."
        )
    if not values["enable_lora"] and _value("VLLM_ALLOW_RUNTIME_LORA_UPDATING", environ):
        warn("VLLM_ALLOW_RUNTIME_LORA_UPDATING has no effect without --enable-lora.")


def _check_processes(values: Mapping[str, Any], environ: Mapping[str, str]) -> None:
    """What several API processes cannot share."""
    if not _value("VLLM_ENABLE_V1_MULTIPROCESSING", environ):
        why = "needs an engine in a process of its own, and VLLM_ENABLE_V1_MULTIPROCESSING=0 asks for one in "
        why += "the process of the API"
    elif _value("VLLM_ENABLE_RESPONSES_API_STORE", environ):
        why = (
            "has no process that every client meets again, and VLLM_ENABLE_RESPONSES_API_STORE=1 asks for one"
        )
    elif values["enable_lora"] and _value("VLLM_ALLOW_RUNTIME_LORA_UPDATING", environ):
        why = "has a list of adapters in each process, and VLLM_ALLOW_RUNTIME_LORA_UPDATING=1 would change "
        why += "one of them alone"
    else:
        return
    count = values["api_server_count"]
    raise ArgumentError(f"--api-server-count {count} {why}. Drop one of them.", "api_server_count")


def _value(name: str, environ: Mapping[str, str]) -> Value:
    return BY_NAME[name].parse(environ.get(name))
