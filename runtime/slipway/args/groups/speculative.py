"""Arguments of speculative decoding: one object, and the flags that it replaced."""

from __future__ import annotations

from slipway.args.declare import Disposition, Json, Key, Unbuilt, arg, group
from slipway.args.speculation import IDLE, METHODS, TYPICAL, unbuilt_part

SAMPLERS = ("rejection_sampler", TYPICAL)

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
        disposition=Disposition.WARN,
        reason=IDLE["disable_logprobs"],
    )
    """Old form of disable_logprobs."""

    ngram_prompt_lookup_max: int | None = arg(minimum=1, replacement="speculative_config.prompt_lookup_max")
    """Old form of prompt_lookup_max."""

    ngram_prompt_lookup_min: int | None = arg(minimum=1, replacement="speculative_config.prompt_lookup_min")
    """Old form of prompt_lookup_min."""

    num_speculative_tokens: int | None = arg(
        minimum=1, replacement="speculative_config.num_speculative_tokens"
    )
    """Old form of num_speculative_tokens."""

    spec_decoding_acceptance_method: str | None = arg(
        choices=SAMPLERS,
        replacement="speculative_config.acceptance_method",
    )
    """Old form of acceptance_method."""

    spec_method: str | None = arg(short_for="speculative_config.method", in_spec=False)
    """The same as --speculative-config.method."""

    spec_model: str | None = arg(short_for="speculative_config.model", in_spec=False)
    """The same as --speculative-config.model."""

    spec_tokens: int | None = arg(
        minimum=1, short_for="speculative_config.num_speculative_tokens", in_spec=False
    )
    """The same as --speculative-config.num_speculative_tokens."""

    speculative_config: Json | None = arg(
        aliases=("-sc",),
        keys={
            "method": Key("str", choices=METHODS),
            "model": Key("str"),
            "num_speculative_tokens": Key("int", minimum=1),
            "draft_tensor_parallel_size": Key("int", minimum=1),
            "max_model_len": Key("int", minimum=1),
            "disable_by_batch_size": Key("int", minimum=1),
            "disable_mqa_scorer": Key("bool"),
            "quantization": Key("str", choices=(*DRAFT_QUANTIZATIONS, "int4", "int8"), nullable=True),
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
        unbuilt=Unbuilt(
            "other ways to quantize a draft model",
            works=({"method": "ngram", "num_speculative_tokens": 5},),
            part=unbuilt_part,
        ),
    )
    """What drafts tokens ahead, how many, and how they are verified.

    method ngram looks up where the last prompt_lookup_min to prompt_lookup_max tokens of a request stood in
    it before (5, or both the one that is given), and drafts up to num_speculative_tokens of what followed
    there. draft_model asks a smaller model with the same tokens, eagle and eagle3 layers that were trained
    on this one and go on from its hidden states, medusa and mlp_speculator heads on its last ones: model,
    revision, code_revision, quantization and max_model_len say which and how, and heads need no
    num_speculative_tokens. mtp, of which the others that end in mtp are names, asks the layers for it that
    the model's own checkpoint has, and needs neither. Where model is all that is given, its configuration
    says which of these it is. A draft model is shared by draft_tensor_parallel_size ranks: as many as the
    target is, or 1, where each has all of it, as small ones want it; of the others nothing is to be chosen.
    No token changes by any. Requests whose drafts are not worth their time pause them; from
    disable_by_batch_size running requests on there are none.

    acceptance_method typical_acceptance_sampler does change tokens, of requests with a temperature: a draft
    is taken where its probability, by the request's own settings, exceeds posterior_threshold (0.09) or
    posterior_alpha (0.3) · exp(-entropy), whichever is less. A seed then repeats a text only where the same
    drafts are verified. rejection_sampler is the usual rule.
    """

    speculative_disable_by_batch_size: int | None = arg(
        minimum=1, replacement="speculative_config.disable_by_batch_size"
    )
    """Old form of disable_by_batch_size."""

    speculative_disable_mqa_scorer: bool | None = arg(
        replacement="speculative_config.disable_mqa_scorer",
        disposition=Disposition.WARN,
        reason=IDLE["disable_mqa_scorer"],
    )
    """Old form of disable_mqa_scorer."""

    speculative_draft_tensor_parallel_size: int | None = arg(
        aliases=("-spec-draft-tp",),
        minimum=1,
        replacement="speculative_config.draft_tensor_parallel_size",
    )
    """Old form of draft_tensor_parallel_size."""

    speculative_max_model_len: int | None = arg(
        minimum=1,
        unit="tokens",
        replacement="speculative_config.max_model_len",
    )
    """Old form of max_model_len."""

    speculative_model: str | None = arg(
        requires=("num_speculative_tokens",),
        replacement="speculative_config.model",
    )
    """Old form of model."""

    speculative_model_quantization: str | None = arg(
        choices=DRAFT_QUANTIZATIONS,
        words={"none": None},
        replacement="speculative_config.quantization",
    )
    """Old form of quantization."""

    typical_acceptance_sampler_posterior_alpha: float | None = arg(
        above=0, replacement="speculative_config.posterior_alpha"
    )
    """Old form of posterior_alpha."""

    typical_acceptance_sampler_posterior_threshold: float | None = arg(
        above=0, replacement="speculative_config.posterior_threshold"
    )
    """Old form of posterior_threshold."""
