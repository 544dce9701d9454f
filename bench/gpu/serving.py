"""A server through HTTP, from its start on: the stage `http`.

Writes a safetensors checkpoint of random weights, starts `slipway serve` on it (its pages are in the page
cache then), and loads it with bench/load.py's client: time to ready, TTFT and inter-token percentiles,
throughput.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
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

import torch
from device import CUDA
from shapes import SHAPES, written
from table import Rows

from load import Load, run

SHARD_BYTES = 4 << 30
PATIENCE = 300
"""Seconds for a server to become ready."""


def write_checkpoint(name: str, folder: Path) -> Path:
    """Random weights of the shape as safetensors, in shards, made on the device where there is one."""
    from safetensors.torch import save_file

    from slipway.model.registry import families
    from slipway.model.roles import expected_shapes

    place = written(name, folder)
    family = families()[SHAPES[name]["architectures"][0]]  # type: ignore[index]
    shapes = expected_shapes(family.spec(SHAPES[name]), family)
    device = torch.device("cuda" if CUDA else "cpu")
    shard: dict[str, torch.Tensor] = {}
    index: dict[str, str] = {}
    size, count = 0, 0

    def flush() -> None:
        nonlocal size, count
        count += 1
        file = f"model-{count:05}.safetensors"
        save_file(shard, place / file)
        index.update(dict.fromkeys(shard, file))
        shard.clear()
        size = 0

    for key, shape in shapes.items():
        if len(shape) > 1:
            tensor = torch.randn(shape, dtype=torch.bfloat16, device=device) * 0.02
        else:
            tensor = torch.ones(shape, dtype=torch.bfloat16)
        shard[key] = tensor.cpu()
        size += tensor.numel() * 2
        if size > SHARD_BYTES:
            flush()
    flush()
    (place / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    return place


@contextmanager
def served(model: Path, *arguments: str) -> Iterator[tuple[str, float]]:
    """A server's URL and the seconds that it took to be ready. It is ended with what it started."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = (
        *(sys.executable, "-m", "slipway", "serve", str(model), "--port", str(port), "--device", "cuda"),
        *("--skip-tokenizer-init", "--served-model-name", "m", "--disable-log-requests", *arguments),
    )
    environment = os.environ | ({} if CUDA else {"TRITON_INTERPRET": "1"})
    begun = time.monotonic()
    process = subprocess.Popen(command, env=environment, start_new_session=True)
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
        os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _ready(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/ready", timeout=2) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False


LOADS = (
    ("one stream", Load(4, 1, 512, 128, vocab=32000)),
    ("32 streams", Load(128, 32, 512, 128, vocab=32000)),
    ("256 streams", Load(512, 256, 512, 128, vocab=32000)),
    ("10 requests a second", Load(200, 200, 1000, 100, rate=10.0, vocab=32000)),
)
INTERPRETED = (("two streams", Load(2, 2, 8, 3, vocab=500)),)


def flat(figures: dict[str, object]) -> dict[str, object]:
    """Percentiles as columns of their own."""
    result: dict[str, object] = {}
    for name, value in figures.items():
        if isinstance(value, dict):
            result |= {f"{name} {key}": inner for key, inner in value.items()}
        elif name != "errors":
            result[name] = value
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--deadline", type=float, default=500, help="seconds after which nothing is begun")
    parser.add_argument("--shape", default="llama-8b" if CUDA else "tiny")
    arguments = parser.parse_args()
    rows = Rows(arguments.out, "http", arguments.deadline)
    small = ("--max-num-seqs", "4", "--max-num-batched-tokens", "16", "--num-gpu-blocks-override", "32")
    bounds = ("--max-model-len", "8192") if CUDA else small
    with tempfile.TemporaryDirectory() as folder:
        model = write_checkpoint(arguments.shape, Path(folder))
        with served(model, *bounds) as (url, ready):
            rows.add(model=arguments.shape, what="ready", seconds=ready if CUDA else None)
            for name, load in LOADS if CUDA else INTERPRETED:
                if rows.late:
                    return
                figures = asyncio.run(run(url, "m", load))
                if figures["errors"]:
                    raise RuntimeError(f"{name}: {figures['errors']}")
                rows.add(model=arguments.shape, what=name, **(flat(figures) if CUDA else {}))


if __name__ == "__main__":
    main()
