"""Rules of what guesses tokens."""

from __future__ import annotations

from slipway.args.declare import Disposition
from slipway.args.rules.rule import Given, Rule, Values
from slipway.args.schema import ARGUMENTS
from slipway.args.speculation import NAMED, NGRAM, NUMBERED, POSTERIOR, TYPICAL, idle_keys, method_of


def _lookup_window(values: Values, given: Given) -> str | None:
    config = values["speculative_config"] or {}
    low, high = config.get("prompt_lookup_min"), config.get("prompt_lookup_max")
    if low is None or high is None or low <= high:
        return None
    return (
        f"prompt_lookup_min {low} is larger than prompt_lookup_max {high} in --speculative-config: "
        "no n-gram has such a length. Lower the first or raise the second."
    )


def _drafts_have_a_number(values: Values, given: Given) -> str | None:
    config = values["speculative_config"] or {}
    method, number = method_of(config), config.get("num_speculative_tokens")
    if method is None and number is not None:
        return (
            f"--speculative-config has num_speculative_tokens {number} and nothing that drafts them. Add the "
            'method, as in {"method": "ngram", "num_speculative_tokens": 5}, or leave it out.'
        )
    if method in NAMED and not config.get("model"):
        return (
            f"--speculative-config asks for the method {method} without model, the folder or repository of "
            "what drafts. Give it."
        )
    if number is not None or config.get("method", "ngram") not in (*NUMBERED, *NGRAM):
        return None
    if method != "ngram" and "method" not in config:  # it may be heads, which have a number of their own
        return None
    return (
        f"--speculative-config asks for the method {method} without num_speculative_tokens, the most that a "
        "step verifies beside the next token. Give it: 3 to 7 are usual."
    )


def _keys_without_effect(values: Values, given: Given) -> str | None:
    config = values["speculative_config"] or {}
    if config and method_of(config) is None:
        return f"--speculative-config has no effect by {', '.join(config)}: it names no method."
    method = method_of(config)
    old_forms = {  # which say so themselves
        ARGUMENTS[name].replacement
        for name in given
        if name in ARGUMENTS and ARGUMENTS[name].disposition is Disposition.WARN
    }
    idle = {
        key: why for key, why in idle_keys(config).items() if f"speculative_config.{key}" not in old_forms
    }
    shown = "; ".join(f"{key} ({why})" for key, why in idle.items())
    return (
        f"With the method {method} these keys of --speculative-config have no effect: {shown}."
        if idle
        else None
    )


def _typical_acceptance(values: Values, given: Given) -> str | None:
    config = values["speculative_config"] or {}
    idle = [key for key in POSTERIOR if key in config]
    if not idle or config.get("acceptance_method") == TYPICAL:
        return None
    has = "has" if len(idle) == 1 else "have"
    return (
        f"{' and '.join(idle)} in --speculative-config {has} no effect without the acceptance_method "
        f"{TYPICAL}."
    )


def _posterior_is_a_probability(values: Values, given: Given) -> str | None:
    config = values["speculative_config"] or {}
    threshold, alpha = (config.get(key) for key in POSTERIOR)
    if threshold is not None and not 0 < threshold < 1:
        return (
            f"posterior_threshold {threshold:g} in --speculative-config is no probability between 0 and 1: "
            "every draft would be accepted, or only where posterior_alpha says so. 0.09 is usual."
        )
    if alpha is not None and not alpha > 0:
        return (
            f"posterior_alpha {alpha:g} in --speculative-config is not above 0: every draft with a "
            "probability would be accepted. 0.3 is usual."
        )
    return None


SPECULATION: tuple[Rule, ...] = (
    Rule(
        "speculative_config",
        _lookup_window,
        cel="!has(self.speculativeConfig) || !has(self.speculativeConfig.prompt_lookup_min)"
        " || !has(self.speculativeConfig.prompt_lookup_max)"
        " || self.speculativeConfig.prompt_lookup_min <= self.speculativeConfig.prompt_lookup_max",
        message="prompt_lookup_min may not exceed prompt_lookup_max",
    ),
    Rule("speculative_config", _drafts_have_a_number),
    Rule(
        "speculative_config",
        _posterior_is_a_probability,
        cel="!has(self.speculativeConfig)"
        " || (!has(self.speculativeConfig.posterior_threshold)"
        " || self.speculativeConfig.posterior_threshold > 0.0"
        " && self.speculativeConfig.posterior_threshold < 1.0)"
        " && (!has(self.speculativeConfig.posterior_alpha) || self.speculativeConfig.posterior_alpha > 0.0)",
        message="posterior_threshold must lie between 0 and 1, and posterior_alpha above 0",
    ),
    Rule("speculative_config", _typical_acceptance, warns=True),
    Rule("speculative_config", _keys_without_effect, warns=True),
)
