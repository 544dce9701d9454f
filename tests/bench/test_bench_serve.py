"""`slipway bench serve` against a real server of the demo model, and against none."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from e2e.ground.patience import scaled
from e2e.ground.ports import free_port

from live_server import LiveServer, live_server
from slipway.cli.main import main

SMALL = ("--num-prompts", "6", "--input-len", "12", "--output-len", "5")


@pytest.fixture(scope="module")
def server(demo_model: Path) -> Iterator[LiveServer]:
    with live_server(demo_model, "--served-model-name", "org/demo", "--max-model-len", "2048") as running:
        yield running


@pytest.fixture
def bench(server: LiveServer, tmp_path: Path, capsys):
    """Runs a measurement that keeps its result; gives that, what was printed and what was told."""

    def bench(*words: str) -> tuple[dict[str, Any], str, str]:
        kept = ("--save-result", "--result-dir", str(tmp_path), "--result-filename", "result.json")
        assert main(["bench", "serve", "--base-url", server.url, *kept, *words]) == 0
        shown = capsys.readouterr()
        return json.loads((tmp_path / "result.json").read_text()), shown.out, shown.err

    return bench


def test_random_prompts_have_their_lengths_and_every_figure_is_told(bench):
    result, out, err = bench(*SMALL, "--percentile-metrics", "ttft,tpot,itl,e2el", "--goodput", "e2el:60000")
    assert (result["completed"], result["failed"], result["num_prompts"]) == (6, 0, 6)
    assert (result["total_input_tokens"], result["total_output_tokens"]) == (72, 30)
    assert result["model_id"] == "org/demo"
    assert result["request_rate"] == "inf"
    assert result["request_goodput"] == result["request_throughput"] == pytest.approx(6 / result["duration"])
    assert result["max_concurrent_requests"] == 6
    assert 0 < result["median_ttft_ms"] <= result["p99_ttft_ms"] < result["p99_e2el_ms"]
    assert result["p99_e2el_ms"] <= 1000 * result["duration"]
    assert "Successful requests:                     6" in out
    assert "Request goodput" in out
    assert "The result is in" in err


def test_details_of_each_request_can_be_kept(bench):
    result, _, _ = bench(*SMALL, "--save-detailed", "--max-concurrency", "2", "--metadata", "version=7")
    assert result["input_lens"] == [12] * 6
    assert result["output_lens"] == [5] * 6
    assert all(result["generated_texts"])
    assert all(1 <= len(gaps) <= 4 for gaps in result["itls"])  # a busy server sends several tokens at once
    assert result["max_concurrent_requests"] == 2
    assert result["version"] == "7"


def test_the_server_counts_what_was_sent_and_what_came(bench, server):
    before = server.metrics()
    result, _, _ = bench(*SMALL, "--num-warmups", "2", "--request-rate", "50", "--burstiness", "0.5")
    after = server.metrics()
    assert after["vllm:prompt_tokens_total"] - before["vllm:prompt_tokens_total"] == 12 * (6 + 2)
    assert after["vllm:generation_tokens_total"] - before["vllm:generation_tokens_total"] == 5 * (6 + 2)
    assert result["total_output_tokens"] == 30


def test_a_chat_is_measured_in_words(bench):
    result, _, _ = bench(*SMALL, "--backend", "openai-chat", "--temperature", "0.7", "--top-p", "0.9")
    assert result["total_output_tokens"] == 30
    assert result["total_input_tokens"] > 72  # the chat template's own beside


@pytest.mark.slow
def test_embeddings_are_measured_from_end_to_end(demo_model: Path, tmp_path: Path, capsys):
    kept = ("--save-result", "--result-dir", str(tmp_path), "--result-filename", "result.json")
    with live_server(demo_model, "--task", "embed", "--max-model-len", "256") as embeds:
        for backend in ("openai-embeddings", "vllm-pooling"):
            words = (*SMALL, "--num-warmups", "1", "--goodput", "e2el:60000", "--backend", backend)
            before = embeds.metrics()["vllm:prompt_tokens_total"]
            assert main(["bench", "serve", "--base-url", embeds.url, *kept, *words]) == 0
            assert embeds.metrics()["vllm:prompt_tokens_total"] - before == 12 * (6 + 1)
            result, out = json.loads((tmp_path / "result.json").read_text()), capsys.readouterr().out
            assert (result["completed"], result["failed"], result["total_input_tokens"]) == (6, 0, 72)
            assert result["backend"] == backend
            assert result["request_goodput"] == result["request_throughput"]
            assert result["total_token_throughput"] == pytest.approx(72 / result["duration"])
            assert result["output_throughput"] is None
            assert 0 < result["median_e2el_ms"] <= result["p99_e2el_ms"] <= 1000 * result["duration"]
            assert "Mean E2EL (ms):" in out
            assert "TTFT" not in out
            assert "generated" not in out
        # What generates is refused by a server that pools, and that is told.
        assert main(["bench", "serve", "--base-url", embeds.url, *SMALL]) == 1
        assert "6 of 6 requests failed. The first: The server answered 400" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (("--percentile-metrics", "e2el,ttft"), "--percentile-metrics ttft: an answer of --backend"),
        (
            ("--goodput", "tpot:50"),
            "--goodput tpot: an answer of --backend openai-embeddings comes as a whole",
        ),
        (("--top-p", "0.5"), "--top-p is about tokens that are drawn"),
        (("--temperature", "0"), "--temperature is about tokens that are drawn"),
        (("--ignore-eos",), "--ignore-eos is about tokens that are drawn"),
    ],
)
def test_what_only_tokens_have_is_refused_of_embeddings(words, error, capsys):
    assert main(["bench", "serve", "--backend", "openai-embeddings", *words]) == 2
    assert error in capsys.readouterr().err


def test_text_is_counted_by_the_server_or_by_a_named_tokenizer(bench, tmp_path, demo_model):
    turns = [
        {"from": "human", "value": "Say five words."},
        {"from": "gpt", "value": "One two three four five."},
    ]
    path = tmp_path / "sharegpt.json"
    path.write_text(json.dumps([{"conversations": turns}] * 3))
    words = ("--dataset-name", "sharegpt", "--dataset-path", str(path), "--num-prompts", "3", "--ignore-eos")
    by_server, _, _ = bench(*words)
    assert 3 * 4 <= by_server["total_output_tokens"] <= 3 * 8
    by_tokenizer, _, _ = bench(*words, "--tokenizer", str(demo_model))
    assert by_tokenizer["total_output_tokens"] == by_server["total_output_tokens"]


def test_verse_shares_a_prefix_that_the_server_finds(bench, server):
    before = server.metrics()["vllm:gpu_prefix_cache_hits_total"]
    words = ("--dataset-name", "sonnet", "--input-len", "200", "--sonnet-prefix-len", "100")
    result, _, _ = bench(*words, "--num-prompts", "3", "--output-len", "2", "--max-concurrency", "1")
    assert 0.8 * 600 < result["total_input_tokens"] < 1.2 * 600
    assert server.metrics()["vllm:gpu_prefix_cache_hits_total"] - before >= 2 * 64


def test_a_plot_is_written_on_request(bench, tmp_path):
    _, _, err = bench(*SMALL, "--plot", str(tmp_path / "plots" / "run.svg"))
    assert (tmp_path / "plots" / "run.svg").read_text().startswith("<svg ")
    assert "The plot is in" in err


def test_requests_that_the_server_refuses_are_counted_with_its_reason(server, capsys):
    words = ("--base-url", server.url, "--num-prompts", "2", "--input-len", "3000")
    assert main(["bench", "serve", *words]) == 1
    shown = capsys.readouterr()
    assert "Failed requests:                         2" in shown.out
    assert "Mean TTFT (ms):                          -" in shown.out
    assert "2 of 2 requests failed. The first: The server answered 400 Bad Request." in shown.err
    assert "2048" in shown.err


def test_a_field_that_the_server_does_not_take_is_told_of(server, capsys):
    words = ("--base-url", f"{server.url}/v1/", *SMALL, "--extra-body.max_tokens", "0")
    assert main(["bench", "serve", *words]) == 1
    assert "max_tokens" in capsys.readouterr().err


def test_a_server_that_cannot_be_reached_is_one_sentence(capsys):
    port = free_port()
    assert main(["bench", "serve", "--port", str(port), *SMALL]) == 1
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err == (
        f"slipway bench serve: error: http://127.0.0.1:{port} cannot be reached: Connection refused.\n"
    )


@pytest.mark.slow
def test_a_server_that_loads_is_not_ready_and_can_be_waited_for(demo_model, capsys):
    with live_server(demo_model, "--max-model-len", "2048", ready=False) as loading:
        words = ("bench", "serve", "--base-url", loading.url, *SMALL)
        assert main([*words, "--ready-check-timeout-sec", "60"]) == 0
        assert "Successful requests:                     6" in capsys.readouterr().out


@pytest.mark.slow
def test_the_key_is_that_of_the_environment_and_openais_stays_away_from_this_machine(
    demo_model, capsys, monkeypatch
):
    monkeypatch.delenv("VLLM_API_KEY", raising=False)
    monkeypatch.setenv("OPENAI_API_KEY", "sk-1")
    with live_server(demo_model, "--max-model-len", "2048", env={"VLLM_API_KEY": "sk-1"}) as guarded:
        words = ["bench", "serve", "--base-url", guarded.url, *SMALL]
        assert main(words) == 1
        assert "refuses the API key, or that there is none (401). Set VLLM_API_KEY" in capsys.readouterr().err
        assert main([*words, "--header", "Authorization=Bearer sk-1"]) == 0
        monkeypatch.setenv("VLLM_API_KEY", "sk-1")
        assert main(words) == 0


@pytest.mark.slow
def test_https_is_measured_where_the_certificate_is_trusted(demo_model, tmp_path, capsys, monkeypatch):
    certificate, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    subject = ("-subj", "/CN=bench", "-addext", "subjectAltName=IP:127.0.0.1")
    kind = ("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    files = ("-out", str(certificate), "-keyout", str(key))
    subprocess.run([*kind, "-days", "2", *subject, *files], check=True, capture_output=True)
    tls = ("--ssl-certfile", str(certificate), "--ssl-keyfile", str(key))
    with live_server(demo_model, "--max-model-len", "2048", *tls, ready=False) as server:
        server.url = server.url.replace("http:", "https:")
        words = ("bench", "serve", "--base-url", server.url, *SMALL)
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        assert main([*words, "--ready-check-timeout-sec", "60"]) == 0
        assert "Successful requests:                     6" in capsys.readouterr().out
        monkeypatch.delenv("SSL_CERT_FILE")
        assert main(list(words)) == 1
        assert "certificate verify failed" in capsys.readouterr().err


@contextlib.contextmanager
def measuring(server: LiveServer, *words: str) -> Iterator[subprocess.Popen[str]]:
    """A measurement of many requests in a process of its own, once the server computes some of them."""
    process = subprocess.Popen(
        [sys.executable, "-m", "slipway", "bench", "serve", "--base-url", server.url, *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONUNBUFFERED": "1"},
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


LONG = ("--input-len", "8", "--output-len", "40", "--max-concurrency", "2")


def wait_for_requests(server: LiveServer, count: int) -> None:
    """Until so many have ended."""
    end = time.monotonic() + scaled(60)
    started = server.metrics().get("vllm:request_success_total", 0)
    while server.metrics().get("vllm:request_success_total", 0) < started + count:
        assert time.monotonic() < end, "the server answers nothing"
        server.wait(0.05)


@pytest.mark.slow
def test_ctrl_c_prints_what_was_measured_so_far(server, tmp_path):
    result = tmp_path / "result.json"
    kept = ("--save-result", "--result-filename", str(result))
    with measuring(server, *LONG, "--num-prompts", "1000", *kept) as process:
        wait_for_requests(server, 4)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=scaled(30))
    assert process.returncode == 130
    assert "Interrupted: " in err
    assert "Traceback" not in err
    completed = json.loads(result.read_text())["completed"]
    assert 4 <= completed < 1000
    assert f"Successful requests:                     {completed}\n" in out


@pytest.mark.slow
def test_a_server_killed_midway_fails_what_was_under_way_and_what_follows(demo_model):
    with live_server(demo_model, "--max-model-len", "2048") as doomed:
        with measuring(doomed, *LONG, "--num-prompts", "30") as process:
            wait_for_requests(doomed, 4)
            engine = doomed.engine_pid()
            doomed.process.kill()
            out, err = process.communicate(timeout=scaled(60))
        with contextlib.suppress(ProcessLookupError):
            os.kill(engine, signal.SIGKILL)
    assert process.returncode == 0  # some were measured
    assert "of 30 requests failed. The first: " in err
    assert "broke off" in err or "cannot be reached" in err
    assert "Traceback" not in err
    done, failed = (int(line.split()[-1]) for line in out.splitlines()[1:3])
    assert done >= 4
    assert done + failed == 30
