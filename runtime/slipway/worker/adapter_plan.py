"""What a model takes of adapters, before its weights."""

from __future__ import annotations

import numpy as np

from slipway.engine.config import EngineConfig
from slipway.load.adapter import AdapterLimits
from slipway.load.arrays import DType
from slipway.load.errors import LoadError
from slipway.load.own_tokens import OwnLimits
from slipway.model.own_rows import unstretched
from slipway.worker.route import Route
from slipway_kernels.sampling.limits import LARGEST_VOCAB


def adapter_limits(
    config: EngineConfig, dtype: DType, warnings: list[str], route: Route
) -> AdapterLimits | None:
    """What is taken of adapters. Raises LoadError where they cannot be served here."""
    if not config.max_loras:
        return None
    if route.spec is None:
        own = "to encoders" if route.native else "by transformers' code, which runs this model"
        raise LoadError(
            "UnsupportedFormat",
            f"--enable-lora: our own code adds adapters to the decoders that it runs, and not {own}.",
            hint="Serve a decoder with native code, or leave --enable-lora out.",
            argument="enable_lora",
        )
    asked = dtype if config.lora_dtype == "auto" else np.dtype(config.lora_dtype)
    if asked != dtype and config.device == "cpu":
        warnings.append(
            f"--lora-dtype {asked} has no effect on CPU: adapters are multiplied in {dtype}, as "
            "the model itself is."
        )
        asked = dtype
    places = max(config.max_loras, config.max_cpu_loras or 0)
    rows = OwnLimits(config.lora_extra_vocab_size, _refused(config, route), _factors(config, route))
    return AdapterLimits(places, config.max_lora_rank, config.enable_lora_bias, config.max_loras, asked, rows)


def _refused(config: EngineConfig, route: Route) -> str:
    """Why no adapter may have rows of tokens of its own; empty: it may."""
    if config.draft is not None:
        return "the model that drafts for this one (--speculative-config) does not know"
    most = route.vocab + config.lora_extra_vocab_size
    if config.device == "cuda" and most > LARGEST_VOCAB:
        added = f"--lora-extra-vocab-size {config.lora_extra_vocab_size}"
        return f"with {added} makes {most} tokens, of which CUDA draws from {LARGEST_VOCAB} at most"
    return ""


def _factors(config: EngineConfig, route: Route) -> tuple[float, ...]:
    """By which adapters may stretch positions, ascending. Raises LoadError for what no rotation is."""
    factors = tuple(sorted({float(factor) for factor in config.long_lora_scaling_factors}))
    if not factors:
        return ()
    told = f"--long-lora-scaling-factors {' '.join(f'{factor:g}' for factor in factors)}"
    if not 1 <= factors[0] <= factors[-1] <= 1024:
        raise _unfit(f"{told}: a factor stretches positions 1 to 1024 times.", "Give such factors.")
    assert route.spec is not None, "adapters are of decoders with native code"
    if why := unstretched(route.spec):
        raise _unfit(
            f"{told}: no factor takes the place of the rotation of {route.architecture}: {why}.",
            "Leave the argument out.",
        )
    return factors


def _unfit(message: str, hint: str) -> LoadError:
    return LoadError("UnsupportedFormat", message, hint=hint, argument="long_lora_scaling_factors")
