"""No argument is silently ignored: each one works, warns, or is refused, as it is declared."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from slipway.args import ArgumentError, resolve
from slipway.args.declare import Argument, Disposition, Kind
from slipway.args.errors import NotBuiltError
from slipway.args.foreign import FOREIGN
from slipway.args.schema import ARGUMENTS, SERVE, help_text
from slipway.args.status import IMPLEMENTED, NOT_BUILT, REFUSED, WARNED, arguments, status_of

SURFACE: list[dict[str, Any]] = json.loads((Path(__file__).parent / "surface.json").read_text())
OWN = {
    "cluster_key_file",
    "drain_grace",
    "drain_timeout",
    "dry_run",
    "idle_check_interval",
    "load_timeout",
    "strict_requests",
}
NEWER = {
    "convert",
    "data_parallel_external_lb",
    "data_parallel_hybrid_lb",
    "data_parallel_rank",
    "default_chat_template_kwargs",
    "disable_access_log_for_endpoints",
    "enable_force_include_usage",
    "enable_log_outputs",
    "enable_log_requests",
    "enable_per_request_metrics",
    "enable_tokenizer_info_endpoint",
    "eplb_config",
    "master_addr",
    "master_port",
    "max_num_queued_reqs",
    "nnodes",
    "node_rank",
    "reasoning_parser_plugin",
    "runner",
    "shutdown_timeout",
    "spec_method",
    "spec_model",
    "spec_tokens",
    "sse_keep_alive_interval",
    "stream_interval",
    "structured_outputs_config",
    "trust_request_chat_template",
    "uds",
}
"""Of vLLM, but not of the documents that the surface is taken from."""
NEWER_CHOICES = {"int8_per_token_head", "pooling"}
"""The same of choices."""
NEWER_ALIASES = {"-cc", "-ep", "-sc"}

SAMPLES = {
    "allowed_local_media_path": "/media",
    "data_parallel_size_local": "0",
    "eplb_config": '{"window_size": 500}',
    "kv_events_config": '{"enable_kv_cache_events": true, "publisher": "zmq"}',
    "kv_transfer_config": '{"kv_role": "kv_both"}',
    "limit_mm_per_prompt": "image=1",
    "lora_modules": "a=/b",
    "otlp_traces_endpoint": "http://collector:4317",
    "prompt_adapters": "a=/b",
    "override_pooler_config": '{"normalize": true}',
    "pt_load_map_location": "cuda:0",
    "runner": "pooling",
    "structured_outputs_config": '{"backend": "xgrammar"}',
    "spec_decoding_acceptance_method": "typical_acceptance_sampler",
    "speculative_config": '{"method": "mtp", "quantization": "hqq"}',
    "typical_acceptance_sampler_posterior_threshold": "0.5",
    "worker_cls": "my.Worker",
    "worker_extension_cls": "my.Mixin",
}
"""Values that ask for something, where the type alone does not suggest one."""

COMPANIONS = {
    "data_parallel_external_lb": ["-dp", "2", "-dpn", "1"],
    "data_parallel_hybrid_lb": ["-dp", "4", "-dpl", "2"],
    "data_parallel_rank": ["-dp", "2"],
    "data_parallel_size_local": ["-dp", "2"],
    "data_parallel_start_rank": ["-dp", "2", "-dpl", "1"],
    "headless": ["-dp", "2", "-dpa", "10.0.0.1"],
    "nnodes": ["-tp", "2"],
    "node_rank": ["-tp", "2", "-n", "2", "--master-addr", "10.0.0.1"],
    "enable_auto_tool_choice": ["--tool-call-parser", "hermes"],
    "ngram_prompt_lookup_max": ["--num-speculative-tokens", "2"],
    "ngram_prompt_lookup_min": ["--num-speculative-tokens", "2"],
    "num_speculative_tokens": ["--speculative-model", "ngram"],
    "spec_method": ["--spec-tokens", "2"],
    "spec_model": ["--spec-method", "draft_model", "--spec-tokens", "2"],
    "spec_tokens": ["--spec-method", "ngram"],
    "speculative_model": ["--num-speculative-tokens", "2"],
    "enable_reasoning": ["--reasoning-parser", "qwen3"],
    "max_loras": ["--max-cpu-loras", "2"],
    "enable_prompt_adapter": ["--max-prompt-adapter-token", "8"],
}


def sample(argument: Argument) -> list[str]:
    """Words that give the argument a value other than the default."""
    if argument.kind is Kind.BOOL:
        return [
            f"--no-{argument.flag[2:]}" if argument.default is True and argument.negatable else argument.flag
        ]
    if argument.name in SAMPLES:
        text = SAMPLES[argument.name]
    elif argument.json_array:
        text = '["thing"]'
    elif argument.choices:
        works = argument.unbuilt.works if argument.unbuilt else ()
        usual = [argument.default, *works, *argument.refused]
        text = str(next(choice for choice in argument.choices if choice not in usual))
    elif argument.kind is Kind.JSON:
        text = '{"a": 1}'
    elif argument.kind in (Kind.INT, Kind.HUMAN_INT, Kind.FLOAT) and not argument.is_list:
        text = str((argument.default or 0) + 1) if argument.maximum != 1 else "0.5"
    else:
        text = "1" if argument.kind in (Kind.INT, Kind.FLOAT) else "thing"
    return [f"{argument.flag}={text}"]


def line(argument: Argument) -> list[str]:
    return ["some/model", *sample(argument), *COMPANIONS.get(argument.name, [])]


def of(condition: Any) -> Any:
    chosen = [a for a in ARGUMENTS.values() if not a.positional and condition(a)]
    return pytest.mark.parametrize("argument", chosen, ids=[a.name for a in chosen])


def asked_for(argument: Argument) -> bool:
    return bool(argument.unbuilt) and not argument.unbuilt.tunes and not argument.cuda_only


def test_every_documented_argument_is_declared_and_no_other():
    assert {row["name"] for row in SURFACE} == set(ARGUMENTS) - OWN - NEWER
    assert len(SURFACE) == 187


@pytest.mark.parametrize("row", SURFACE, ids=[row["name"] for row in SURFACE])
def test_an_argument_is_what_the_documents_say(row):
    argument = ARGUMENTS[row["name"]]
    kind = f"list[{argument.kind}]" if argument.is_list else str(argument.kind)
    assert kind == row["type"]
    assert argument.default == row["default"]
    assert argument.group == row["group"]
    assert argument.disposition == row["disposition"]
    assert [one for one in argument.aliases if one not in NEWER_ALIASES] == row.get("aliases", [])
    assert sorted({*argument.choices} - NEWER_CHOICES, key=str) == row.get("choices", [])
    assert list(argument.requires) == row.get("requires", [])
    assert argument.negatable == row.get("no_form", False)
    assert argument.secret == row.get("secret", False)
    assert argument.above == row.get("above")
    if "minimum" in row:
        assert argument.minimum == row["minimum"]
    if "maximum" in row:
        assert argument.maximum == row["maximum"]


def test_every_argument_has_a_help_text():
    for argument in ARGUMENTS.values():
        assert help_text(argument).strip().endswith(".") or argument.name == "lora_modules"


def test_every_name_that_an_argument_refers_to_exists():
    for argument in ARGUMENTS.values():
        for name in (*argument.requires, *argument.no_effect_without):
            assert name in ARGUMENTS
        if argument.replacement:
            target, _, key = argument.replacement.partition("=")[0].partition(".")
            assert key in ARGUMENTS[target].keys if key else target in ARGUMENTS


@of(lambda a: a.disposition is Disposition.WARN)
def test_an_argument_without_effect_says_why(argument):
    warnings = resolve(line(argument), {}).warnings
    assert f"{argument.flag} has no effect: {argument.reason}." in warnings
    resolve(line(argument), {}).refuse_unbuilt()


@of(lambda a: a.disposition is Disposition.REFUSE)
def test_a_refused_argument_says_why(argument):
    for dry in ([], ["--dry-run"]):
        with pytest.raises(ArgumentError, match=argument.reason):
            resolve([*line(argument), *dry], {})


@of(asked_for)
def test_a_feature_that_is_not_built_is_refused_at_a_real_start_and_warned_of_in_a_dry_run(argument):
    resolved = resolve(line(argument), {})
    with pytest.raises(ArgumentError) as caught:
        resolved.refuse_unbuilt()
    assert argument.flag in caught.value.message
    assert "not supported yet" in caught.value.message
    dry = resolve([*line(argument), "--dry-run"], {})
    assert any(w.startswith(argument.flag) and "not supported yet" in w for w in dry.warnings)


@of(lambda a: a.unbuilt and not isinstance(a.default, bool | dict | list) and a.default is not None)
def test_the_default_written_out_is_never_refused(argument):
    resolved = resolve(["m", f"{argument.flag}={argument.default}"], {})
    resolved.refuse_unbuilt()
    assert not resolved.warnings


@of(lambda a: a.unbuilt and a.default is False and a.negatable)
def test_a_feature_turned_off_is_never_refused(argument):
    resolve(["m", f"--no-{argument.flag[2:]}"], {}).refuse_unbuilt()


@of(lambda a: a.unbuilt and any(work for work in a.unbuilt.works))
def test_values_that_work_are_never_refused(argument):
    for work in argument.unbuilt.works:
        text = json.dumps(work) if isinstance(work, dict) else work
        companions = COMPANIONS.get(argument.name, [])
        resolve(["m", f"{argument.flag}={text}", *companions], {}).refuse_unbuilt()


@pytest.mark.parametrize(
    "words",
    [
        ["--limit-mm-per-prompt", "image=0"],
        ["--kv-events-config", '{"enable_kv_cache_events": false}'],
        ["--model-loader-extra-config", "{}"],
        ["-dpl", "1"],
    ],
)
def test_a_value_that_asks_for_nothing_is_never_refused(words):
    resolve(["m", *words], {}).refuse_unbuilt()


@of(lambda a: a.cuda_only and not a.unbuilt)
def test_what_acts_on_cuda_only_warns_on_cpu(argument):
    resolved = resolve(line(argument), {})
    resolved.refuse_unbuilt()
    assert any("acts on CUDA only" in warning for warning in resolved.warnings)
    on_cuda = resolve([*line(argument), "--device", "cuda"], {})
    assert not any("acts on CUDA only" in warning for warning in on_cuda.warnings)


def test_a_device_that_is_found_counts_as_cuda(tmp_path, monkeypatch):
    words = ["m", "--preemption-mode", "swap"]
    assert any("acts on CUDA only" in warning for warning in resolve(words, {}).warnings)
    monkeypatch.setattr("slipway.driver.CONTROL", str(tmp_path))
    assert resolve(words, {}).warnings == ()


@of(lambda a: a.unbuilt and a.unbuilt.tunes)
def test_a_setting_of_something_not_built_warns(argument):
    resolved = resolve(line(argument), {})
    resolved.refuse_unbuilt()
    assert f"{argument.flag} has no effect: {argument.unbuilt.idle}." in resolved.warnings
    assert status_of(argument).reason == argument.unbuilt.idle
    assert status_of(argument).status == WARNED


@of(
    lambda a: (
        a.disposition is Disposition.IMPLEMENT
        and not (a.unbuilt or a.cuda_only or a.refused or a.requires or a.about_command)
        and a.name not in ("config", "chat_template", "show_hidden_metrics_for_version", "model")
        and a.name not in ("max_long_partial_prefills",)
    )
)
def test_an_implemented_argument_reaches_the_values(argument):
    resolved = resolve(line(argument), {})
    resolved.refuse_unbuilt()
    assert argument.name in resolved.given
    assert resolved[argument.name] != argument.default


def test_the_defaults_are_resolved_without_a_warning():
    resolved = resolve(["some/model"], {})
    assert resolved.warnings == ()
    assert resolved.given == {"model_tag"}
    for row in SURFACE:
        if row["name"] not in ("help", "model", "model_tag"):
            assert resolved[row["name"]] == row["default"], row["name"]


def test_a_choice_in_a_variable_may_be_written_in_any_case():
    assert resolve(["m"], {"VLLM_ATTENTION_BACKEND": "torch_sdpa"})["attention_backend"] == "TORCH_SDPA"


def test_the_status_table_accounts_for_every_argument():
    entries = {entry.name: entry.status for entry in arguments()}
    others = {row.flag for row in FOREIGN.values()}
    assert set(entries) == {argument.flag for argument in SERVE.arguments.values()} | others
    by_disposition = {Disposition.WARN: {WARNED}, Disposition.REFUSE: {REFUSED}}
    for argument in SERVE.arguments.values():
        tunes = argument.unbuilt and argument.unbuilt.tunes
        built = {WARNED} if tunes else {IMPLEMENTED, NOT_BUILT}
        assert entries[argument.flag] in by_disposition.get(argument.disposition, built)


@of(lambda a: status_of(a).status == NOT_BUILT)
def test_what_is_listed_as_not_built_ends_a_start(argument):
    with pytest.raises(NotBuiltError):
        resolve(line(argument), {}).refuse_unbuilt()


def test_what_is_not_simply_implemented_has_a_reason():
    for argument in SERVE.arguments.values():
        entry = status_of(argument)
        assert entry.status == IMPLEMENTED or entry.reason


def test_a_model_that_drafts_is_not_served_by_itself():
    for dry in ([], ["--dry-run"]):
        with pytest.raises(ArgumentError, match="name this as model in its --speculative-config"):
            resolve(["m", "--task", "draft", *dry], {})
    assert "draft" not in status_of(ARGUMENTS["task"]).reason


def test_one_rank_shares_no_adapter_and_that_is_said():
    (warned,) = resolve(["m", "--enable-lora", "--fully-sharded-loras"], {}).warnings
    assert warned == (
        "--fully-sharded-loras has no effect with --tensor-parallel-size 1: one rank has all of an adapter."
    )
    assert not resolve(["m", "--enable-lora", "--fully-sharded-loras", "-tp", "2"], {}).warnings


@pytest.mark.parametrize("size", ["1", "2"])
def test_a_draft_model_may_be_shared_by_ranks(size):
    draft = ["m", "--speculative-model", "d", "--num-speculative-tokens", "2"]
    resolve([*draft, "--speculative-draft-tensor-parallel-size", size], {}).refuse_unbuilt()


def test_typical_acceptance_is_built():
    names = (
        *("spec_decoding_acceptance_method", "typical_acceptance_sampler_posterior_alpha"),
        "typical_acceptance_sampler_posterior_threshold",
    )
    assert {(status_of(ARGUMENTS[name]).status, status_of(ARGUMENTS[name]).reason) for name in names} == {
        (IMPLEMENTED, "")
    }
    assert "typical" not in status_of(ARGUMENTS["speculative_config"]).reason
