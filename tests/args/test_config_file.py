"""The YAML file of --config."""

from __future__ import annotations

from pathlib import Path

import pytest

from slipway.args import ArgumentError, Resolved, resolve


@pytest.fixture
def write(tmp_path):
    def write(text: str, name: str = "engine.yaml") -> str:
        path: Path = tmp_path / name
        path.write_text(text)
        return str(path)

    return write


def load(path: str, *argv: str) -> Resolved:
    return resolve([*argv, "--config", path], {})


def error(path: str, *argv: str) -> str:
    with pytest.raises(ArgumentError) as caught:
        load(path, *argv)
    return caught.value.message


def test_the_command_line_wins_over_the_file_and_the_file_over_the_default(write):
    path = write("port: 1234\nmax-num-seqs: 7\n")
    resolved = load(path, "m", "--port", "99")
    assert (resolved["port"], resolved["max_num_seqs"], resolved["block_size"]) == (99, 7, 16)
    assert {"port", "max_num_seqs", "config"} <= resolved.given
    assert resolved["config"] == path


def test_the_file_may_name_the_model(write):
    for key in ("model", "model_tag"):
        assert load(write(f"{key}: a/b"))["model_tag"] == "a/b"


def test_a_model_on_the_command_line_wins_over_the_file_in_silence(write):
    for key in ("model", "model_tag"):
        for argv in (["c/d"], ["--model", "c/d"]):
            resolved = load(write(f"{key}: a/b"), *argv)
            assert resolved["model"] == resolved["model_tag"] == "c/d"
            assert not resolved.warnings


def test_true_is_the_bare_flag_and_false_its_no_form(write):
    path = write("enforce-eager: true\nenable-prefix-caching: false\nallow-credentials: false\n")
    resolved = load(path, "m")
    assert resolved["enforce_eager"] is True
    assert resolved["enable_prefix_caching"] is False
    assert resolved["allow_credentials"] is False
    assert "allow_credentials" not in resolved.given


def test_false_gives_nothing_where_there_is_no_form_for_it(write):
    assert load(write("use-v2-block-manager: false"), "m")["use_v2_block_manager"] is True


def test_an_optional_value_may_be_true_alone(write):
    assert load(write("hf-token: true"), "m")["hf_token"] is True
    assert load(write("enable-chunked-prefill: false"), "m")["enable_chunked_prefill"] is False


def test_lists_and_maps(write):
    path = write(
        "served-model-name: [a, b]\n"
        "middleware: [x.y, z.w]\n"
        "allowed-origins: ['https://a.b']\n"
        "cuda-graph-sizes: [1, 2, 8]\n"
        "hf-overrides: {rope: {theta: 2.5}}\n"
        "enable-lora: true\n"
        "lora-modules: [one=/x, {name: two, local_path: /y}]\n"
        "limit-mm-per-prompt: image=3\n"
        "compilation-config: 3\n"
    )
    resolved = load(path, "m")
    assert resolved["served_model_name"] == ["a", "b"]
    assert resolved["middleware"] == ["x.y", "z.w"]
    assert resolved["allowed_origins"] == ["https://a.b"]
    assert resolved["cuda_graph_sizes"] == [1, 2, 8]
    assert resolved["hf_overrides"] == {"rope": {"theta": 2.5}}
    assert resolved["lora_modules"] == [{"name": "one", "path": "/x"}, {"name": "two", "path": "/y"}]
    assert resolved["limit_mm_per_prompt"] == {"image": 3}
    assert resolved["compilation_config"] == {"level": 3}


def test_a_single_item_is_a_list_of_one(write):
    assert load(write("served-model-name: a"), "m")["served_model_name"] == ["a"]


def test_dashes_and_underscores_and_keys_in_the_file(write):
    resolved = load(write("max_model_len: 16k\nhf-overrides.a.b: 3\n"), "m")
    assert resolved["max_model_len"] == 16000
    assert resolved["hf_overrides"] == {"a": {"b": 3}}


def test_single_keys_of_the_command_line_are_laid_over_the_object_of_the_file(write):
    path = write("hf-overrides: {a: 1, b: 2}")
    assert load(path, "m", "--hf-overrides.b", "3")["hf_overrides"] == {"a": 1, "b": 3}
    assert load(path, "m", "--hf-overrides", '{"c": 4}')["hf_overrides"] == {"c": 4}


def test_a_no_form_is_a_key_too(write):
    assert load(write("no-enable-prefix-caching: true"), "m")["enable_prefix_caching"] is False
    assert "no-port in" in error(write("no-port: true"), "m")


def test_null_leaves_an_argument_alone(write):
    resolved = load(write("max-model-len:\nport: null\n"), "m")
    assert resolved["max_model_len"] is None
    assert resolved["port"] == 8000


def test_an_empty_file_says_nothing(write):
    assert load(write(""), "m").given == {"config", "model_tag"}


@pytest.mark.parametrize("name", ["engine.json", "engine", "engine.yaml.txt"])
def test_the_name_ends_in_yaml_or_yml(write, name):
    assert "must end in .yaml or .yml" in error(write("port: 1", name), "m")
    assert load(write("port: 1", "engine.yml"), "m")["port"] == 1


def test_only_one_file_is_taken(write):
    path = write("port: 1")
    assert "given twice" in error(path, "m", "--config", path)


def test_an_unknown_key_is_refused_with_near_matches(write):
    path = write("max-model-length: 5")
    assert error(path, "m").startswith(f"max-model-length in {path} is not an argument. Did you mean")


@pytest.mark.parametrize(
    "line",
    [
        "port: eighty",
        "port: true",
        "port: 80.5",
        "port: [80]",
        "revision: 1234",
        "show-hidden-metrics-for-version: 0.10",
        "enforce-eager: 'true'",
        "enforce-eager: 1",
        "dtype: [half]",
        "hf-overrides: 3",
        "served-model-name: [1]",
        "gpu-memory-utilization: .nan",
        "hf-overrides: {x: .inf}",
        "cuda-graph-sizes: [a]",
        "chat-template: false",
        "port: -1",
    ],
)
def test_a_wrongly_typed_value_says_key_value_and_file(write, line):
    path = write(line)
    key, _, value = line.partition(": ")
    message = error(path, "m")
    assert message.startswith(f"{key} in {path}") or f"{key} in {path}" in message
    shown = {"1234": "1234", "0.10": "0.1"}.get(value, value).strip("[]'{}").removeprefix("x: ").lstrip(".")
    assert shown.lower() in message.lower()


@pytest.mark.parametrize("key", ["port", "seed", "gpu-memory-utilization", "max-model-len", "hf-overrides"])
def test_huge_numbers_are_refused(write, key):
    huge = "0x" + "f" * 5000
    assert "too large" in error(
        write(f"{key}: {{a: [{huge}]}}" if key == "hf-overrides" else f"{key}: {huge}"), "m"
    )


@pytest.mark.parametrize("value", ["{a: 2020-01-01}", "{1: 2}", "&a {x: *a}", "{a: !!binary aGk=}"])
def test_an_object_holds_only_what_json_can_say(write, value):
    for key in ("hf-overrides", "rope-scaling"):
        assert f"{key}" in error(write(f"{key}: {value}"), "m")


def test_numbers_in_place_of_text_need_quotes(write):
    assert "quotes" in error(write("show-hidden-metrics-for-version: 0.10"), "m")
    assert (
        load(write("show-hidden-metrics-for-version: '0.10'"), "m")["show_hidden_metrics_for_version"]
        == "0.10"
    )


def test_a_secret_is_not_repeated_in_an_error(write):
    message = error(write("api-key: 123456"), "m")
    assert "api-key in" in message
    assert "123456" not in message
    message = error(write('api-key: "123\\n456"'), "m")
    assert "cannot be sent in an HTTP header" in message
    assert "456" not in message


def test_a_secret_in_a_block_ends_without_its_line(write):
    assert load(write("api-key: |\n  pear\n"), "m")["api_key"] == ["pear"]


@pytest.mark.parametrize("text", ["port: 1\nport: 2\n", "max-num-seqs: 1\nmax_num_seqs: 2\n"])
def test_a_key_that_stands_twice_is_refused(write, text):
    message = error(write(text), "m")
    assert "twice" in message or "are the same" in message


@pytest.mark.parametrize(
    "text", ["- port", "just words", "port: [", "? [a]\n: b", "config: x.yaml", "help: x"]
)
def test_what_is_no_map_of_arguments_is_refused(write, text):
    assert error(write(text), "m")


def test_a_missing_file_is_named(tmp_path):
    path = str(tmp_path / "none.yaml")
    assert error(path, "m") == f"--config {path} cannot be read: No such file or directory. Check the path."


def test_tags_build_no_objects(write):
    assert "is not YAML" in error(write("port: !!python/object/apply:os.getpid []"), "m")


def test_rules_hold_across_sources(write):
    path = write("max-loras: 4")
    assert "--max-loras 4 is larger than --max-cpu-loras 2" in error(path, "m", "--max-cpu-loras", "2")


def test_a_file_of_the_folder_of_configuration_files_needs_no_path(tmp_path, monkeypatch):
    folder, here = tmp_path / "config", tmp_path / "here"
    folder.mkdir()
    here.mkdir()
    monkeypatch.chdir(here)
    (folder / "server.yaml").write_text("max-num-seqs: 3")
    words = ["m", "--config", "server.yaml"]
    with pytest.raises(ArgumentError, match=r"server\.yaml cannot be read"):
        resolve(words, {"VLLM_CONFIG_ROOT": str(tmp_path)})
    assert resolve(words, {"VLLM_CONFIG_ROOT": str(folder)})["max_num_seqs"] == 3
    (here / "server.yaml").write_text("max-num-seqs: 4")
    assert resolve(words, {"VLLM_CONFIG_ROOT": str(folder)})["max_num_seqs"] == 4
