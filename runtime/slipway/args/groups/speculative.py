"""Arguments of speculative decoding: one object, and the flags that it replaced."""

from __future__ import annotations

from slipway.args.declare import Json, Key, arg, group
from slipway.args.groups.features import SPECULATION

SAMPLERS = ("rejection_sampler", "typical_acceptance_sampler")

DRAFT_QUANTIZATIONS = (
    "aqlm",
    "awq",
    "awq_marlin",
    "bitsandbytes",
    "compressed-tensors",
    "deepspeedfp",
    "experts_int8",
    "fbgemm_fp8",
    "fp8",
    "gguf",
    "gptq",
    "gptq_marlin",
    "gptq_marlin_24",
    "hqq",
    "ipex",
    "marlin",
    "modelopt",
    "moe_wna16",
    "neuron_quant",
    "nvfp4",
    "ptpc_fp8",
    "qqq",
    "quark",
    "tpu_int8",
)


@group("SpeculativeConfig")
class Speculative:
    """Speculative decoding. The single flags are old forms of the keys of --speculative-config."""

    disable_logprobs_during_spec_decoding: bool | None = arg(
        optional_value=True,
        replacement="speculative_config.disable_logprobs",
        unbuilt=SPECULATION,
    )
    """Old form of disable_logprobs."""

    ngram_prompt_lookup_max: int | None = arg(
        minimum=1, replacement="speculative_config.prompt_lookup_max", unbuilt=SPECULATION
    )
    """Old form of prompt_lookup_max."""

    ngram_prompt_lookup_min: int | None = arg(
        minimum=1, replacement="speculative_config.prompt_lookup_min", unbuilt=SPECULATION
    )
    """Old form of prompt_lookup_min."""

    num_speculative_tokens: int | None = arg(
        minimum=1, replacement="speculative_config.num_speculative_tokens", unbuilt=SPECULATION
    )
    """Old form of num_speculative_tokens."""

    spec_decoding_acceptance_method: str | None = arg(
        choices=SAMPLERS, replacement="speculative_config.acceptance_method", unbuilt=SPECULATION
    )
    """Old form of acceptance_method."""

    speculative_config: Json | None = arg(
        keys={
            "method": Key("str"),
            "model": Key("str"),
            "num_speculative_tokens": Key("int", minimum=1),
            "draft_tensor_parallel_size": Key("int", minimum=1),
            "max_model_len": Key("int", minimum=1),
            "disable_by_batch_size": Key("int", minimum=1),
            "disable_mqa_scorer": Key("bool"),
            "quantization": Key("str", choices=DRAFT_QUANTIZATIONS, nullable=True),
            "prompt_lookup_max": Key("int", minimum=1),
            "prompt_lookup_min": Key("int", minimum=1),
            "acceptance_method": Key("str", choices=SAMPLERS),
            "posterior_threshold": Key("float", minimum=0),
            "posterior_alpha": Key("float", minimum=0),
            "disable_logprobs": Key("bool"),
            "revision": Key("str", nullable=True),
            "code_revision": Key("str", nullable=True),
        },
        open_keys=False,
        unbuilt=SPECULATION,
    )
    """What drafts tokens ahead, how many, and how they are verified.

    method is ngram, eagle, eagle3, medusa, mlp_speculator, draft_model, mtp, or a model's own such
    as step3p5_mtp; model is the draft model.
    """

    speculative_disable_by_batch_size: int | None = arg(
        minimum=1, replacement="speculative_config.disable_by_batch_size", unbuilt=SPECULATION
    )
    """Old form of disable_by_batch_size."""

    speculative_disable_mqa_scorer: bool | None = arg(
        replacement="speculative_config.disable_mqa_scorer", unbuilt=SPECULATION
    )
    """Old form of disable_mqa_scorer."""

    speculative_draft_tensor_parallel_size: int | None = arg(
        aliases=("-spec-draft-tp",),
        minimum=1,
        replacement="speculative_config.draft_tensor_parallel_size",
        unbuilt=SPECULATION,
    )
    """Old form of draft_tensor_parallel_size."""

    speculative_max_model_len: int | None = arg(
        minimum=1,
        unit="tokens",
        replacement="speculative_config.max_model_len",
        unbuilt=SPECULATION,
    )
    """Old form of max_model_len."""

    speculative_model: str | None = arg(
        requires=("num_speculative_tokens",),
        replacement="speculative_config.model",
        unbuilt=SPECULATION,
    )
    """Old form of model."""

    speculative_model_quantization: str | None = arg(
        choices=DRAFT_QUANTIZATIONS,
        words={"none": None},
        replacement="speculative_config.quantization",
        unbuilt=SPECULATION,
    )
    """Old form of quantization."""

    typical_acceptance_sampler_posterior_alpha: float | None = arg(
        above=0, replacement="speculative_config.posterior_alpha", unbuilt=SPECULATION
    )
    """Old form of posterior_alpha."""

    typical_acceptance_sampler_posterior_threshold: float | None = arg(
        above=0, replacement="speculative_config.posterior_threshold", unbuilt=SPECULATION
    )
    """Old form of posterior_threshold."""
