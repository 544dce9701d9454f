"""`--dry-run`: what a command line resolves to, as the last line of standard output."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from e2e.ground.patience import scaled

from slipway.args.schema import ARGUMENTS
from slipway.cli.main import main


@pytest.fixture
def dry(capsys):
    def dry(*argv: str) -> tuple[dict[str, object], str]:
        assert main([*argv, "--dry-run"]) == 0
        shown = capsys.readouterr()
        return json.loads(shown.out.splitlines()[-1]), shown.err

    return dry


def test_it_prints_every_argument_as_one_json_object(dry):
    printed, err = dry("serve", "some/model")
    assert set(printed) == set(ARGUMENTS) - {"help", "dry_run"}
    assert printed["model"] == printed["model_tag"] == "some/model"
    assert not err


def test_objects_and_lists_are_json(dry):
    printed, _ = dry("serve", "m", "--rope-scaling.rope_type", "yarn", "--served-model-name", "a", "b")
    assert printed["rope_scaling"] == {"rope_type": "yarn"}
    assert printed["served_model_name"] == ["a", "b"]


def test_what_only_the_model_can_tell_stays_open(dry):
    printed, _ = dry("serve", "m")
    assert printed["max_model_len"] is None
    assert printed["dtype"] == "auto"
    assert printed["tokenizer"] is None


def test_warnings_go_to_standard_error(dry):
    printed, err = dry("serve", "m", "--allowed-local-media-path", "/media", "--use-v2-block-manager")
    assert printed["allowed_local_media_path"] == "/media"
    assert err.splitlines() == [
        "slipway serve: warning: --use-v2-block-manager has no effect: there is one block manager.",
        "slipway serve: warning: --allowed-local-media-path /media asks for multimodal input: "
        "not supported yet.",
        "slipway serve: warning: A real start ends with exit status 3 (NotSupported): "
        "the above is not supported yet.",
    ]


def test_secrets_are_printed_as_given_on_the_line_and_hidden_from_the_environment(dry, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    printed, err = dry("serve", "m", "--api-key", "sk-1")
    assert printed["api_key"] == "sk-1"
    assert printed["hf_token"] == "***"
    assert "VLLM_API_KEY" in err
    assert "sk-1" not in err


@pytest.mark.parametrize(
    "argv",
    [
        [],
        ["m", "--port", "0"],
        ["m", "--max-model-len", "25.6K"],
        ["m", "--nothing"],
        ["m", "--enable-auto-tool-choice"],
        ["m", "--device", "tpu"],
        ["m", "--config", "none.yaml"],
        ["m", "n"],
    ],
)
def test_what_cannot_be_accepted_exits_2_with_one_error(argv, capsys):
    assert main(["serve", *argv, "--dry-run"]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith("slipway serve: error: ")


def test_a_real_start_refuses_what_is_not_built(capsys):
    assert main(["serve", "m", "--allowed-local-media-path", "/media"]) == 3
    assert "multimodal input: not supported yet" in capsys.readouterr().err


def test_the_module_runs_too(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "slipway", "serve", "/no/such/model", "--dry-run"],
        cwd=tmp_path,
        env=dict(os.environ),
        capture_output=True,
        text=True,
        timeout=scaled(60),
    )
    assert done.returncode == 0
    assert json.loads(done.stdout)["model"] == "/no/such/model"
    assert list(tmp_path.iterdir()) == []


def test_run_batch_takes_its_own_and_the_engines_arguments(dry):
    printed, err = dry(
        "run-batch", "-i", "in.jsonl", "-o", "https://h/out", "--model", "m", "--max-num-seqs", "4"
    )
    assert printed["input_file"] == "in.jsonl"
    assert printed["output_file"] == "https://h/out"
    assert printed["max_num_seqs"] == 4
    assert printed["url"] == "0.0.0.0"
    assert "host" not in printed
    assert not err


def test_run_batch_warns_of_a_metrics_port_without_metrics(dry):
    batch = ["run-batch", "-i", "a", "-o", "b", "--model", "m", "--port", "9", "--url", "::"]
    assert "--port has no effect without --enable-metrics" in dry(*batch)[1]
    assert not dry(*batch, "--enable-metrics")[1]


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["-o", "b", "--model", "m"], "--input-file is missing"),
        (["-i", "a", "--model", "m"], "--output-file is missing"),
        (["-i", "a", "-o", "b"], "There is no model"),
        (["-i", "a", "-o", "b", "m"], "one value too many"),
        (["-i", "a", "-o", "b", "--model", "m", "--host", "h"], "--host is not an argument"),
    ],
)
def test_run_batch_refuses_what_is_incomplete(argv, message, capsys):
    assert main(["run-batch", *argv, "--dry-run"]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("argv", "warning"),
    [
        (["--output-tmp-dir", "kept"], "--output-tmp-dir has no effect: --output-file is no URL"),
        (["--drain-grace", "1"], "--drain-grace has no effect in a batch"),
    ],
)
def test_run_batch_warns_of_what_a_file_without_callers_does_not_need(dry, argv, warning):
    assert warning in dry("run-batch", "-i", "a", "-o", "b", "--model", "m", *argv)[1]
    assert not dry("run-batch", "-i", "a", "-o", "http://h/b", "--model", "m", "--output-tmp-dir", "kept")[1]


def test_run_batch_reads_what_concerns_answers(dry):
    tools = ["--enable-auto-tool-choice", "--tool-call-parser", "hermes", "--return-tokens-as-token-ids"]
    printed, err = dry("run-batch", "-i", "a", "-o", "b", "--model", "m", *tools)
    assert (printed["tool_call_parser"], printed["return_tokens_as_token_ids"]) == ("hermes", True)
    assert not err


def test_a_measurement_prints_its_kind_its_own_options_and_the_engines(dry):
    printed, err = dry("bench", "latency", "--batch-size", "4", "--max-num-seqs", "16")
    own = {"kind": "latency", "model": "demo", "batch_size": 4, "input_len": 32, "output_len": 128}
    assert printed.items() >= own.items()
    assert printed["max_num_seqs"] == 16
    assert "port" not in printed
    assert not err
    assert dry("bench", "throughput", "--dataset-name", "sharegpt")[0]["num_prompts"] == 1000


def test_a_measurement_of_an_engine_has_no_use_for_a_servers_variables(dry, monkeypatch):
    monkeypatch.setenv("VLLM_API_KEY", "sk-1")
    printed, err = dry("bench", "latency")
    assert "api_key" not in printed
    assert not err


@pytest.mark.parametrize("kind", ["latency", "throughput"])
def test_a_measurement_of_an_engine_warns_of_what_is_about_answers(dry, kind):
    words = ["--otlp-traces-endpoint", "http://x", "--reasoning-parser", "qwen3", "--disable-log-stats"]
    words += ["--served-model-name", "a", "--guided-decoding-backend", "outlines"]
    err = dry("bench", kind, *words)[1]
    for flag in words:
        told = f"slipway bench {kind}: warning: {flag} has no effect in this measurement"
        assert (told in err) == flag.startswith("--")


def test_a_measurement_of_a_server_has_no_option_of_an_engine(dry):
    printed, _ = dry("bench", "serve", "--request-rate", "2.5", "--percentile-metrics", "ttft,e2el")
    assert printed["request_rate"] == 2.5
    assert printed["percentile_metrics"] == ["ttft", "e2el"]
    assert "max_num_seqs" not in printed
    assert dry("bench", "serve")[0]["request_rate"] == "inf"


def test_a_dataset_and_a_backend_may_have_the_names_that_vllm_gives_them(dry):
    printed, _ = dry("bench", "serve", "--dataset-name", "prefix_repetition", "--backend", "vllm")
    assert (printed["dataset_name"], printed["backend"]) == ("prefix-repetition", "openai")


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["latency", "--batch-size", "0"], "--batch-size 0 is too small"),
        (["latency", "--input-len", "many"], "--input-len 'many' is not an integer"),
        (["latency", "--port", "1"], "--port is not an argument"),
        (["latency", "--block-size", "7"], "--block-size 7 is not one of"),
        (["serve", "--request-rate", "nan"], "--request-rate 'nan' is not a finite number"),
        (["serve", "--request-rate", "0"], "--request-rate 0.0 must be above 0"),
        (["serve", "--burstiness", "0"], "--burstiness 0.0 must be above 0"),
        (["serve", "--port", "65536"], "--port 65536 is too large"),
        (["serve", "--dataset", "random"], "--dataset is not an argument. Did you mean dataset-"),
        (["serve", "--goodput", "itl:3"], "--goodput 'itl:3' is not an objective such as ttft:200"),
        (["serve", "--percentile-metrics", "ttft,x"], "--percentile-metrics 'x' is not one of"),
        (["serve", "--metric-percentiles", "101"], "--metric-percentiles 101.0 is too large"),
        (["serve", "--header", "a:b"], "--header 'a:b' is not a header"),
        (["serve", "--max-num-seqs", "4"], "--max-num-seqs is not an argument"),
        (["throughput", "--dataset-name", "mine"], "--dataset-name 'mine' is not one of"),
        (["serv"], "'serv' is not a measurement. Did you mean serve?"),
        ([], "which one?"),
    ],
)
def test_a_malformed_measurement_exits_2_and_says_why(argv, message, capsys):
    assert main(["bench", *argv, "--dry-run"] if argv else ["bench"]) == 2
    assert message in capsys.readouterr().err
