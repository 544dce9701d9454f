"""What arguments must be to each other: each rule broken and kept."""

from __future__ import annotations

import pytest

from slipway.args import ArgumentError, resolve
from slipway.args.errors import NotBuiltError
from slipway.args.speculation import MTP, OF_MODELS, idle_keys, method_of

FIVE = ["--num-speculative-tokens", "5"]
PROMPTS = ["--enable-prompt-adapter", "--max-prompt-adapter-token", "8"]
NGRAM = ["--speculative-model", "[ngram]", *FIVE]

REFUSED = {
    "certificate without key": (["--ssl-certfile", "c"], ["--ssl-certfile", "c", "--ssl-keyfile", "k"]),
    "key without certificate": (["--ssl-keyfile", "k"], []),
    "tool choice without parser": (
        ["--enable-auto-tool-choice"],
        ["--enable-auto-tool-choice", "--tool-call-parser", "hermes"],
    ),
    "reasoning without parser": (
        ["--enable-reasoning"],
        ["--enable-reasoning", "--reasoning-parser", "qwen3"],
    ),
    "reasoning turned off": (["--enable-reasoning"], ["--no-enable-reasoning"]),
    "draft model without tokens": (
        ["--speculative-model", "d"],
        ["--speculative-model", "d", "--num-speculative-tokens", "3"],
    ),
    "draft model with tokens in the object": (
        ["--speculative-model", "d", "--speculative-config.disable_logprobs", "true"],
        ["--speculative-model", "d", "--speculative-config.num_speculative_tokens", "3"],
    ),
    "parser of no plugin": (
        ["--tool-call-parser", "mine"],
        ["--tool-call-parser", "mine", "--tool-parser-plugin", "p.py"],
    ),
    "unknown reasoning parser": (["--reasoning-parser", "mine"], ["--reasoning-parser", "granite"]),
    "long prompts that never run": (
        ["--no-enable-chunked-prefill", "--max-num-batched-tokens", "512", "--max-model-len", "4096"],
        ["--max-num-batched-tokens", "512", "--max-model-len", "4096"],
    ),
    "long prompts that run": (
        ["--enable-chunked-prefill=false", "--max-num-batched-tokens", "1k", "--max-model-len", "1K"],
        ["--no-enable-chunked-prefill", "--max-num-batched-tokens", "1K", "--max-model-len", "1K"],
    ),
    "length still unknown": (
        ["--no-enable-chunked-prefill", "--max-num-batched-tokens", "2", "--max-model-len", "3"],
        ["--no-enable-chunked-prefill", "--max-num-batched-tokens", "2", "--max-model-len", "auto"],
    ),
    "budget still unknown": (
        ["--no-enable-chunked-prefill", "--max-model-len", "4096", "--max-num-batched-tokens", "2048"],
        ["--no-enable-chunked-prefill", "--max-model-len", "4096"],
    ),
    "fewer adapters on the host": (
        ["--max-cpu-loras", "1", "--max-loras", "2"],
        ["--max-cpu-loras", "2", "--max-loras", "2"],
    ),
    "adapters of one name": (
        ["--enable-lora", "--lora-modules", "a=/x", "a=/y"],
        ["--enable-lora", "--lora-modules", "a=/x", "b=/x"],
    ),
    "an adapter of the model's name": (
        ["--enable-lora", "--lora-modules", "m=/x", "--served-model-name", "n", "m"],
        ["--enable-lora", "--lora-modules", "m=/x", "--served-model-name", "n"],
    ),
    "an adapter without a name": (
        ["--enable-lora", "--lora-modules", '{"name": "", "path": "/x"}'],
        ["--enable-lora", "--lora-modules", '{"name": "a b", "path": "/x"}'],
    ),
    "an adapter of half a name": (
        ["--enable-lora", "--lora-modules", "a\nb=/x"],
        ["--enable-lora", "--lora-modules", f"{'a' * 256}=/x"],
    ),
    "an adapter without a path": (
        ["--enable-lora", "--lora-modules", '{"name": "a", "path": ""}'],
        ["--enable-lora", "--lora-modules", '{"name": "a", "path": "b", "base_model_name": null}'],
    ),
    "a prompt adapter of another's name": (
        [*PROMPTS, "--enable-lora", "--lora-modules", "a=/x", "--prompt-adapters", "a=/y"],
        [*PROMPTS, "--enable-lora", "--lora-modules", "a=/x", "--prompt-adapters", "b=/y"],
    ),
    "a prompt adapter without a path": (
        [*PROMPTS, "--prompt-adapters", "a"],
        [*PROMPTS, "--prompt-adapters", "a=b=c"],
    ),
    "prompt adapters without tokens": (["--enable-prompt-adapter"], PROMPTS),
    "adapters of a large rank": (
        ["--enable-lora", "--max-lora-rank", "513"],
        ["--enable-lora", "--max-lora-rank", "512"],
    ),
    "more long prefills": (
        ["--max-long-partial-prefills", "2"],
        ["--max-long-partial-prefills", "2", "--max-num-partial-prefills", "2"],
    ),
    "n-gram window, old": (
        ["--ngram-prompt-lookup-max", "2", "--ngram-prompt-lookup-min", "3"],
        ["--ngram-prompt-lookup-max", "3", "--ngram-prompt-lookup-min", "3", *FIVE],
    ),
    "n-gram window, new": (
        ["--speculative-config", '{"prompt_lookup_min": 3, "prompt_lookup_max": 2}'],
        [
            "--speculative-config",
            '{"prompt_lookup_min": 2, "prompt_lookup_max": 2, "num_speculative_tokens": 1}',
        ],
    ),
    "a threshold that is no probability": (
        ["--speculative-config", '{"posterior_threshold": 1.0}'],
        ["--speculative-config", '{"posterior_threshold": 0.5, "posterior_alpha": 2}'],
    ),
    "a threshold that accepts everything": (
        ["--speculative-config", '{"posterior_alpha": 0}'],
        ["--speculative-config", '{"posterior_alpha": 0.001}'],
    ),
    "n-grams without a number of drafts": (
        ["--speculative-config.method", "ngram"],
        ["--speculative-config", '{"method": "ngram", "num_speculative_tokens": 1}'],
    ),
    "a number of drafts without a method": (
        ["--num-speculative-tokens", "5"],
        ["--num-speculative-tokens", "5", "--speculative-model", "[ngram]"],
    ),
    "an unknown method": (
        ["--speculative-config.method", "bigram"],
        ["--speculative-config", '{"method": "medusa", "model": "d"}'],
    ),
    "a draft model that is not named": (
        ["--speculative-config.method", "mlp_speculator"],
        ["--speculative-config", '{"method": "mlp_speculator", "model": "d"}'],
    ),
    "layers without a number of drafts": (
        ["--speculative-config", '{"method": "eagle", "model": "d"}'],
        ["--speculative-config", '{"method": "eagle3", "model": "d", "num_speculative_tokens": 3}'],
    ),
    "a draft model without a number of drafts": (
        ["--speculative-config", '{"method": "draft_model", "model": "d"}'],
        ["--speculative-config", '{"model": "d"}'],
    ),
    "several API processes in the engine's own": (
        ["--api-server-count", "2", "--disable-frontend-multiprocessing"],
        ["--api-server-count", "1", "--disable-frontend-multiprocessing"],
    ),
    "GGUF read as another format": (["x.gguf", "--load-format", "pt"], ["x.gguf", "--load-format", "gguf"]),
    "old flag against key": (
        [*FIVE, "--speculative-config.num_speculative_tokens", "4", "--speculative-model", "ngram"],
        [*FIVE, "--speculative-config.num_speculative_tokens", "5", "--speculative-model", "ngram"],
    ),
    "old switch against option": (
        ["--worker-use-ray", "--distributed-executor-backend", "mp"],
        ["--worker-use-ray", "--distributed-executor-backend", "ray"],
    ),
    "old name against new": (
        ["--max-context-len-to-capture", "10", "--max-seq-len-to-capture", "20"],
        ["--max-context-len-to-capture", "10", "--max-seq-len-to-capture", "10"],
    ),
    "a worker of no module": (["--worker-cls", "Worker"], ["--worker-cls", "my.Worker"]),
    "a worker of no name": (["--worker-cls", "my worker.A"], ["--worker-cls", "auto"]),
    "an extension of no module": (
        ["--worker-extension-cls", "Mixin"],
        ["--worker-extension-cls", "my.Mixin"],
    ),
    "an extension of no name": (["--worker-extension-cls", "my.1"], ["--worker-extension-cls", ""]),
    "another scheduler": (
        ["--scheduler-cls", "my.Scheduler"],
        ["--scheduler-cls", "vllm.core.scheduler.Scheduler"],
    ),
    "Neuron settings": (["--override-neuron-config", '{"a": 1}'], []),
    **{
        f"device {name}": (["--device", name], ["--device", "cpu"])
        for name in ("hpu", "neuron", "tpu", "xpu", "openvino")
    },
}

WARNED = {
    "xFormers": (["--attention-backend", "XFORMERS"], ["--attention-backend", "TRITON", "--device", "cuda"]),
    "torch.compile": (["-O3", "--device", "cuda"], ["-O.max_capture_size", "8", "--device", "cuda"]),
    "credentials for every page": (
        ["--allow-credentials"],
        ["--allow-credentials", "--allowed-origins", '["https://a.b"]'],
    ),
    "client certificates without authority": (
        ["--ssl-certfile", "c", "--ssl-keyfile", "k", "--ssl-cert-reqs", "2"],
        ["--ssl-certfile", "c", "--ssl-keyfile", "k", "--ssl-cert-reqs", "2", "--ssl-ca-certs", "a"],
    ),
    "TLS settings without TLS": (["--enable-ssl-refresh"], []),
    "adapters without support": (["--lora-modules", "a=b"], ["--lora-modules", "a=b", "--enable-lora"]),
    "sizes of adapters without support": (
        ["--max-lora-rank", "8"],
        ["--max-lora-rank", "8", "--enable-lora"],
    ),
    "adapters sharded over one rank": (["--enable-lora", "--fully-sharded-loras"], ["--enable-lora"]),
    "adapter biases without support": (["--enable-lora-bias"], ["--enable-lora-bias", "--enable-lora"]),
    "prompt adapters without support": (
        ["--prompt-adapters", "a=b"],
        ["--prompt-adapters", "a=b", *PROMPTS],
    ),
    "traces to nowhere": (
        ["--collect-detailed-traces", "all"],
        ["--collect-detailed-traces", "all", "--otlp-traces-endpoint", "http://h:1"],
    ),
    "a release that reveals nothing": (
        ["--show-hidden-metrics-for-version", "0.7"],
        ["--show-hidden-metrics-for-version", "0.8"],
    ),
    "threshold of another method": (
        ["--typical-acceptance-sampler-posterior-alpha", "0.3"],
        ["--speculative-config.acceptance_method", "typical_acceptance_sampler", *NGRAM],
    ),
    "speculation that nothing does": (["--speculative-disable-by-batch-size", "4"], NGRAM),
    "a draft model of n-grams": (
        ["--speculative-config", '{"method": "ngram", "model": "d", "num_speculative_tokens": 5}'],
        ["--speculative-config", '{"method": "ngram", "model": "ngram", "num_speculative_tokens": 5}'],
    ),
    "n-grams of a draft model": (
        ["--speculative-config", '{"model": "d", "prompt_lookup_max": 3, "num_speculative_tokens": 5}'],
        ["--speculative-config", '{"model": "d", "max_model_len": 64, "num_speculative_tokens": 5}'],
    ),
    "whitespace of another backend": (
        ["--guided-decoding-backend", "outlines", "--guided-decoding-disable-any-whitespace"],
        ["--guided-decoding-backend", "xgrammar", "--guided-decoding-disable-any-whitespace"],
    ),
    "properties of another backend": (
        ["--guided-decoding-backend", "xgrammar", "--guided-decoding-disable-additional-properties"],
        ["--guided-decoding-backend", "guidance", "--guided-decoding-disable-additional-properties"],
    ),
    "partial prefills without chunks": (
        ["--no-enable-chunked-prefill", "--max-num-partial-prefills", "2"],
        ["--max-num-partial-prefills", "2"],
    ),
    "swap space that nothing fills": (
        ["--device", "cuda", "--swap-space", "8"],
        ["--device", "cuda", "--swap-space", "8", "--preemption-mode", "swap"],
    ),
}


VARIABLES = {
    "a key of a hash that has none": (
        ["--prefix-caching-hash-algo", "sha256"],
        {"SLIPWAY_PREFIX_HASH_SECRET": "s3cret"},
        "SLIPWAY_PREFIX_HASH_SECRET has no effect with --prefix-caching-hash-algo sha256: only builtin "
        "has a key.",
    ),
}


@pytest.mark.parametrize(("argv", "environ", "warning"), VARIABLES.values(), ids=VARIABLES)
def test_a_variable_that_an_argument_makes_idle_warns(argv, environ, warning):
    assert warning in resolve(["m", *argv], environ).warnings
    assert not resolve(["m"], environ).warnings
    assert not resolve(["m", *argv], {}).warnings


@pytest.mark.parametrize(
    ("variable", "usual"), [("VLLM_ENABLE_V1_MULTIPROCESSING", "1"), ("VLLM_ENABLE_RESPONSES_API_STORE", "0")]
)
def test_what_several_api_processes_cannot_share_is_refused_even_in_a_dry_run(variable, usual):
    other = "0" if usual == "1" else "1"
    for dry in ([], ["--dry-run"]):
        with pytest.raises(
            ArgumentError, match=f"--api-server-count 2 .* {variable}={other} asks for"
        ) as caught:
            resolve(["m", "--api-server-count", "2", *dry], {variable: other})
        assert caught.value.argument == "api_server_count"
        resolve(["m", "--api-server-count", "2", *dry], {variable: usual})
        resolve(["m", *dry], {variable: other})


UPDATES = {"VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1"}


def test_callers_change_adapters_only_where_one_process_has_the_list_of_them():
    words = ["m", "--enable-lora", "--api-server-count", "2"]
    with pytest.raises(
        ArgumentError, match="VLLM_ALLOW_RUNTIME_LORA_UPDATING=1 would change one of them"
    ) as it:
        resolve(words, UPDATES)
    assert it.value.argument == "api_server_count"
    resolve(words, {})
    assert not resolve(words[:2], UPDATES).warnings


def test_permission_to_change_adapters_without_any_warns():
    said = "VLLM_ALLOW_RUNTIME_LORA_UPDATING has no effect without --enable-lora."
    assert resolve(["m", "--api-server-count", "2"], UPDATES).warnings == (said,)


def with_model(argv: list[str]) -> list[str]:
    return argv if argv and argv[0].endswith(".gguf") else ["some/model", *argv]


@pytest.mark.parametrize(("broken", "kept"), REFUSED.values(), ids=REFUSED)
def test_what_contradicts_itself_is_refused_even_in_a_dry_run(broken, kept):
    for dry in ([], ["--dry-run"]):
        with pytest.raises(ArgumentError) as caught:
            resolve([*with_model(broken), *dry], {})
        assert caught.value.argument
        resolve([*with_model(kept), *dry], {})


@pytest.mark.parametrize(("broken", "kept"), WARNED.values(), ids=WARNED)
def test_what_has_no_effect_or_is_a_hazard_warns(broken, kept):
    def about(argv: list[str]) -> list[str]:
        found = resolve(with_model(argv), {}).warnings
        return [w for w in found if "old form" not in w and "CUDA only" not in w]

    assert about(broken)
    assert not about(kept)


@pytest.mark.parametrize("scales", [["--calculate-kv-scales"], ["--quantization-param-path", "scales.json"]])
def test_scales_concern_an_fp8_cache_only(scales):
    def about(*more: str) -> list[str]:
        return [w for w in resolve(["m", *scales, *more], {}).warnings if "without an fp8" in w]

    assert about()
    assert about("--kv-cache-dtype", "int8_per_token_head")
    assert not about("--kv-cache-dtype", "fp8_e5m2")


def test_the_sentence_spells_out_the_arithmetic():
    argv = ["m", "--no-enable-chunked-prefill", "--max-num-batched-tokens=512", "--max-model-len=4096"]
    with pytest.raises(ArgumentError) as caught:
        resolve(argv, {})
    assert caught.value.message == (
        "--max-num-batched-tokens 512 is smaller than --max-model-len 4096 with chunked prefill off: a "
        "prompt longer than 512 tokens could never run. Raise the first, lower the second, or drop "
        "--no-enable-chunked-prefill."
    )


@pytest.mark.parametrize(
    ("flag", "text", "key", "expected"),
    [
        ("--disable-logprobs-during-spec-decoding", None, "disable_logprobs", True),
        ("--ngram-prompt-lookup-max", "4", "prompt_lookup_max", 4),
        ("--ngram-prompt-lookup-min", "2", "prompt_lookup_min", 2),
        ("--spec-decoding-acceptance-method", "rejection_sampler", "acceptance_method", "rejection_sampler"),
        ("--speculative-disable-by-batch-size", "8", "disable_by_batch_size", 8),
        ("--speculative-disable-mqa-scorer", None, "disable_mqa_scorer", True),
        ("--speculative-draft-tensor-parallel-size", "2", "draft_tensor_parallel_size", 2),
        ("--speculative-max-model-len", "512", "max_model_len", 512),
        ("--speculative-model-quantization", "awq", "quantization", "awq"),
        ("--typical-acceptance-sampler-posterior-alpha", "0.3", "posterior_alpha", 0.3),
        ("--typical-acceptance-sampler-posterior-threshold", "0.09", "posterior_threshold", 0.09),
    ],
)
def test_an_old_speculative_flag_becomes_a_key_with_a_warning(flag, text, key, expected):
    resolved = resolve(["m", flag, *([text] if text else []), *NGRAM], {})
    ngram = {"model": "[ngram]", "num_speculative_tokens": 5}
    assert resolved["speculative_config"] == ngram | {key: expected}
    for old, new in ((flag, key), ("--num-speculative-tokens", "num_speculative_tokens")):
        assert f"{old} is an old form of --speculative-config.{new}." in resolved.warnings
    assert "speculative_config" in resolved.given
    idle = [one for one in resolved.warnings if one.startswith("With the method ngram")]
    assert [key in one for one in idle] == [True] * (key in OF_MODELS), "of others the flag says it"


def test_a_key_without_effect_on_n_grams_warns_with_the_reason():
    config = (
        '{"method": "ngram", "num_speculative_tokens": 5, "disable_mqa_scorer": true, "quantization": null}'
    )
    assert resolve(["m", "--speculative-config", config], {}).warnings == (
        "With the method ngram these keys of --speculative-config have no effect: disable_mqa_scorer (all "
        "drafts of a step are verified in one pass).",
    )


@pytest.mark.parametrize(
    ("config", "asked"),
    [
        ('{"model": "d", "num_speculative_tokens": 5, "quantization": "hqq"}', "a draft model's hqq"),
        ('{"method": "mtp", "quantization": "hqq"}', "a draft model's hqq"),
    ],
)
def test_what_waits_of_speculation_is_named(config, asked):
    resolved = resolve(["m", "--speculative-config", config], {})
    with pytest.raises(NotBuiltError) as caught:
        resolved.refuse_unbuilt()
    assert caught.value.message == f"--speculative-config asks for {asked}: not supported yet."


@pytest.mark.parametrize("method", MTP)
def test_mtp_has_many_names_and_needs_no_model(method):
    resolved = resolve(["m", "--speculative-config.method", method], {})
    resolved.refuse_unbuilt()
    assert method_of(resolved["speculative_config"]) == "mtp"
    assert not resolved.warnings


@pytest.mark.parametrize("model", [None, "d"])
def test_mtp_without_a_model_has_no_revision_of_its_own(model):
    config = {"method": "mimo_mtp", "revision": "r", "prompt_lookup_max": 3, "model": model}
    idle = idle_keys(config)
    assert idle.pop("prompt_lookup_max") == "of n-grams"
    layers = "the layers are those of the checkpoint that is served"
    assert idle == ({} if model else {"revision": layers})


def test_old_speculative_flags_add_nothing_where_they_are_not_given():
    assert resolve(["m"], {})["speculative_config"] is None


def test_an_old_flag_moves_its_value():
    assert resolve(["m", "--worker-use-ray"], {})["distributed_executor_backend"] == "ray"
    assert resolve(["m", "--max-context-len-to-capture", "9"], {})["max_seq_len_to_capture"] == 9


COPIES = ["--data-parallel-size", "2"]
TWINS = [
    ("VLLM_API_KEY", "secret,a", "api_key", ["secret,a"], ["--api-key", "secret-b"]),
    ("HF_TOKEN", "secret-a", "hf_token", "secret-a", ["--hf-token", "secret-b"]),
    ("HUGGING_FACE_HUB_TOKEN", "secret-a", "hf_token", "secret-a", ["--hf-token", "secret-b"]),
    (
        "VLLM_ATTENTION_BACKEND",
        "flash_attn",
        "attention_backend",
        "FLASH_ATTN",
        ["--attention-backend", "CPU"],
    ),
    (
        "VLLM_DISABLE_CUSTOM_ALL_REDUCE",
        "1",
        "disable_custom_all_reduce",
        True,
        ["--no-disable-custom-all-reduce"],
    ),
    ("VLLM_DP_MASTER_IP", "10.0.0.1", "data_parallel_address", "10.0.0.1", [*COPIES, "-dpa", "10.0.0.2"]),
    ("VLLM_DP_MASTER_PORT", "4000", "data_parallel_rpc_port", 4000, [*COPIES, "-dpp", "4001"]),
    ("VLLM_DP_RANK", "0", "data_parallel_rank", 0, [*COPIES, "-dpn", "1"]),
    ("VLLM_DP_SIZE", "2", "data_parallel_size", 2, ["-dp", "3"]),
]


@pytest.mark.parametrize(("variable", "text", "name", "meant", "flag"), TWINS)
def test_a_variable_counts_where_its_argument_is_not_given(variable, text, name, meant, flag):
    resolved = resolve(["m"], {variable: text})
    assert resolved[name] == meant
    assert name in resolved.from_environment
    assert name not in resolved.given
    assert resolve(["m"], {variable: ""}).from_environment == frozenset()


@pytest.mark.parametrize(("variable", "text", "name", "meant", "flag"), TWINS)
def test_an_argument_wins_over_its_variable_with_a_warning(variable, text, name, meant, flag):
    resolved = resolve(["m", *flag], {variable: text})
    assert resolved[name] != meant
    about = [w for w in resolved.warnings if f"wins over {variable}" in w]
    assert len(about) == 1
    assert "secret" not in about[0]


def test_a_variable_of_the_same_value_is_no_cause_to_warn():
    resolved = resolve(["m", "--attention-backend", "CPU"], {"VLLM_ATTENTION_BACKEND": "CPU"})
    assert not resolved.warnings


def test_a_malformed_variable_is_refused_by_its_name():
    with pytest.raises(ArgumentError, match="VLLM_ATTENTION_BACKEND 'flash' is not one of"):
        resolve(["m"], {"VLLM_ATTENTION_BACKEND": "flash"})


def test_the_link_of_a_service_is_no_value_of_an_argument():
    link = {"VLLM_DP_MASTER_PORT": "tcp://10.0.0.1:80"}
    assert resolve(["m", *COPIES], link)["data_parallel_rpc_port"] is None


@pytest.mark.parametrize(
    ("variable", "name", "meant"),
    [("VLLM_API_KEY", "api_key", ["pear"]), ("HF_TOKEN", "hf_token", "pear")],
)
def test_a_secret_of_a_variable_ends_where_its_line_does(variable, name, meant):
    assert resolve(["m"], {variable: "pear\n"})[name] == meant
    warnings = resolve(["m", f"--{name.replace('_', '-')}", "pear"], {variable: "pear\n"}).warnings
    assert not [one for one in warnings if "wins over" in one]
    with pytest.raises(ArgumentError, match=f"{variable} is empty"):
        resolve(["m"], {variable: "\n"})
    with pytest.raises(ArgumentError, match=f"{variable} cannot be sent in an HTTP header") as refused:
        resolve(["m"], {variable: "pe\nar"})
    assert "pe" not in str(refused.value)


def test_a_key_that_many_clients_cannot_send_is_warned_of():
    (warning,) = resolve(["m"], {"VLLM_API_KEY": "ключ"}).warnings
    assert "not ASCII" in warning
    assert "ключ" not in warning
    assert not resolve(["m"], {"VLLM_API_KEY": "key"}).warnings


def test_a_secret_on_the_command_line_warns_and_names_the_variable():
    resolved = resolve(["m", "--api-key", "sk-1", "--hf-token", "hf_1"], {})
    text = "\n".join(resolved.warnings)
    assert "VLLM_API_KEY" in text
    assert "HF_TOKEN" in text
    assert "sk-1" not in text
    assert "hf_1" not in text


def test_secrets_are_hidden_where_they_could_be_seen():
    given = resolve(["m", "--api-key", "sk-1"], {"HF_TOKEN": "hf_1"})
    assert given.redacted()["api_key"] == given.redacted()["hf_token"] == "***"
    assert given.printed()["api_key"] == "sk-1"
    assert given.printed()["hf_token"] == "***"
    assert resolve(["m"], {}).redacted()["api_key"] is None


def test_old_forms_are_not_spoken_of_where_nobody_wants_to_hear_it():
    words = ["m", "--speculative-model", "d", "--num-speculative-tokens", "2", "--use-v2-block-manager"]
    said, hushed = resolve(words, {}), resolve(words, {"VLLM_NO_DEPRECATION_WARNING": "1"})
    assert len([one for one in said.warnings if "is an old form of" in one]) == 2
    assert set(hushed.warnings) == {one for one in said.warnings if "is an old form of" not in one}
    assert hushed["speculative_config"] == said["speculative_config"]


def test_a_missing_model_is_told_with_the_one_that_older_servers_took():
    with pytest.raises(ArgumentError, match=r"facebook/opt-125m then; Slipway takes none"):
        resolve([], {})


@pytest.mark.parametrize("words", [["--max-lora-rank", "7"], ["--lora-extra-vocab-size", "0"]])
def test_sizes_of_adapters_are_any_number_that_is_one(words):
    assert resolve(["m", *words], {})[words[0][2:].replace("-", "_")] == int(words[1])
