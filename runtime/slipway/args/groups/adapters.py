"""Arguments of adapters."""

from __future__ import annotations

from slipway.args.declare import arg, group


@group("LoRAConfig")
class LoRA:
    """LoRA adapters."""

    enable_lora: bool = arg(False, negatable=True)
    """Serve LoRA adapters beside the model."""

    enable_lora_bias: bool = arg(False, negatable=True, no_effect_without=("enable_lora",))
    """Allow adapters with biases."""

    fully_sharded_loras: bool = arg(False, negatable=True, no_effect_without=("enable_lora",))
    """Split both matrices of an adapter over the tensor parallel ranks, not one.

    Each rank holds about an Nth of an adapter, and all meet once more for each product to which one adds.
    What the embedding, the head and experts have is as without it.
    """

    long_lora_scaling_factors: list[float] | None = arg(no_effect_without=("enable_lora",))
    """Scaling factors of adapters that stretch the context. Unset allows the model's own only.

    With one, --max-model-len may be as many times the model's length; requests without such an adapter keep
    to that. For models with plain rotary embeddings.
    """

    lora_dtype: str = arg(
        "auto", choices=("auto", "bfloat16", "float16", "float32"), no_effect_without=("enable_lora",)
    )
    """Type of the adapters on CUDA. auto is the model's, which they always have on CPU."""

    lora_extra_vocab_size: int = arg(256, minimum=0, no_effect_without=("enable_lora",))
    """Most tokens that an adapter may add to the vocabulary."""

    max_cpu_loras: int | None = arg(minimum=1, no_effect_without=("enable_lora",))
    """Adapters held in host memory, at least --max-loras. Unset is --max-loras.

    Of more than these, those that were not asked for the longest are read again when they are.
    """

    max_lora_rank: int = arg(16, minimum=1, maximum=512, no_effect_without=("enable_lora",))
    """Largest rank of an adapter."""

    max_loras: int = arg(1, minimum=1, no_effect_without=("enable_lora",))
    """Different adapters in one batch."""


@group("PromptAdapterConfig")
class PromptAdapter:
    """Prompt adapters."""

    enable_prompt_adapter: bool = arg(False, negatable=True)
    """Serve prompt adapters beside the model. For native models that generate."""

    max_prompt_adapter_token: int = arg(0, minimum=0, no_effect_without=("enable_prompt_adapter",))
    """Most virtual tokens of a prompt adapter; above 0 with --enable-prompt-adapter."""

    max_prompt_adapters: int = arg(1, minimum=1, no_effect_without=("enable_prompt_adapter",))
    """Different prompt adapters in one batch, and in memory.

    Of more than these, those that were not asked for the longest are read again when they are.
    """
