"""What arguments must be to environment variables other than their twins."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from slipway.args.data_parallel import copies_here
from slipway.args.derive import Warn
from slipway.args.errors import ArgumentError
from slipway.args.rules.parallel import on_one_host, product, ranks
from slipway.envs import BY_NAME, InvalidEnvironment, Launched, Value

WILDCARDS = ("0.0.0.0", "::", "[::]", "*")
OF_RAY = ("VLLM_RAY_BUNDLE_INDICES", "VLLM_RAY_PER_WORKER_GPUS")


def check_variables(values: Mapping[str, Any], environ: Mapping[str, str], warn: Warn) -> None:
    """Raises ArgumentError where both together cannot be had, InvalidEnvironment at a malformed variable."""
    if values["api_server_count"] > 1:
        _check_processes(values, environ)
    _check_stages(values, environ)
    _check_launched(values, environ)
    _check_ray(values, environ, warn)
    _check_address(values, environ)
    if (count := copies_here(values)) > 1 and not _value("VLLM_ENABLE_V1_MULTIPROCESSING", environ):
        raise ArgumentError(
            f"--data-parallel-size {count} needs engines in processes of their own, and "
            "VLLM_ENABLE_V1_MULTIPROCESSING=0 asks for one in the process of the API. Drop one of them.",
            "data_parallel_size",
        )
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


def _check_stages(values: Mapping[str, Any], environ: Mapping[str, str]) -> None:
    name, count = "VLLM_PP_LAYER_PARTITION", values["pipeline_parallel_size"]
    layers = _value(name, environ)
    if isinstance(layers, tuple) and len(layers) != count:
        raise InvalidEnvironment(
            name,
            f"{name}={environ[name]} says how many layers each of {len(layers)} stages has, and "
            f"--pipeline-parallel-size {count} asks for {count}. Give one number for each stage.",
        )


def _check_launched(values: Mapping[str, Any], environ: Mapping[str, str]) -> None:
    """The launcher's number of processes is the engine's."""
    if values["distributed_executor_backend"] != "external_launcher":
        return
    size, wanted, copies = Launched.of(environ).world_size, ranks(values), values["data_parallel_size"]
    if copies > 1:
        raise ArgumentError(
            f"--data-parallel-size {copies} is not for --distributed-executor-backend external_launcher: a "
            "launcher starts the ranks of one engine. Start a server for each copy, or use mp.",
            "data_parallel_size",
        )
    if size != wanted:
        raise ArgumentError(
            f"The launcher started WORLD_SIZE={size} processes, and {product(values)} asks for {wanted}. "
            "Start as many.",
            "distributed_executor_backend",
        )


def _check_ray(values: Mapping[str, Any], environ: Mapping[str, str], warn: Warn) -> None:
    backends = (values["distributed_executor_backend"], values["data_parallel_backend"])
    if "ray" not in backends:
        for name in OF_RAY:
            if _value(name, environ) != BY_NAME[name].default:
                warn(f"{name} has no effect without --distributed-executor-backend ray.")
        return
    name, each, asks, wanted = OF_RAY[0], "rank", product(values), ranks(values)
    if backends[1] == "ray":
        wanted = values["data_parallel_size"]
        each, asks = "copy", f"--data-parallel-size {wanted}"
    bundles = _value(name, environ)
    if isinstance(bundles, tuple) and (len(bundles) != wanted or len(set(bundles)) != wanted):
        raise InvalidEnvironment(
            name,
            f"{name}={environ[name]} must name a bundle for each {each}, all different, and {asks} "
            f"asks for {wanted}.",
        )


def _check_address(values: Mapping[str, Any], environ: Mapping[str, str]) -> None:
    """What other hosts connect to is one address, so that only that network reaches it."""
    name = "VLLM_HOST_IP"
    address = _value(name, environ)
    if address in WILDCARDS and not on_one_host(values):
        raise InvalidEnvironment(
            name,
            f"{name}={address} is every address of this host: ranks would listen on networks that they do "
            "not use, and tell others none to connect to. Give the one by which other hosts reach this one.",
        )


def _value(name: str, environ: Mapping[str, str]) -> Value:
    return BY_NAME[name].parse(environ.get(name))
