"""Arguments of adapters."""

from __future__ import annotations

from slipway.args.declare import arg, group
from slipway.args.groups.features import ADAPTERS, PROMPT_ADAPTERS


@group("LoRAConfig")
class LoRA:
    """LoRA adapters."""

    enable_lora: bool = arg(False, negatable=True, unbuilt=ADAPTERS)
    """Serve LoRA adapters beside the model."""

    enable_lora_bias: bool = arg(False, negatable=True, no_effect_without=("enable_lora",), unbuilt=ADAPTERS)
    """Allow adapters with biases."""

    fully_sharded_loras: bool = arg(False, negatable=True, unbuilt=ADAPTERS)
    """Split both matrices of an adapter over the tensor parallel group, not one."""

    long_lora_scaling_factors: list[float] | None = arg(unbuilt=ADAPTERS)
    """Scaling factors of adapters that stretch the context. Unset allows the model's own only."""

    lora_dtype: str = arg("auto", choices=("auto", "bfloat16", "float16", "float32"), unbuilt=ADAPTERS)
    """Type of the adapters. auto is the model's."""

    lora_extra_vocab_size: int = arg(256, minimum=0, unbuilt=ADAPTERS)
    """Most tokens that an adapter may add to the vocabulary."""

    max_cpu_loras: int | None = arg(minimum=1, unbuilt=ADAPTERS)
    """Adapters held in host memory, at least --max-loras. Unset is --max-loras."""

    max_lora_rank: int = arg(16, minimum=1, unbuilt=ADAPTERS)
    """Largest rank of an adapter."""

    max_loras: int = arg(1, minimum=1, unbuilt=ADAPTERS)
    """Different adapters in one batch."""


@group("PromptAdapterConfig")
class PromptAdapter:
    """Prompt adapters."""

    enable_prompt_adapter: bool = arg(False, negatable=True, unbuilt=PROMPT_ADAPTERS)
    """Serve prompt adapters beside the model."""

    max_prompt_adapter_token: int = arg(0, minimum=0, unbuilt=PROMPT_ADAPTERS)
    """Most virtual tokens of a prompt adapter."""

    max_prompt_adapters: int = arg(1, minimum=1, unbuilt=PROMPT_ADAPTERS)
    """Different prompt adapters in one batch."""
