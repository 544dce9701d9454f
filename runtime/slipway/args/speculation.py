"""What --speculative-config means: which method drafts tokens, and which of its keys that method reads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from slipway.args.groups.model import WORKING_QUANTIZATIONS

Config = Mapping[str, Any]

MTP = (
    *("mtp", "deepseek_mtp", "ernie_mtp", "glm4_moe_mtp", "longcat_flash_mtp", "mimo_mtp", "qwen3_next_mtp"),
    "step3p5_mtp",
)
"""All names of the one method: which layers there are is a matter of the model."""
METHODS = ("ngram", "[ngram]", "draft_model", "eagle", "eagle3", "medusa", "mlp_speculator", *MTP)
NGRAM = ("ngram", "[ngram]")
"""Both spellings, which older commands give as the model."""
NUMBERED = ("draft_model", "eagle", "eagle3")
"""Methods by which a model drafts as many tokens ahead as it is asked for."""
NAMED = (*NUMBERED, "medusa", "mlp_speculator")
"""Methods by which a model drafts that has to be named."""
MODELS = (*NAMED, "mtp")
"""Methods by which a model drafts."""
LOOKUP = ("prompt_lookup_min", "prompt_lookup_max")
USUAL_LOOKUP = 5
"""Tokens of the n-gram that is looked up, where neither bound is given."""
TYPICAL = "typical_acceptance_sampler"
POSTERIOR = ("posterior_threshold", "posterior_alpha")
USUAL_POSTERIOR = (0.09, 0.3)

IDLE = {
    "disable_logprobs": "log-probabilities are exact with drafts, too, and given where a request asks",
    "disable_mqa_scorer": "all drafts of a step are verified in one pass",
}
"""Keys that change nothing of any method, and why."""
OF_MODELS = (
    *("code_revision", "draft_tensor_parallel_size", "max_model_len", "model", "quantization", "revision"),
)
"""Keys that change nothing of n-gram speculation."""
OF_FILES = ("code_revision", "revision")
"""Keys that change nothing of MTP without a model."""


def method_of(config: Config | None) -> str | None:
    """The method that a configuration names or implies; None where it names nothing that drafts."""
    config = config or {}
    method, model = config.get("method"), config.get("model")
    if method is None:
        method = "draft_model" if model else None
        if model in NGRAM or (not model and any(key in config for key in LOOKUP)):
            method = "ngram"
    if method in NGRAM:
        return "ngram"
    return "mtp" if method in MTP else method


def unbuilt_part(config: Config) -> str:
    """What of this configuration no release has yet, in words; empty where all of it works."""
    method, quantization = method_of(config), config.get("quantization")
    if method not in MODELS:
        return ""
    return "" if quantization in (None, *WORKING_QUANTIZATIONS) else f"a draft model's {quantization}"


def idle_keys(config: Config) -> dict[str, str]:
    """Keys that say something and change nothing of the method, each with the reason."""
    said = {key for key, value in config.items() if value is not None and value is not False}
    if method_of(config) == "ngram":
        reasons = IDLE | dict.fromkeys(OF_MODELS, "a draft model's")
    else:
        reasons = IDLE | dict.fromkeys(LOOKUP, "of n-grams")
    if method_of(config) == "mtp" and not config.get("model"):
        reasons |= dict.fromkeys(OF_FILES, "the layers are those of the checkpoint that is served")
    return {key: why for key, why in sorted(reasons.items()) if key in said and config[key] not in NGRAM}


def posterior(config: Config) -> tuple[float, float] | None:
    """Threshold and alpha of typical acceptance; None where drafts are accepted as they are drawn."""
    if config.get("acceptance_method") != TYPICAL:
        return None
    threshold, alpha = (config.get(key) for key in POSTERIOR)
    usual_threshold, usual_alpha = USUAL_POSTERIOR
    return usual_threshold if threshold is None else threshold, usual_alpha if alpha is None else alpha


def lookup_window(config: Config) -> tuple[int, int]:
    """Tokens of the shortest and of the longest n-gram that is looked up: one alone stands for both."""
    low, high = (config.get(key) for key in LOOKUP)
    return low or high or USUAL_LOOKUP, high or low or USUAL_LOOKUP
