"""What arguments must be to each other. One list: the command line checks it, the CRD carries its CEL."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from slipway.args.declare import Argument, Disposition
from slipway.args.model_names import wrong_adapter_name
from slipway.args.schema import ARGUMENTS, OF_ANSWERS, RUN_BATCH, Schema
from slipway.args.speculation import NAMED, NGRAM, NUMBERED, POSTERIOR, TYPICAL, idle_keys, method_of
from slipway.args.values import near
from slipway.metrics import METRICS, parse_version

Values = Mapping[str, Any]
Given = frozenset[str]
Finding = Callable[[Values, Given], str | None]


@dataclass(frozen=True, slots=True)
class Rule:
    """`finds` returns a sentence where the rule is broken.

    A rule that only `warns` names a setting without effect or a hazard. `cel` is the same rule over
    `spec.engine`, where every field that it reads is one; `message` is what the API server says.
    """

    argument: str
    finds: Finding
    warns: bool = False
    cel: str = ""
    message: str = ""


def _flag(name: str) -> str:
    return ARGUMENTS[name].flag


def _camel(*names: str) -> tuple[str, ...] | None:
    """Their fields in `spec.engine`, where all of them are in it."""
    arguments = [ARGUMENTS[name] for name in names]
    return tuple(a.camel for a in arguments) if all(a.in_spec for a in arguments) else None


def _asked(values: Values, name: str) -> bool:
    """Given a value that says something, itself or through the key that replaced it."""
    target, _, key = ARGUMENTS[name].replacement.partition(".")
    return bool(values[name]) or bool(key and (values[target] or {}).get(key) is not None)


def needs(argument: Argument, needed: str) -> Rule:
    """Refused without the other."""

    def finds(values: Values, given: Given) -> str | None:
        if not values[argument.name] or _asked(values, needed):
            return None
        return f"{argument.flag} needs {_flag(needed)}. Give both, or neither."

    fields = _camel(argument.name, needed)
    cel = ""
    if fields:
        asks = f"has(self.{fields[0]})" + (f" && self.{fields[0]}" if argument.kind == "bool" else "")
        cel = f"!({asks}) || has(self.{fields[1]})"
        target, _, key = ARGUMENTS[needed].replacement.partition(".")
        if key:
            config = ARGUMENTS[target].camel
            cel += f" || (has(self.{config}) && has(self.{config}.{key}))"
    return Rule(argument.name, finds, cel=cel, message=f"{argument.camel} needs {ARGUMENTS[needed].camel}")


def without_effect(argument: Argument, needed: str) -> Rule:
    """A setting of something that is not on."""

    def finds(values: Values, given: Given) -> str | None:
        if argument.name not in given or not values[argument.name] or values[needed]:
            return None
        return f"{argument.flag} has no effect without --{needed.replace('_', '-')}."

    return Rule(argument.name, finds, warns=True)


def at_most(lower: str, upper: str, why: str) -> Rule:
    """One number may not exceed another, where both are known."""

    def finds(values: Values, given: Given) -> str | None:
        low, high = values[lower], values[upper]
        if low is None or high is None or low <= high:
            return None
        return (
            f"{_flag(lower)} {low} is larger than {_flag(upper)} {high}: {why} "
            "Lower the first or raise the second."
        )

    cel = ""
    if _camel(lower, upper):
        guards, terms = [], []
        for argument in (ARGUMENTS[lower], ARGUMENTS[upper]):
            field = f"self.{argument.camel}"
            if argument.default is None:
                guards.append(f"!has({field}) || ")
                terms.append(field)
            else:
                terms.append(f"(has({field}) ? {field} : {argument.default})")
        cel = f"{''.join(guards)}{terms[0]} <= {terms[1]}"
    message = f"{ARGUMENTS[lower].camel} may not exceed {ARGUMENTS[upper].camel}"
    return Rule(lower, finds, cel=cel, message=message)


def known_or_plugin(argument: Argument) -> Rule:
    """A name outside the list needs the plugin that may define it."""

    def finds(values: Values, given: Given) -> str | None:
        name = values[argument.name]
        if name is None or name in argument.choices or values[argument.extended_by]:
            return None
        return (
            f"{argument.flag} {name!r} is not one of {', '.join(argument.choices)}."
            f"{near(name, argument.choices)} Another name needs {_flag(argument.extended_by)}."
        )

    names = ", ".join(f"'{name}'" for name in argument.choices)
    plugin = ARGUMENTS[argument.extended_by].camel
    return Rule(
        argument.name,
        finds,
        cel=f"!has(self.{argument.camel}) || has(self.{plugin}) || self.{argument.camel} in [{names}]",
        message=f"{argument.camel} is not a known name, and no {plugin} is given",
    )


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


def _credentials_for_all(values: Values, given: Given) -> str | None:
    if not values["allow_credentials"] or "*" not in values["allowed_origins"]:
        return None
    return (
        "--allow-credentials with the origin * lets every web page use the credentials of its "
        "visitors. Name the pages in --allowed-origins."
    )


def _client_certificates(values: Values, given: Given) -> str | None:
    if not values["ssl_cert_reqs"] or values["ssl_ca_certs"]:
        return None
    return "--ssl-cert-reqs has no authority to check client certificates by: give --ssl-ca-certs."


def _tls_settings(values: Values, given: Given) -> str | None:
    idle = [_flag(name) for name in ("ssl_ca_certs", "ssl_cert_reqs", "enable_ssl_refresh") if values[name]]
    if not idle or values["ssl_certfile"]:
        return None
    return f"{' and '.join(idle)} has no effect without --ssl-certfile and --ssl-keyfile."


def _scales_of_fp8(values: Values, given: Given) -> str | None:
    if not values["calculate_kv_scales"] or values["kv_cache_dtype"].startswith("fp8"):
        return None
    return "--calculate-kv-scales has no effect without an fp8 --kv-cache-dtype."


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


def _whitespace_backend(values: Values, given: Given) -> str | None:
    backend = values["guided_decoding_backend"]
    if not values["guided_decoding_disable_any_whitespace"] or backend in ("auto", "xgrammar", "guidance"):
        return None
    return f"--guided-decoding-disable-any-whitespace has no effect with {backend}."


def _properties_backend(values: Values, given: Given) -> str | None:
    backend = values["guided_decoding_backend"]
    if not values["guided_decoding_disable_additional_properties"] or backend in ("auto", "guidance"):
        return None
    return f"--guided-decoding-disable-additional-properties has no effect with {backend}."


def _partial_prefills_are_chunks(values: Values, given: Given) -> str | None:
    if values["enable_chunked_prefill"] or values["max_num_partial_prefills"] == 1:
        return None
    return "--max-num-partial-prefills has no effect with chunked prefill off."


def _processes_share_an_engine(values: Values, given: Given) -> str | None:
    count = values["api_server_count"]
    if not values["disable_frontend_multiprocessing"] or count == 1:
        return None
    return (
        f"--api-server-count {count} needs an engine in a process of its own, and "
        "--disable-frontend-multiprocessing puts it into the API's. Drop one of them."
    )


def _nothing_is_swapped(values: Values, given: Given) -> str | None:
    swaps = values["preemption_mode"] == "swap" or values["device"] != "cuda"
    if swaps or values["swap_space"] == ARGUMENTS["swap_space"].default:
        return None
    return "--swap-space has no effect without --preemption-mode swap."


def _nothing_hidden(values: Values, given: Given) -> str | None:
    asked = values["show_hidden_metrics_for_version"]
    useful = {version for metric in METRICS for version in metric.shown_for}
    if asked is None or parse_version(asked) in useful:
        return None
    versions = " or ".join("{}.{}".format(*version) for version in sorted(useful))
    return (
        f"--show-hidden-metrics-for-version {asked} shows nothing more: what is hidden now was deprecated or "
        f"hidden in {versions}. Give one of them."
    )


RULES: tuple[Rule, ...] = (
    *(needs(a, needed) for a in ARGUMENTS.values() for needed in a.requires),
    *(known_or_plugin(a) for a in ARGUMENTS.values() if a.extended_by),
    at_most(
        "max_long_partial_prefills",
        "max_num_partial_prefills",
        "long prompts are among the partly computed ones.",
    ),
    at_most("max_loras", "max_cpu_loras", "adapters in a batch are held in host memory too."),
    at_most("data_parallel_size_local", "data_parallel_size", "the local copies are part of all."),
    Rule(
        "max_num_batched_tokens",
        _long_prompts_fit,
        cel="!has(self.enableChunkedPrefill) || self.enableChunkedPrefill"
        " || !has(self.maxNumBatchedTokens) || !has(self.maxModelLen)"
        " || type(self.maxNumBatchedTokens) != int || type(self.maxModelLen) != int"
        " || self.maxNumBatchedTokens >= self.maxModelLen",
        message="with enableChunkedPrefill false, maxNumBatchedTokens must be at least maxModelLen",
    ),
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
    Rule("load_format", _gguf_is_read_as_gguf),
    Rule("lora_modules", wrong_adapter_name),
    Rule(
        "enable_prompt_adapter",
        _prompt_adapters_have_tokens,
        cel="!has(self.enablePromptAdapter) || !self.enablePromptAdapter"
        " || has(self.maxPromptAdapterToken) && self.maxPromptAdapterToken > 0",
        message="enablePromptAdapter needs a maxPromptAdapterToken above 0",
    ),
    Rule(
        "api_server_count",
        _processes_share_an_engine,
        cel="!has(self.apiServerCount) || self.apiServerCount == 1"
        " || !has(self.disableFrontendMultiprocessing) || !self.disableFrontendMultiprocessing",
        message="apiServerCount above 1 needs an engine in a process of its own:"
        " drop disableFrontendMultiprocessing",
    ),
    *(without_effect(a, needed) for a in ARGUMENTS.values() for needed in a.no_effect_without),
    Rule("allow_credentials", _credentials_for_all, warns=True),
    Rule("ssl_cert_reqs", _client_certificates, warns=True),
    Rule("ssl_certfile", _tls_settings, warns=True),
    Rule("calculate_kv_scales", _scales_of_fp8, warns=True),
    Rule("speculative_config", _typical_acceptance, warns=True),
    Rule("speculative_config", _keys_without_effect, warns=True),
    Rule("guided_decoding_disable_any_whitespace", _whitespace_backend, warns=True),
    Rule("guided_decoding_disable_additional_properties", _properties_backend, warns=True),
    Rule("max_num_partial_prefills", _partial_prefills_are_chunks, warns=True),
    Rule("swap_space", _nothing_is_swapped, warns=True),
    Rule("show_hidden_metrics_for_version", _nothing_hidden, warns=True),
)


def _missing(name: str) -> Rule:
    flag = RUN_BATCH.arguments[name].flag

    def finds(values: Values, given: Given) -> str | None:
        return None if values[name] else f"{flag} is missing: a path, or an http(s) URL."

    return Rule(name, finds)


def _folder_for_a_url(values: Values, given: Given) -> str | None:
    if values["output_tmp_dir"] is None or str(values["output_file"]).startswith(("http://", "https://")):
        return None
    return "--output-tmp-dir has no effect: --output-file is no URL, and grows in its own place."


def _nothing_arrives(values: Values, given: Given) -> str | None:
    if "drain_grace" not in given:
        return None
    return (
        "--drain-grace has no effect in a batch: no request arrives. --drain-timeout is for those under way."
    )


BATCH_RULES: tuple[Rule, ...] = (
    _missing("input_file"),
    _missing("output_file"),
    *(without_effect(a, needed) for a in RUN_BATCH.groups[0].arguments for needed in a.no_effect_without),
    Rule("output_tmp_dir", _folder_for_a_url, warns=True),
    Rule("drain_grace", _nothing_arrives, warns=True),
)
"""What `slipway run-batch` adds."""


def _nothing_answers(name: str) -> Rule:
    def finds(values: Values, given: Given) -> str | None:
        if name not in given:
            return None
        return (
            f"{_flag(name)} has no effect in this measurement: it is about what a server answers or tells, "
            "and an engine alone is measured."
        )

    return Rule(name, finds, warns=True)


MEASUREMENT_RULES: tuple[Rule, ...] = tuple(map(_nothing_answers, OF_ANSWERS))
"""What the measurements of an engine add."""


def rules_of(schema: Schema) -> tuple[Rule, ...]:
    """All that hold for a command with an engine's arguments."""
    if schema is RUN_BATCH:
        return (*RULES, *BATCH_RULES)
    return (*RULES, *MEASUREMENT_RULES) if schema.command.startswith("bench ") else RULES
