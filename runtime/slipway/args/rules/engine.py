"""Rules of the model, the scheduler, the cache and the adapters."""

from __future__ import annotations

from slipway.args.model_names import wrong_adapter_name
from slipway.args.rules.rule import Given, Rule, Values, at_most
from slipway.args.schema import ARGUMENTS


def _long_prompts_fit(values: Values, given: Given) -> str | None:
    longest, budget = values["max_model_len"], values["max_num_batched_tokens"]
    both_known = "max_num_batched_tokens" in given and longest is not None and longest > 0
    if values["enable_chunked_prefill"] or not both_known or budget >= longest:
        return None
    return (
        f"--max-num-batched-tokens {budget} is smaller than --max-model-len {longest} with chunked "
        f"prefill off: a prompt longer than {budget} tokens could never run. Raise the first, lower "
        "the second, or drop --no-enable-chunked-prefill."
    )


def _prompt_adapters_have_tokens(values: Values, given: Given) -> str | None:
    if not values["enable_prompt_adapter"] or values["max_prompt_adapter_token"]:
        return None
    return (
        "--enable-prompt-adapter needs --max-prompt-adapter-token: no adapter has as few virtual tokens as "
        "its default, 0. Give as many as the longest one has."
    )


def _gguf_is_read_as_gguf(values: Values, given: Given) -> str | None:
    model, load_format = values["model"] or "", values["load_format"]
    if not model.endswith(".gguf") or load_format in ("auto", "gguf"):
        return None
    return f"{model} is a GGUF file: --load-format {load_format} cannot read it. Leave that argument out."


def _only_with_fp8(name: str) -> Rule:
    """An argument about scales that only an fp8 KV cache has."""

    def check(values: Values, given: Given) -> str | None:
        if not values[name] or values["kv_cache_dtype"].startswith("fp8"):
            return None
        return f"--{name.replace('_', '-')} has no effect without an fp8 --kv-cache-dtype."

    return Rule(name, check, warns=True)


def _whitespace_backend(values: Values, given: Given) -> str | None:
    backend = values["guided_decoding_backend"]
    if not values["guided_decoding_disable_any_whitespace"] or backend in ("auto", "xgrammar", "guidance"):
        return None
    return f"--guided-decoding-disable-any-whitespace has no effect with {backend}."


def _properties_backend(values: Values, given: Given) -> str | None:
    backend = values["guided_decoding_backend"]
    if not values["guided_decoding_disable_additional_properties"] or backend == "guidance":
        return None
    return (
        f"--guided-decoding-disable-additional-properties has no effect with {backend}, which allows only "
        "listed properties anyway."
    )


def _partial_prefills_are_chunks(values: Values, given: Given) -> str | None:
    if values["enable_chunked_prefill"] or values["max_num_partial_prefills"] == 1:
        return None
    return "--max-num-partial-prefills has no effect with chunked prefill off."


def _nothing_is_swapped(values: Values, given: Given) -> str | None:
    swaps = values["preemption_mode"] == "swap" or values["device"] != "cuda"
    if swaps or values["swap_space"] == ARGUMENTS["swap_space"].default:
        return None
    return "--swap-space has no effect without --preemption-mode swap."


ENGINE: tuple[Rule, ...] = (
    at_most(
        "max_long_partial_prefills",
        "max_num_partial_prefills",
        "long prompts are among the partly computed ones.",
    ),
    at_most("max_loras", "max_cpu_loras", "adapters in a batch are held in host memory too."),
    Rule(
        "max_num_batched_tokens",
        _long_prompts_fit,
        cel="!has(self.enableChunkedPrefill) || self.enableChunkedPrefill"
        " || !has(self.maxNumBatchedTokens) || !has(self.maxModelLen)"
        " || type(self.maxNumBatchedTokens) != int || type(self.maxModelLen) != int"
        " || self.maxNumBatchedTokens >= self.maxModelLen",
        message="with enableChunkedPrefill false, maxNumBatchedTokens must be at least maxModelLen",
    ),
    Rule("load_format", _gguf_is_read_as_gguf),
    Rule("lora_modules", wrong_adapter_name),
    Rule(
        "enable_prompt_adapter",
        _prompt_adapters_have_tokens,
        cel="!has(self.enablePromptAdapter) || !self.enablePromptAdapter"
        " || has(self.maxPromptAdapterToken) && self.maxPromptAdapterToken > 0",
        message="enablePromptAdapter needs a maxPromptAdapterToken above 0",
    ),
    _only_with_fp8("calculate_kv_scales"),
    _only_with_fp8("quantization_param_path"),
    Rule("guided_decoding_disable_any_whitespace", _whitespace_backend, warns=True),
    Rule("guided_decoding_disable_additional_properties", _properties_backend, warns=True),
    Rule("max_num_partial_prefills", _partial_prefills_are_chunks, warns=True),
    Rule("swap_space", _nothing_is_swapped, warns=True),
)
