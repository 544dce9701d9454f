"""Decides how a model runs, before its weights are read."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TypeVar

from slipway.engine.config import EngineConfig
from slipway.envs import read
from slipway.load.adapter import Adapter, read_adapter
from slipway.load.arrays import ELEMENTS, DType
from slipway.load.checkpoint import Checkpoint
from slipway.load.config import Config, merged
from slipway.load.errors import LoadError
from slipway.load.extras import require_torch
from slipway.load.progress import Progress
from slipway.load.quantized.form import Form
from slipway.load.quantized.kv_scales import KVDivisors, KVScales, scales_of_file
from slipway.load.quantized.on_the_fly import ON_THE_FLY, OnTheFly, conversion
from slipway.model.kv import KVLayout, kv_layout
from slipway.model.limits import kv_cache_dtype, max_model_len, resolve_dtype
from slipway.model.rope import length_warning
from slipway.schemes.choice import Schemes
from slipway.schemes.notices import notices
from slipway.worker.native import native
from slipway.worker.route import NewModel, Route
from slipway_kernels.cpu import PageMemory, Slots, Threads, page_bytes
from slipway_kernels.cpu.step import Stepper

AnyStepper = TypeVar("AnyStepper", bound=Stepper)


@dataclass(frozen=True, slots=True)
class ModelPlan:
    """What is known of a model before its weights: how it runs, and what it needs."""

    checkpoint: Checkpoint
    route: Route
    kv: KVLayout
    max_model_len: int
    element: DType
    """Of weights and activations."""
    kv_dtype: DType
    """Of the KV cache."""
    kv_scales: KVScales = field(default_factory=dict)
    """What keys and values are divided by where the cache is fp8, at first; empty where it is not."""
    kv_divisors: KVDivisors | None = None
    """How the first step finds the scales that keys and values have from then on; None: it does not."""
    adapters: Sequence[Adapter] = ()
    """What requests may ask to be added to the model, by their place."""
    warnings: list[str] = field(default_factory=list)
    """What the model made us decide otherwise than asked, in sentences."""

    def length_in(self, pages: int) -> int:
        """The longest request that so many pages hold."""
        length = self.max_model_len
        return length if pages >= self.kv.pages_for(length) else self.kv.tokens_in(pages)

    def read(self, threads: int, progress: Progress) -> NewModel:
        """Read the weights, for a CPU. Raises LoadError where checkpoint and configuration disagree."""
        progress("load", 0, self.checkpoint.total_bytes)
        return self.route.on_cpu(self, Threads(threads))

    def stepper(
        self,
        kind: type[AnyStepper],
        threads: Threads,
        slots: Slots,
        pages: PageMemory,
        max_tokens: int,
        max_top: int,
    ) -> AnyStepper:
        """What computes a step on a CPU, over these slots and pages."""
        stepper = kind(
            slots,
            max_tokens,
            ELEMENTS[self.element],
            threads,
            self.route.vocab,
            max_top,
            pages,
            self.kv.block_sizes,
            ELEMENTS[self.kv_dtype],
        )
        for layer, (keys, values) in self.kv_scales.items():
            stepper.scale_kv(self.kv.layer_place[layer], keys, values)
        return stepper


def plan_model(checkpoint: Checkpoint, config: EngineConfig) -> ModelPlan:
    """Choose native code or the fallback, element type, length and KV layout. Reads no weights.

    Raises LoadError where the model cannot run as asked.
    """
    settings = merged(checkpoint.config, config.hf_overrides, config.rope_scaling, config.rope_theta)
    quantized = settings.pop("quantization_config", None)  # the checkpoint's; transformers would act on it
    made = conversion(config.quantization, checkpoint.quantization)
    dtype, dtype_warning = resolve_dtype(config.dtype, checkpoint.source_dtype, config.device)
    kv_dtype = kv_cache_dtype(config.kv_cache_dtype, dtype)
    route = _route(settings, checkpoint, config, made)
    window = 0
    if config.disable_sliding_window:
        window = min((one.window for one in route.attentions if one.window), default=0)
        route = route.without_windows()
    length, warning = max_model_len(
        config.max_model_len, route.config, window, allow_long=read(os.environ).allow_long_max_model_len
    )
    hybrid, layers = not config.disable_hybrid_kv_cache_manager, route.attentions
    kinds = [(one.window if hybrid else 0, (one.kv_heads, one.head_dim)) for one in layers]
    layout = kv_layout(kinds, config.block_size, _layer_bytes(config.device, kv_dtype))
    warnings = [text for text in (dtype_warning, warning, length_warning(route.config, length)) if text]
    warnings += notices(
        route.forms(checkpoint),
        _kept(config.device, dtype),
        dtype,
        native=route.spec is not None,
        device=config.device.upper(),
    )
    if config.device == "cpu" and config.attention_backend not in ("auto", "CPU"):
        asked = f"--attention-backend {config.attention_backend}"
        warnings.append(f"{asked} has no effect on CPU: it acts on CUDA only.")
    if config.device == "cuda" and config.graph_sizes and route.spec is None:
        warnings.append(
            f"transformers' code runs {route.architecture}: its steps are launched kernel by kernel, not as "
            "CUDA graphs, which costs small batches most."
        )
    if quantized and made is None and not checkpoint.quantization:
        warnings.append(
            "Random weights are plain, whatever config.json says of quantization: --quantization "
            f"{', '.join(ON_THE_FLY)} quantizes them."
        )
    scales = _kv_scales(checkpoint, config, len(layers)) if kv_dtype != dtype else {}
    divisors = None
    if config.calculate_kv_scales and scales:
        origin = "the checkpoint" if config.quantization_param_path is None else "--quantization-param-path"
        warnings.append(f"--calculate-kv-scales has no effect: {origin} gives scales of keys and values.")
    elif config.calculate_kv_scales and kv_dtype != dtype:
        divisors, scales = _kv_divisors(), dict.fromkeys(range(len(layers)), (1.0, 1.0))
    adapters = _adapters(config, route.spec is not None)
    return ModelPlan(checkpoint, route, layout, length, dtype, kv_dtype, scales, divisors, adapters, warnings)


def _adapters(config: EngineConfig, native: bool) -> list[Adapter]:
    """Those that the configuration names, open. Raises LoadError where they cannot be read or served here."""
    if config.adapters and (config.device != "cpu" or not native):
        raise LoadError(
            "UnsupportedFormat",
            f"Adapters ({', '.join(config.adapters)}) are added by our own code on CPU alone.",
            hint="Serve the model with --device cpu, or leave the adapters out.",
            argument="lora_modules",
        )
    return [read_adapter(name, Path(folder).expanduser()) for name, folder in config.adapters.items()]


def _layer_bytes(device: str, dtype: DType) -> Callable[[int, int, int], int]:
    """What a layer takes of a page, by key heads, their size, and tokens."""
    if device == "cuda":
        return lambda heads, size, tokens: 2 * heads * size * tokens * dtype.itemsize
    return lambda heads, size, tokens: page_bytes(1, heads, size, tokens, ELEMENTS[dtype])


def _kept(device: str, dtype: DType) -> Callable[[Form], bool]:
    """Whether matrices of a form are multiplied as they are stored."""
    if device != "cuda":
        return Schemes(dtype).keeps
    from slipway.worker.device.schemes import keeps  # imports torch and Triton

    return partial(keeps, dtype=dtype)


def _kv_scales(checkpoint: Checkpoint, config: EngineConfig, layers: int) -> KVScales:
    """By layer of the model; a file's go before the checkpoint's. Raises LoadError for layers beyond."""
    path = config.quantization_param_path
    scales = checkpoint.kv_scales() if path is None else scales_of_file(path)
    if scales and max(scales) >= layers:
        raise LoadError(
            "BadCheckpoint",
            f"Scales of an fp8 KV cache are given for layer {max(scales)}; the model has {layers} layers.",
            hint="They are of another model: correct --quantization-param-path, or fetch the model again.",
            argument="model" if path is None else "quantization_param_path",
        )
    return scales


def _kv_divisors() -> KVDivisors:
    """By which the first step finds scales.

    Later keys and values may be larger than the first. e4m3 ends at 448, so that divisors of 200 and 100
    leave room for 2.2 and 4.5 times as much; and in floats that room costs nothing but the smallest numbers.
    """
    environment = read(os.environ)
    return float(environment.k_scale_constant), float(environment.v_scale_constant)


def _route(settings: Config, checkpoint: Checkpoint, config: EngineConfig, made: OnTheFly | None) -> Route:
    """Native code where there is some and nothing else is asked for, else transformers'."""
    if config.model_impl != "transformers":
        try:
            return native(settings, made)
        except LoadError as error:
            if error.code != "UnsupportedModel" or config.model_impl == "vllm":
                raise
    require_torch(
        "The model runs by transformers' code",
        "serve one of the architectures with native code",
        "transformers",
    )
    from slipway.worker.fallback import fallback  # imports torch and transformers

    return fallback(settings, checkpoint.folder, config, made)
