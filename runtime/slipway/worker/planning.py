"""Decides how a model runs: native code or the fallback, element type, length, layout of the KV cache."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from slipway.dist.mesh import Mesh
from slipway.engine.config import EngineConfig
from slipway.envs import read
from slipway.load.arrays import DType, is_float
from slipway.load.checkpoint import Checkpoint
from slipway.load.config import Config, merged
from slipway.load.errors import LoadError
from slipway.load.extras import require_torch
from slipway.load.prompt_adapter import PromptAdapterLimits
from slipway.load.quantized.form import Form
from slipway.load.quantized.kv_scales import KVDivisors, KVScales, scales_of_file
from slipway.load.quantized.on_the_fly import ON_THE_FLY, OnTheFly, conversion
from slipway.model.kv import kv_layout
from slipway.model.limits import kv_cache_dtype, max_model_len, resolve_dtype
from slipway.model.pooling import Pooling, TokenIds, no_tokenizer, pooling_of
from slipway.model.rope import length_warning
from slipway.schemes.choice import Schemes
from slipway.schemes.notices import notices
from slipway.worker.adapter_plan import adapter_limits
from slipway.worker.device.forms import Arch, kept
from slipway.worker.encoder import encoder_route
from slipway.worker.explained import log_fallback, log_plan
from slipway.worker.kv_kinds import kv_held, kv_kinds, layer_bytes
from slipway.worker.native import native
from slipway.worker.plan import ModelPlan
from slipway.worker.pool import Pooler
from slipway.worker.route import Route
from slipway.worker.without_effect import without_effect


def _device_arch() -> int:
    """Of the device in use."""
    from slipway.worker.device.schemes import device_arch  # imports torch and Triton

    return device_arch()


def plan_model(
    checkpoint: Checkpoint,
    config: EngineConfig,
    token_ids: TokenIds = no_tokenizer,
    arch: Arch | None = None,
) -> ModelPlan:
    """Choose native code or the fallback, element type, length and KV layout. Reads no weights.

    token_ids  of tokens whose logits are scores
    arch       of the device, where it is CUDA's; None: of the one in use
    Raises LoadError where the model cannot run as asked.
    """
    settings = merged(checkpoint.config, config.hf_overrides, config.rope_scaling, config.rope_theta)
    quantized = settings.pop("quantization_config", None)  # the checkpoint's; transformers would act on it
    made = conversion(config.quantization, checkpoint.quantization)
    dtype, dtype_warning = resolve_dtype(config.dtype, checkpoint.source_dtype, config.device)
    kv_dtype, kv_warning = kv_cache_dtype(config.kv_cache_dtype, dtype, config.device), ""
    pooling = pooling_of(settings, checkpoint.folder, config.task, config.override_pooler_config, token_ids)
    if pooling is not None and pooling.max_length is not None:
        settings["max_sequence_length"] = pooling.max_length
    route = _route(settings, checkpoint, config, made, pooling)
    window = 0
    if config.disable_sliding_window:
        window = min((one.window for one in route.attentions if one.window), default=0)
        route = route.without_windows()
    mesh = Mesh.of(config)
    if mesh.tp > 1:
        shard = replace(
            mesh.shard(config.rank),
            whole_experts=config.enable_expert_parallel,
            whole_vocabulary=pooling is not None and bool(pooling.tokens),
            cuts_adapters=config.fully_sharded_loras,
        )
        route = route.on_rank(checkpoint, shard, dtype)
    if mesh.pp > 1:
        embeds = config.draft is not None and pooling is None  # its layers may read the model's
        route = route.on_stage(mesh.stage(config.rank), mesh.pp, config.layer_partition, embeds=embeds)
    own = None if route.stage is None else route.stage.layers
    stretch = max([1.0, *config.long_lora_scaling_factors]) if config.max_loras else 1.0
    length, warning = max_model_len(
        config.max_model_len,
        route.config,
        window,
        allow_long=read(os.environ).allow_long_max_model_len,
        stretch=stretch,
        chunk=route.chunk,
    )
    natural, _ = max_model_len(None, route.config, window, allow_long=False)
    layers = route.attentions
    if not layers and kv_dtype != dtype:
        kv_warning = (
            f"--kv-cache-dtype {config.kv_cache_dtype} has no effect: an encoder keeps no keys and values."
        )
        kv_dtype = dtype
    size_of = layer_bytes(config.device, kv_dtype)
    layout = kv_layout(kv_kinds(route, config), config.block_size, size_of, held=kv_held(route), own=own)
    warnings = [
        text for text in (dtype_warning, warning, kv_warning, length_warning(route.config, length)) if text
    ]
    warnings += notices(
        route.forms(checkpoint),
        _kept(config.device, dtype, arch or _device_arch),
        dtype,
        native=route.native,
        device=config.device.upper(),
        decoded=checkpoint.decoded.values(),
    )
    if config.enable_prompt_embeds:
        _check_takes_rows("enable_prompt_embeds", route)
    if quantized and made is None and not checkpoint.quantization:
        warnings.append(
            "Random weights are plain, whatever config.json says of quantization: --quantization "
            f"{', '.join(ON_THE_FLY)} quantizes them."
        )
    if pooling is not None and pooling.warning:
        warnings.append(pooling.warning)
    warnings += without_effect(config, route, pooling)
    has_scales = kv_dtype != dtype and is_float(kv_dtype)  # integers have them beside each position
    scales = _kv_scales(checkpoint, config, len(layers)) if has_scales else {}
    divisors = None
    if config.calculate_kv_scales and scales:
        origin = "the checkpoint" if config.quantization_param_path is None else "--quantization-param-path"
        warnings.append(f"--calculate-kv-scales has no effect: {origin} gives scales of keys and values.")
    elif config.calculate_kv_scales and has_scales:
        divisors, scales = _kv_divisors(), dict.fromkeys(range(len(layers)), (1.0, 1.0))
    if own is not None:
        scales = {layer - own.start: scale for layer, scale in scales.items() if layer in own}
    adapters = adapter_limits(config, dtype, warnings, route)
    pooler = None if pooling is None else Pooler(pooling)
    plan = ModelPlan(
        checkpoint,
        route,
        layout,
        length,
        dtype,
        kv_dtype,
        scales,
        divisors,
        adapters,
        _prompt_adapters(config, route, length, pools=pooling is not None),
        pooler,
        warnings,
        own_len=min(length, natural) if stretch > 1 and length <= natural * stretch else length,
    )
    log_plan(plan)
    return plan


def _prompt_adapters(
    config: EngineConfig, route: Route, length: int, *, pools: bool
) -> PromptAdapterLimits | None:
    """What is taken of prompt adapters. Raises LoadError where they cannot be served here."""
    if not config.max_prompt_adapters:
        return None
    _check_takes_rows("enable_prompt_adapter", route)
    if pools:
        raise LoadError(
            "UnsupportedFormat",
            "--enable-prompt-adapter: this model pools the rows of its prompts, and would pool those of "
            "virtual tokens with them.",
            hint="Leave --enable-prompt-adapter out, or serve the model with --task generate.",
            argument="enable_prompt_adapter",
        )
    if (most := config.max_prompt_adapter_token) > length - 2:
        raise LoadError(
            "UnsupportedFormat",
            f"--max-prompt-adapter-token {most} leaves no room for a prompt and an answer in a context of "
            f"{length} tokens.",
            hint="Lower it to the virtual tokens that the adapters have, or raise --max-model-len.",
            argument="max_prompt_adapter_token",
        )
    return PromptAdapterLimits(config.max_prompt_adapters, most)


def _check_takes_rows(argument: str, route: Route) -> None:
    """Raises LoadError where rows cannot stand in place of a prompt's tokens."""
    if route.spec is not None:
        return
    own = "an encoder" if route.native else "transformers' code"
    raise LoadError(
        "UnsupportedModel",
        f"--{argument.replace('_', '-')}: {own} embeds tokens alone; native decoders take embeddings.",
        hint="Leave the argument out, or serve one of the architectures with native code.",
        argument=argument,
    )


def _kept(device: str, dtype: DType, arch: Arch) -> Callable[[Form], bool]:
    """Whether matrices of a form are multiplied as they are stored."""
    return partial(kept, dtype=dtype, arch=arch) if device == "cuda" else Schemes(dtype).keeps


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


def _route(
    settings: Config,
    checkpoint: Checkpoint,
    config: EngineConfig,
    made: OnTheFly | None,
    pooling: Pooling | None,
) -> Route:
    """Native code where there is some and nothing else is asked for, else transformers'.

    Raises LoadError also where that does not pool.
    """
    if pooling is not None:
        if config.model_impl == "transformers":
            raise LoadError(
                "UnsupportedModel",
                f"--task {pooling.task} is computed by our own code, not with --model-impl transformers.",
                hint="Use --model-impl auto.",
                argument="task",
            )
        route = encoder_route(settings, made) or native(settings, made, pooling)
        if config.device != "cpu" and route.spec is not None and route.spec.both_ways:
            raise LoadError(
                "UnsupportedModel",
                f"{route.architecture} lets rows see those behind them, as config.json says: on CUDA its "
                "decoder sees what is before alone.",
                hint="Serve it with --device cpu.",
                argument="device",
            )
        return route
    if config.model_impl != "transformers":
        try:
            return native(settings, made)
        except LoadError as error:
            if error.code != "UnsupportedModel" or config.model_impl == "vllm":
                raise
            log_fallback(error)
    require_torch(
        "The model runs by transformers' code",
        "serve one of the architectures with native code",
        "transformers",
    )
    from slipway.worker.fallback import fallback  # imports torch and transformers

    return fallback(settings, checkpoint.folder, config, made)
