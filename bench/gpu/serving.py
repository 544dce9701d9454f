"""A server through HTTP, from its start on: the stage `http`.

Writes a safetensors checkpoint of random weights, starts `slipway serve` on it (its pages are in the page
cache then), and loads it with bench/load.py's client: time to ready by phase, TTFT and inter-token
percentiles, throughput.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from checkpoints import write_plain
from device import CUDA, DEVICE
from shapes import written
from stage import end_with_parent, run
from table import Rows

import load
from load import Load

PATIENCE = 300
"""Seconds for a server to become ready."""
SMALL = ("--max-num-seqs", "4", "--max-num-batched-tokens", "16", "--num-gpu-blocks-override", "32")


@contextmanager
def served(model: Path, *arguments: str) -> Iterator[tuple[str, float]]:
    """A server's URL and the seconds that it took to be ready. It is ended with what it started."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = (
        *(sys.executable, "-m", "slipway", "serve", str(model), "--port", str(port), "--device", "cuda"),
        *(
            "--skip-tokenizer-init",
            "--served-model-name",
            "m",
            "--disable-log-requests",
            "--uvicorn-log-level",
            "warning",
            *arguments,
        ),
    )
    environment = os.environ | ({} if CUDA else {"TRITON_INTERPRET": "1"})
    begun = time.monotonic()
    process = subprocess.Popen(command, env=environment, preexec_fn=end_with_parent)
    url = f"http://127.0.0.1:{port}"
    try:
        while not _ready(url):
            if process.poll() is not None:
                raise RuntimeError(f"the server ended with status {process.returncode}")
            if time.monotonic() - begun > PATIENCE:
                raise RuntimeError(f"the server was not ready within {PATIENCE} s")
            time.sleep(0.1)
        yield url, time.monotonic() - begun
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _ready(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/ready", timeout=2) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False


LOADS = (
    ("one stream", Load(4, 1, 512, 128, vocab=32000)),
    ("32 streams", Load(128, 32, 512, 128, vocab=32000, seed=1)),
    ("10 requests a second", Load(200, 200, 1000, 100, rate=10.0, vocab=32000, seed=3)),
    ("256 streams", Load(512, 256, 512, 128, vocab=32000, seed=2)),
)
"""Each with prompts of its own: the prefix cache must not spare what is measured."""
INTERPRETED = (("two streams", Load(2, 2, 8, 3, vocab=500)),)
FIRST = Load(1, 1, 512, 2, vocab=32000, seed=4) if CUDA else Load(1, 1, 8, 1, vocab=500, seed=4)
"""The first request of a server."""


def flat(figures: dict[str, object]) -> dict[str, object]:
    """Percentiles as columns of their own."""
    result: dict[str, object] = {}
    for name, value in figures.items():
        if isinstance(value, dict):
            result |= {f"{name} {key}": inner for key, inner in value.items()}
        elif name != "errors":
            result[name] = value
    return result


def phases(url: str) -> dict[str, object]:
    """Seconds of each phase of the start, as the server's metrics tell."""
    with urllib.request.urlopen(f"{url}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    found = re.findall(r'^slipway_startup_seconds\{[^}]*phase="(\w+)"[^}]*\} (\S+)', text, re.MULTILINE)
    return {f"{phase}_s": float(took) for phase, took in found}


def memory(url: str) -> dict[str, object]:
    """GiB of the device and tokens of KV cache: as the server estimated them at its start, and as it has."""
    told: dict[str, int] = {}
    while "measured" not in told:  # a few seconds after it is ready
        time.sleep(0.1)
        with urllib.request.urlopen(f"{url}/ready", timeout=10) as answer:
            told = json.load(answer)["memory"]
    with urllib.request.urlopen(f"{url}/metrics", timeout=10) as answer:
        labels = re.search(r"^vllm:cache_config_info\{(.*)\} ", answer.read().decode(), re.MULTILINE)
    if labels is None:
        raise RuntimeError(f"{url}/metrics tells nothing of the KV cache")
    cache = dict(re.findall(r'(\w+)="(\d+)"', labels[1]))
    return {
        "estimated_GiB": told["estimated"] / 2**30,
        "measured_GiB": told["measured"] / 2**30,
        "estimated_kv_tokens": told["kv_tokens"],
        "kv_tokens": int(cache["num_gpu_blocks"]) * int(cache["block_size"]),
    }


def measure(rows: Rows) -> bool:
    """A server with carried kernels alone, then one that finds what the first compiled, under load."""
    shape = "llama-8b" if CUDA else "tiny"
    bounds = ("--max-model-len", "8192", "--max-num-seqs", "512") if CUDA else SMALL
    with tempfile.TemporaryDirectory() as folder:
        model = written(shape, Path(folder))
        begun = time.monotonic()
        write_plain(model, DEVICE)
        rows.add(model=shape, what="checkpoint written", seconds=time.monotonic() - begun if CUDA else None)
        os.environ["SLIPWAY_CACHE"] = str(Path(folder, "cache"))
        for cache in ("empty", "warm"):
            with served(model, *bounds) as (url, ready):
                told = phases(url)
                if not told:
                    raise RuntimeError(f"{url}/metrics tells no phases of the start")
                figures = {"seconds": ready, **told} if CUDA else {}
                rows.add(model=shape, what="ready", cache=cache, **figures)
                _loaded(rows, shape, url, "first request", FIRST, cache=cache)
                if cache == "empty":
                    continue
                for name, work in LOADS if CUDA else INTERPRETED:
                    if rows.late:
                        return True
                    _loaded(rows, shape, url, name, work)
                taken = memory(url)
                rows.add(model=shape, what="memory", **(taken if CUDA else {}))
    return True


def _loaded(rows: Rows, shape: str, url: str, name: str, work: Load, **more: object) -> None:
    figures = asyncio.run(load.run(url, "m", work))
    if figures["errors"]:
        raise RuntimeError(f"{name}: {figures['errors']}")
    rows.add(model=shape, what=name, **more, **(flat(figures) if CUDA else {}))


if __name__ == "__main__":
    raise SystemExit(run("http", {"serve": measure}, __doc__))
