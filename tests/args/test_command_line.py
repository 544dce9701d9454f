"""Every way to write an argument."""

from __future__ import annotations

import pytest

from slipway.args import ArgumentError, resolve


def value(name: str, *argv: str) -> object:
    return resolve(["some/model", *argv], {})[name]


def error(*argv: str) -> str:
    with pytest.raises(ArgumentError) as caught:
        resolve(["some/model", *argv], {})
    return caught.value.message


@pytest.mark.parametrize("flag", ["--max-num-seqs", "--max_num_seqs", "--max-num_seqs"])
def test_dashes_and_underscores_are_the_same_in_long_names(flag):
    assert value("max_num_seqs", flag, "7") == 7
    assert value("max_num_seqs", f"{flag}=7") == 7


def test_a_prefix_of_a_flag_is_not_that_flag():
    assert "--max-num-seq is not an argument. Did you mean max-num-seqs" in error("--max-num-seq", "7")


def test_an_unknown_flag_gets_near_matches():
    assert "tensor-parallel-size" in error("--tensor-paralel-size", "2")
    assert "-tp" in error("-tpp", "2")


def test_an_unknown_value_gets_near_matches():
    assert "Did you mean bfloat16" in error("--dtype", "bflaot16")
    assert "Did you mean FLASH_ATTN" in error("--attention-backend", "flash_attn")
    assert "Did you mean awq" in error("--quantization", "awk")
    assert "Did you mean safetensors" in error("--load-format", "safetensor")


@pytest.mark.parametrize(
    ("argv", "name", "expected"),
    [
        (["-tp", "4"], "tensor_parallel_size", 4),
        (["-tp=4"], "tensor_parallel_size", 4),
        (["-pp", "2"], "pipeline_parallel_size", 2),
        (["-dp", "2"], "data_parallel_size", 2),
        (["-asc", "3"], "api_server_count", 3),
        (["-q", "awq"], "quantization", "awq"),
        (["-dp", "2", "-dpl", "1", "-dpr", "1"], "data_parallel_start_rank", 1),
        (["-dp", "2", "-dpn", "1"], "data_parallel_rank", 1),
        (["-dp", "2", "-dpn", "1", "-dpe"], "data_parallel_external_lb", True),
        (["-dp", "4", "-dpl", "2", "-dph"], "data_parallel_hybrid_lb", True),
        (["-tp", "2", "-n", "2"], "nnodes", 2),
        (["-tp", "2", "-n", "2", "-r", "1", "--master-addr", "10.0.0.1"], "node_rank", 1),
        (["-tp", "2", "-n", "2", "--master-port", "4000"], "master_port", 4000),
        (["--eplb-config.window-size", "500"], "eplb_config", {"window_size": 500}),
        (["-dpa", "10.0.0.1"], "data_parallel_address", "10.0.0.1"),
        (["-dpb", "ray"], "data_parallel_backend", "ray"),
        (["-dpp", "29500"], "data_parallel_rpc_port", 29500),
        (["-dp", "2", "-dpl", "1"], "data_parallel_size_local", 1),
        (["-spec-draft-tp", "2"], "speculative_config", {"draft_tensor_parallel_size": 2}),
    ],
)
def test_short_names(argv, name, expected):
    assert value(name, *argv) == expected


@pytest.mark.parametrize("level", ["-O3", "-O 3", "-O=3", '-O{"level":3}', "-O.level 3", "-O.level=3"])
def test_the_compilation_level_has_short_forms(level):
    assert value("compilation_config", *level.split()) == {"level": 3}


def test_the_compilation_level_is_at_most_3():
    assert "the most is 3" in error("-O4")
    assert "not JSON" in error("-Ofast")


@pytest.mark.parametrize(
    ("text", "expected"),
    [("1k", 1000), ("1K", 1024), ("25.6k", 25600), ("2m", 2_000_000), ("1M", 2**20), ("1g", 10**9), ("9", 9)],
)
def test_human_integers(text, expected):
    assert value("max_model_len", "--max-model-len", text) == expected
    assert value("kv_cache_memory_bytes", f"--kv-cache-memory-bytes={text}") == expected


@pytest.mark.parametrize("text", ["25.6K", "1.5M", "1.2345k", "1.5", "1kk", "k", "1_000", "0x10", "1e3", "٣"])
def test_what_is_no_whole_number_of_tokens_is_refused(text):
    assert "--max-model-len" in error("--max-model-len", text)


def test_a_fraction_before_a_binary_suffix_is_refused_with_what_to_write():
    assert "Write 25.6k" in error("--max-model-len", "25.6K")


@pytest.mark.parametrize("text", ["auto", "AUTO", "Auto", "-1"])
def test_the_model_decides_its_length_by_auto_and_minus_one(text):
    assert value("max_model_len", "--max-model-len", text) == -1


def test_the_length_is_null_where_it_is_not_given():
    assert value("max_model_len") is None


@pytest.mark.parametrize("text", ["0", "-2"])
def test_the_length_is_at_least_one(text):
    assert "the least is 1" in error("--max-model-len", text)


def test_a_switch_takes_no_value():
    assert value("enforce_eager", "--enforce-eager") is True
    assert "takes no value" in error("--enforce-eager=true")
    assert "takes no value" in error("--enforce-eager", "False")


def test_a_no_form_turns_off():
    assert value("enable_prefix_caching", "--no-enable-prefix-caching") is False
    assert value("use_tqdm_on_load", "--no_use_tqdm_on_load") is False
    assert value("enforce_eager", "--enforce-eager", "--no-enforce-eager") is False


def test_a_no_form_exists_only_where_it_is_declared():
    assert "--allow-credentials has no --no- form" in error("--no-allow-credentials")
    assert "takes no value" in error("--no-enforce-eager=1")


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (["--enable-chunked-prefill"], True),
        (["--enable-chunked-prefill", "False"], False),
        (["--enable-chunked-prefill", "true"], True),
        (["--enable-chunked-prefill=false"], False),
        (["--enable-chunked-prefill=1"], True),
        (["--no-enable-chunked-prefill"], False),
        ([], True),
    ],
)
def test_chunked_prefill_takes_an_optional_value(argv, expected):
    assert value("enable_chunked_prefill", *argv) is expected


def test_an_optional_value_does_not_swallow_the_model():
    assert resolve(["--enable-chunked-prefill", "some/model"], {})["model"] == "some/model"
    assert "neither true nor false" in error("--enable-chunked-prefill=perhaps")


def test_old_optional_values_still_work():
    assert value("multi_step_stream_outputs", "--multi-step-stream-outputs", "False") is False
    off = value("speculative_config", "--disable-logprobs-during-spec-decoding", "False")
    assert off == {"disable_logprobs": False}


def test_given_and_unset_are_told_apart():
    assert "enable_prefix_caching" not in resolve(["m"], {}).given
    assert "enable_prefix_caching" in resolve(["m", "--enable-prefix-caching"], {}).given


def test_the_hub_token_may_stand_without_a_value():
    assert value("hf_token", "--hf-token") is True
    assert value("hf_token", "--hf-token", "--port", "80") is True
    assert value("hf_token", "--hf-token", "hf_x") == "hf_x"


@pytest.mark.parametrize("word", ["None", "none"])
def test_none_is_a_value_where_it_is_documented(word):
    for name in ("quantization", "distributed_executor_backend", "preemption_mode", "max_log_len"):
        assert value(name, f"--{name}", word) is None
    assert value("collect_detailed_traces", "--collect-detailed-traces", word) is None
    assert value("speculative_model_quantization", "--speculative-model-quantization", word) is None
    assert "--dtype" in error("--dtype", word)


def test_the_log_length_may_be_unlimited():
    assert value("max_log_len", "--max-log-len", "Unlimited") is None


def test_a_list_takes_several_values():
    assert value("served_model_name", "--served-model-name", "a", "b", "--port", "80") == ["a", "b"]
    assert value("cuda_graph_sizes", "--cuda-graph-sizes", "1", "3", "5") == [1, 3, 5]
    assert value("long_lora_scaling_factors", "--long-lora-scaling-factors", "1", "4.5") == [1.0, 4.5]


def test_a_list_may_be_one_json_array():
    assert value("served_model_name", "--served-model-name", '["a", "b"]') == ["a", "b"]
    assert value("ignore_patterns", "--ignore-patterns", "[a-z]*.bin") == ["[a-z]*.bin"]


def test_cors_lists_are_json_arrays_only():
    assert value("allowed_origins", "--allowed-origins", '["https://a.b"]') == ["https://a.b"]
    assert "is not a JSON array" in error("--allowed-origins", "https://a.b")
    assert "is not text" in error("--allowed-methods", "[1]")


def test_of_an_argument_given_twice_the_last_counts():
    assert value("port", "--port", "1", "--port", "2") == 2
    assert value("served_model_name", "--served-model-name", "a", "--served-model-name", "b") == ["b"]


@pytest.mark.parametrize(
    ("words", "keys"),
    [
        (["--api-key", "a,b"], ["a,b"]),
        (["--api-key", "a", "b"], ["a", "b"]),
        (["--api-key", "a", "--api-key=b", "--api-key", "c", "d"], ["a", "b", "c", "d"]),
        (["--api-key", '["a", "b"]'], ['["a", "b"]']),
        (["--api-key", "none"], ["none"]),
    ],
)
def test_keys_are_words_or_repeated_and_nothing_divides_one(words, keys):
    assert value("api_key", *words) == keys


def test_middleware_is_repeated():
    assert value("middleware", "--middleware", "a.b", "--middleware", "c.d") == ["a.b", "c.d"]


def test_detailed_traces_take_commas_and_spaces():
    for argv in (["model,worker"], ["model", "worker"], ['["model","worker"]']):
        assert value("collect_detailed_traces", "--collect-detailed-traces", *argv) == ["model", "worker"]
    assert "Did you mean worker" in error("--collect-detailed-traces", "model,workers")


@pytest.mark.parametrize(
    "item",
    [
        "one=/a/b",
        '{"name": "one", "path": "/a/b"}',
        '{"name": "one", "local_path": "/a/b"}',
        '[{"name": "one", "path": "/a/b"}]',
    ],
)
def test_an_adapter_is_a_pair_or_an_object(item):
    assert value("lora_modules", "--enable-lora", "--lora-modules", item) == [{"name": "one", "path": "/a/b"}]


@pytest.mark.parametrize(
    "item", ["/a/b", "=x", '{"name": "one"}', '{"name": 1, "path": "x"}', '{"nam": "x"}']
)
def test_a_malformed_adapter_is_refused(item):
    assert "--lora-modules" in error("--enable-lora", "--lora-modules", item)


def test_images_per_prompt_have_two_spellings():
    for text in ("image=16,video=2", '{"image": 16, "video": 2}', '{"images": 16, "videos": 2}'):
        assert value("limit_mm_per_prompt", "--limit-mm-per-prompt", text) == {"image": 16, "video": 2}
    assert value("limit_mm_per_prompt", "--limit-mm-per-prompt.image", "3") == {"image": 3}
    assert "the least is 0" in error("--limit-mm-per-prompt", "image=-1")
    assert "Did you mean image" in error("--limit-mm-per-prompt", "imag=1")


def test_a_rope_method_has_two_keys():
    for key in ("type", "rope_type"):
        text = f'{{"{key}": "dynamic", "factor": 2.0}}'
        assert value("rope_scaling", "--rope-scaling", text) == {"rope_type": "dynamic", "factor": 2.0}
    assert "twice" in error("--rope-scaling", '{"type": "yarn", "rope_type": "linear"}')
    assert "is not one of" in error("--rope-scaling.rope_type", "rubber")
    assert "the least is 1" in error("--rope-scaling.factor", "0.5")


def test_keys_are_merged_with_the_whole_object():
    merged = value(
        "hf_overrides",
        "--hf-overrides.text.layers=3",
        "--hf-overrides",
        '{"text": {"heads": 2}, "a": 1}',
        "--hf-overrides.a",
        "2",
    )
    assert merged == {"text": {"heads": 2, "layers": 3}, "a": 2}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1e6", 1e6),
        ("3", 3),
        ("true", True),
        ("word", "word"),
        ("[1,2]", [1, 2]),
        ("None", None),
        ('"3"', "3"),
    ],
)
def test_the_value_of_a_key_is_json_where_it_can_be(text, expected):
    assert value("hf_overrides", "--hf-overrides.key", text) == {"key": expected}


def test_the_declared_type_of_a_key_decides():
    assert value("speculative_config", "--speculative-config.model", "7") == {"model": "7"}
    assert value("speculative_config", "--speculative-config.disable-logprobs", "True") == {
        "disable_logprobs": True
    }
    assert "is not of type int" in error("--speculative-config.num_speculative_tokens", "many")


def test_an_unknown_key_of_a_closed_object_is_refused():
    message = error("--speculative-config", '{"num_speculative_token": 3}')
    assert "Did you mean num_speculative_tokens" in message


def test_an_unknown_key_of_an_open_object_is_passed_on_with_a_warning():
    resolved = resolve(["m", "-O.levl", "3"], {})
    assert resolved["compilation_config"] == {"levl": 3}
    assert any("Did you mean level" in warning for warning in resolved.warnings)


def test_only_objects_have_keys():
    assert "is not a JSON object" in error("--port.x", "1")
    assert "empty key" in error("--hf-overrides..x", "1")


def test_a_loader_location_is_a_name_or_an_object():
    assert value("pt_load_map_location", "--pt-load-map-location", "cpu") == "cpu"
    assert value("pt_load_map_location", "--pt-load-map-location", '{"": "cpu"}') == {"": "cpu"}


@pytest.mark.parametrize("text", ["nan", "inf", "-inf", "NaN", "Infinity", "1e999"])
def test_numbers_are_finite(text):
    assert "not a finite number" in error(f"--gpu-memory-utilization={text}")
    assert "--hf-overrides" in error(f"--hf-overrides.x={text}")
    assert "--hf-overrides" in error("--hf-overrides", f'{{"x": {text}}}')


@pytest.mark.parametrize("text", ["9" * 20, "9" * 5000])
def test_huge_integers_are_refused(text):
    assert "--max-num-seqs" in error("--max-num-seqs", text)
    assert "--seed" in error("--seed", text)
    assert "--max-model-len" in error("--max-model-len", text)
    assert "too large" in error("--hf-overrides", f'{{"x": {text}}}')


def test_objects_nested_too_deeply_are_refused():
    assert "nested too deeply" in error("--hf-overrides", '{"a":' * 100_000 + "1" + "}" * 100_000)


def test_seeds_have_64_bits_and_a_sign():
    assert value("seed", "--seed", "-9223372036854775808") == -(2**63)
    assert value("seed", "--seed", "9223372036854775807") == 2**63 - 1
    assert "too large" in error("--seed", "9223372036854775808")


@pytest.mark.parametrize("text", ["1.0", "0x10", "1_0", "", "٣", "one"])
def test_what_is_no_integer_is_refused(text):
    assert "--max-num-seqs" in error(f"--max-num-seqs={text}")


def test_a_missing_value_is_named_with_what_follows():
    assert "--port needs a value but --seed follows" in error("--port", "--seed", "1")
    assert "--port needs a value and the line ends" in error("--port")


def test_a_value_may_begin_with_a_dash_after_an_equals_sign():
    assert value("response_role", "--response-role=--x") == "--x"


def test_a_second_positional_is_refused():
    assert "'other' is one value too many" in error("other")


def test_after_two_dashes_everything_is_the_model():
    assert resolve(["--", "--strange"], {})["model"] == "--strange"


def test_the_positional_and_the_option_name_the_same_model():
    for argv in (["a/b"], ["--model", "a/b"], ["a/b", "--model", "a/b"]):
        resolved = resolve(argv, {})
        assert resolved["model"] == resolved["model_tag"] == "a/b"
        assert not resolved.warnings


def test_the_positional_wins_over_the_option_with_a_warning():
    resolved = resolve(["a", "--model", "b"], {})
    assert resolved["model"] == "a"
    assert "wins over --model b" in resolved.warnings[0]


def test_without_a_model_there_is_nothing_to_serve():
    with pytest.raises(ArgumentError, match="There is no model"):
        resolve([], {})


def test_an_empty_secret_is_refused():
    assert "--api-key is empty" in error("--api-key", "")
    assert "--hf-token is empty" in error("--hf-token=")
    assert "--api-key is empty" in error("--api-key", " \n")


def test_the_white_space_round_a_secret_is_none_of_it():
    assert value("api_key", "--api-key", "a b\n", "\tc") == ["a b", "c"]
    assert value("hf_token", "--hf-token", "hf_1\r\n") == "hf_1"


@pytest.mark.parametrize(
    ("secret", "words"),
    [
        ("pe\nar", "its character 3 ends a line"),
        ("pear\r\nX-Admin: 1", "its character 5 ends a line"),
        ("p\x1bear", "its character 2 is the control character U+001B"),
        ("p\x7f", "its character 2 is the control character U+007F"),
        ("p\tear", "its character 2 is the control character U+0009"),
    ],
)
@pytest.mark.parametrize("flag", ["--api-key", "--hf-token"])
def test_a_secret_that_no_header_carries_is_refused_without_showing_it(flag, secret, words):
    message = error(flag, secret)
    assert message.startswith(f"{flag} cannot be sent in an HTTP header: {words}. Copy it once more")
    assert "ear" not in message


def test_a_hubs_token_is_ascii_and_a_key_of_the_api_need_not_be():
    assert "--hf-token cannot be sent in an HTTP header: its character 4 is not ASCII" in error(
        "--hf-token", "hf_é"
    )
    assert value("api_key", "--api-key", "ключ") == ["ключ"]


def test_an_empty_text_is_unset_where_that_is_the_default():
    assert value("reasoning_parser", "--reasoning-parser", "") is None
    assert "--served-model-name is empty" in error("--served-model-name", "")


@pytest.mark.parametrize("text", ["localhost:4317", "nowhere", "http://", "http://h:99999"])
def test_a_trace_target_is_a_url(text):
    assert "is not a URL" in error("--otlp-traces-endpoint", text)
    assert value("otlp_traces_endpoint", "--otlp-traces-endpoint", "grpc://h:4317") == "grpc://h:4317"


def test_a_version_is_a_version():
    assert value("show_hidden_metrics_for_version", "--show-hidden-metrics-for-version", "0.10") == "0.10"
    assert "is not a version" in error("--show-hidden-metrics-for-version", "ten")


def test_a_chat_template_is_a_file_or_has_braces(tmp_path):
    file = tmp_path / "template.jinja"
    file.write_text("x")
    assert value("chat_template", "--chat-template", str(file)) == str(file)
    assert value("chat_template", "--chat-template", "{{ messages }}") == "{{ messages }}"
    assert "neither a file nor a template" in error("--chat-template", str(tmp_path / "none"))


def test_a_path_that_ends_in_gguf_selects_its_loader():
    assert resolve(["model.gguf"], {})["load_format"] == "gguf"


def test_a_grammar_backend_may_carry_its_options():
    resolved = resolve(["m", "--guided-decoding-backend", "xgrammar:no-fallback,disable-any-whitespace"], {})
    assert resolved["guided_decoding_backend"] == "xgrammar"
    assert resolved["guided_decoding_disable_fallback"] is True
    assert resolved["guided_decoding_disable_any_whitespace"] is True
    assert "Did you mean no-fallback" in error("--guided-decoding-backend", "outlines:no-fallbak")
    assert "has no options" in error("--guided-decoding-backend", "guidance:no-fallback")
    assert "contradicts" in error(
        "--guided-decoding-backend=xgrammar:no-fallback", "--no-guided-decoding-disable-fallback"
    )


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (["1"], [1]),
        (["3"], [1, 2, 3]),
        (["4"], [1, 2, 4]),
        (["24"], [1, 2, 4, 8, 16, 24]),
        (["20"], [1, 2, 4, 8, 16, 20]),
        (["8", "20"], [8, 20]),
    ],
)
def test_one_graph_size_stands_for_all_up_to_it(given, expected):
    assert value("cuda_graph_sizes", "--cuda-graph-sizes", *given) == expected
