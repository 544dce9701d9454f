"""Decides how a model runs, before its weights are read; then builds it."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from slipway.engine.config import EngineConfig
from slipway.envs import read
from slipway.load.checkpoint import Checkpoint
from slipway.load.errors import LoadError
from slipway.model.config import Config, merged
from slipway.model.kv import KVLayout, kv_layout
from slipway.model.limits import max_model_len, resolve_dtype
from slipway.model.rope import length_warning
from slipway.model.route import Model, Room, Route
from slipway.model.spec import DecoderSpec
from slipway.schemes.dense import KERNEL_NAMES
from slipway.worker.lower import Native, native
from slipway_kernels.cpu import PagePool, Slots, Threads, page_bytes


@dataclass(frozen=True, slots=True)
class ModelPlan:
    """What is known of a model before its weights: how it runs, and what it needs."""

    checkpoint: Checkpoint
    route: Route
    kv: KVLayout
    max_model_len: int
    torch_dtype: torch.dtype
    """Of weights and KV cache."""
    warnings: list[str] = field(default_factory=list)
    """What the model made us decide otherwise than asked, in sentences."""

    @property
    def spec(self) -> DecoderSpec | None:
        """None where transformers' code runs the model."""
        return self.route.spec if isinstance(self.route, Native) else None

    @property
    def native(self) -> bool:
        return self.spec is not None

    @property
    def architecture(self) -> str:
        return self.route.architecture

    @property
    def vocab(self) -> int:
        return self.route.vocab

    @property
    def dtype(self) -> str:
        """bfloat16 or float32."""
        return str(self.torch_dtype).removeprefix("torch.")

    def build(
        self,
        slots: Slots,
        page_pool: PagePool,
        *,
        max_tokens: int,
        max_top: int,
        threads: int,
        progress: Callable[[str, int, int], None],
    ) -> Model:
        """Read the weights and make the model that computes over these slots and pages.

        max_tokens  most tokens of a step
        max_top     most alternatives that log-probabilities report
        Raises LoadError where checkpoint and configuration disagree.
        """
        progress("load", 0, self.checkpoint.total_bytes)
        room = Room(slots, page_pool, self.kv, self.torch_dtype, max_tokens, max_top, Threads(threads))
        return self.route.build(self.checkpoint, room)


def plan_model(checkpoint: Checkpoint, config: EngineConfig) -> ModelPlan:
    """Choose native code or the fallback, element type, length and KV layout. Reads no weights.

    Raises LoadError where the model cannot run as asked.
    """
    settings = merged(checkpoint.config, config.hf_overrides, config.rope_scaling, config.rope_theta)
    dtype, dtype_warning = resolve_dtype(config.dtype, checkpoint.source_dtype)
    route = _route(settings, checkpoint, config)
    window = 0
    if config.disable_sliding_window:
        window = min(filter(None, route.windows), default=0)
        route = route.without_windows()
    length, warning = max_model_len(
        config.max_model_len, route.config, window, allow_long=read(os.environ).allow_long_max_model_len
    )
    layer_bytes = page_bytes(1, *route.kv_shape, config.block_size, KERNEL_NAMES[dtype])
    layout = kv_layout(route.windows, layer_bytes, config.block_size)
    warnings = [text for text in (dtype_warning, warning, length_warning(route.config, length)) if text]
    return ModelPlan(checkpoint, route, layout, length, dtype, warnings)


def _route(settings: Config, checkpoint: Checkpoint, config: EngineConfig) -> Route:
    """Native code where there is some and nothing else is asked for, else transformers'."""
    if config.model_impl != "transformers":
        try:
            return native(settings)
        except LoadError as error:
            if error.code != "UnsupportedModel" or config.model_impl == "vllm":
                raise
    from slipway.worker.fallback import fallback  # imports transformers

    return fallback(settings, checkpoint.folder, config)
