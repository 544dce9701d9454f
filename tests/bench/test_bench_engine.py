"""`slipway bench latency` and `throughput`: a real engine of the demo model, without a server."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from e2e.ground.patience import scaled

from fork_server import ForkedProcess

BOUNDS = ("--max-model-len", "128", "--max-num-seqs", "8")


def began(kind: str, *words: str, env: dict[str, str]) -> ForkedProcess:
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    command = ("slipway", "bench", kind, *BOUNDS, *words)
    return ForkedProcess(command, **pipes, env=os.environ | env, spares=[[]])


@pytest.fixture
def run(demo_model: Path):
    def run(kind: str, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
        with began(kind, *words, env=env) as process:
            out, err = process.communicate(scaled(120))
        return subprocess.CompletedProcess(process.args, process.wait(), out, err)

    return run


@pytest.mark.slow
def test_each_batch_is_a_latency(run, tmp_path):
    sizes = ("--batch-size", "3", "--input-len", "6", "--output-len", "4")
    kept = ("--output-json", str(tmp_path / "latency.json"))
    done = run("latency", *sizes, "--num-iters", "5", "--num-iters-warmup", "2", *kept)
    assert done.returncode == 0, done.stderr
    figures = json.loads((tmp_path / "latency.json").read_text())
    assert len(figures["latencies"]) == 5
    assert min(figures["latencies"]) > 0
    assert f"Avg latency: {figures['avg_latency']} seconds" in done.stdout
    assert f"99% percentile latency: {figures['percentiles']['99']} seconds" in done.stdout


def test_throughput_counts_every_token(run, tmp_path):
    kept = ("--output-json", str(tmp_path / "throughput.json"))
    done = run("throughput", "--num-prompts", "12", "--input-len", "9", "--output-len", "4", *kept)
    assert done.returncode == 0, done.stderr
    figures = json.loads((tmp_path / "throughput.json").read_text())
    assert figures["num_requests"] == 12
    assert (figures["total_input_tokens"], figures["total_output_tokens"]) == (108, 48)
    assert figures["total_num_tokens"] == 156
    assert figures["requests_per_second"] == pytest.approx(12 / figures["elapsed_time"])
    assert f"Throughput: {figures['requests_per_second']:.2f} requests/s, " in done.stdout
    assert "Total num output tokens:  48" in done.stdout


@pytest.mark.slow
def test_text_is_tokenized_by_the_models_own_tokenizer(run):
    words = (
        "--dataset-name",
        "sonnet",
        "--input-len",
        "80",
        "--sonnet-prefix-len",
        "20",
        "--output-len",
        "3",
    )
    done = run("throughput", "--num-prompts", "4", *words, VLLM_ENABLE_V1_MULTIPROCESSING="0")
    assert done.returncode == 0, done.stderr
    assert "Total num output tokens:  12" in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["latency", "throughput"])
def test_what_is_longer_than_the_engine_takes_is_refused(run, kind):
    done = run(kind, "--input-len", "126", "--output-len", "3")
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1] == (
        f"slipway bench {kind}: error: A prompt of 126 tokens with an output of 3 is longer than the 128 "
        "tokens that this engine takes. Ask for less, or raise --max-model-len where the model allows it."
    )
    assert done.stdout == ""


def test_an_engine_that_cannot_start_says_why(run):
    done = run("latency", "--model", "/no/such/model")
    assert done.returncode == 10
    assert done.stderr.splitlines()[-1].startswith("slipway bench latency: error: ")
    assert "/no/such/model" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_dataset_that_is_not_there_is_told_of_before_an_engine_starts(run):
    done = run("throughput", "--dataset-name", "sharegpt", "--dataset-path", "/no/such.json")
    assert done.returncode == 2
    assert done.stderr == (
        "slipway bench throughput: error: --dataset-path /no/such.json cannot be read: No such file or "
        "directory. Check the path.\n"
    )


@pytest.mark.slow
def test_ctrl_c_prints_the_latencies_so_far(demo_model, tmp_path):
    """The engine records each step, so that what has been computed can be seen."""
    record = tmp_path / "record"
    words = ("--num-iters", "100000", "--num-iters-warmup", "0", "--input-len", "4", "--output-len", "2")
    process = subprocess.Popen(
        [sys.executable, "-m", "slipway", "bench", "latency", *BOUNDS, *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"SLIPWAY_RECORD": str(record)},
    )
    watchdog = threading.Timer(60, process.kill)
    watchdog.start()
    try:
        while process.poll() is None and not (record.exists() and record.stat().st_size > 20_000):
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(0.05)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=scaled(30))
    finally:
        watchdog.cancel()
        process.kill()
    assert process.returncode == 130, err
    assert "of 100000 batches had ended." in err
    assert "Avg latency: " in out
    assert "Traceback" not in err
