"""What was asked for and has no effect on a model, or another than its name says, in sentences."""

from __future__ import annotations

from collections.abc import Iterator

from slipway.engine.config import EngineConfig
from slipway.model.pooling import Pooling
from slipway.model.spec import Moe
from slipway.worker.attention_libraries import missing_package
from slipway.worker.route import Route


def without_effect(config: EngineConfig, route: Route, pooling: Pooling | None) -> list[str]:
    found = [*_of_arguments(config, route)]
    return found if pooling is None else [*found, *_of_pooling(config, route, pooling)]


def _of_arguments(config: EngineConfig, route: Route) -> Iterator[str]:
    is_encoder = not route.attentions
    if config.enable_expert_parallel and (why := _without_experts(route, config.tensor_parallel_size)):
        yield f"--enable-expert-parallel has no effect: {why}."
    if config.load_format == "fastsafetensors":
        yield (
            "--load-format fastsafetensors reads safetensors ahead by threads of our own: that library fills "
            "a device's memory, and here weights are packed on the host as they are read."
        )
    backend = f"--attention-backend {config.attention_backend}"
    if config.device == "cuda" and is_encoder and config.attention_backend not in ("auto", "TRITON"):
        yield f"{backend} has no effect: an encoder's rows attend both ways, by our own kernel."
    elif config.device == "cuda" and (package := missing_package(config.attention_backend)):
        yield f"{backend} is computed by our own kernels: the package {package} is not installed."
    if config.device == "cpu" and config.attention_backend not in ("auto", "CPU"):
        yield f"{backend} has no effect on CPU: it acts on CUDA only."
    if config.device == "cuda" and config.graph_sizes and not route.native:
        yield (
            f"transformers' code runs {route.architecture}: its steps are launched kernel by kernel, not as "
            "CUDA graphs, which costs small batches most."
        )


def _of_pooling(config: EngineConfig, route: Route, pooling: Pooling) -> Iterator[str]:
    asked = {
        "Speculation": bool(config.num_drafts or config.draft),
        "--logits-processor-pattern": config.processors,
        "--enable-prompt-embeds": config.enable_prompt_embeds,
    }
    why = f"--task {pooling.task} reads texts and tokens, and draws none"
    yield from (f"{name} has no effect: {why}." for name, given in asked.items() if given)
    if config.swap_bytes:
        kept = "all pages of a prompt are free before it starts, and it is not preempted."
        why = kept if route.attentions else "an encoder keeps no keys and values."
        yield f"--preemption-mode swap has no effect: {why}"


def _without_experts(route: Route, ranks: int) -> str:
    """Why no experts are given out to ranks; empty: some are."""
    if ranks == 1:
        return "one rank has all experts, if there are any"
    layers = () if route.spec is None else route.spec.layers
    return "" if any(isinstance(layer.mlp, Moe) for layer in layers) else f"{route.architecture} has none"
