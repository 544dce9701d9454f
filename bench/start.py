"""How long a server takes from its start to /health's first 200, beside what first touching its memory takes.

    python bench/start.py MODEL [--rounds 5] [--serve '--dtype bfloat16']

Prints JSON: medians over the rounds, the model being in the page cache. Weights are packed into memory that
nobody has touched, each page of which costs a virtual machine's host a fault; so every round also touches as
many bytes as the engine's process holds of its own, on as many threads. What is left is the server's share,
`server_s`, which should be a second at the most.
"""

from __future__ import annotations

import argparse
import json
import mmap
import os
import shlex
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

FEW_PAGES = ("--num-gpu-blocks-override", "64")
"""A KV cache that adds next to nothing to what the engine touches."""


def touch(num_bytes: int, num_threads: int) -> float:
    """Seconds in which threads write to every page of fresh memory once."""
    with mmap.mmap(-1, num_bytes) as memory:
        pages = np.frombuffer(memory, np.uint8)[:: mmap.PAGESIZE]
        shares = np.array_split(pages, num_threads)
        begin = time.perf_counter()
        with ThreadPoolExecutor(num_threads) as pool:
            list(pool.map(lambda share: share.fill(1), shares))
        seconds = time.perf_counter() - begin
        del pages, shares
    return seconds


def own_bytes(group: int) -> int:
    """Anonymous memory of the process group's largest process: the engine."""
    sizes = [0]
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if os.getpgid(int(folder.name)) == group:
                status = (folder / "status").read_text()
                sizes.append(next(int(line.split()[1]) for line in status.splitlines() if "RssAnon" in line))
        except (OSError, StopIteration):
            continue
    return max(sizes) << 10


def measure(model: str, serve: list[str]) -> tuple[float, int]:
    """Seconds from the start of a server until it is ready, and the bytes that its engine then holds."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    words = [sys.executable, "-m", "slipway", "serve", model, "--port", str(port), *FEW_PAGES, *serve]
    with tempfile.TemporaryFile() as log:
        begin = time.perf_counter()
        server = subprocess.Popen(words, start_new_session=True, stdout=log, stderr=log)
        try:
            while not ready(port):
                if server.poll() is not None:
                    log.seek(0)
                    raise SystemExit(log.read().decode()[-2000:])
                time.sleep(0.005)
            return time.perf_counter() - begin, own_bytes(server.pid)
        finally:
            server.terminate()
            server.wait(30)


def ready(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5):
            return True
    except (OSError, urllib.error.HTTPError):
        return False


def main() -> None:
    plain = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=plain)
    parser.add_argument("model")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--serve", type=shlex.split, default=[], help="further arguments of the server")
    arguments = parser.parse_args()
    num_threads = len(os.sched_getaffinity(0))
    measure(arguments.model, arguments.serve)  # the page cache and Python's bytecode
    rounds = []
    for _ in range(arguments.rounds):
        seconds, num_bytes = measure(arguments.model, arguments.serve)
        rounds.append((seconds, touch(num_bytes, num_threads), num_bytes))
    starts, touches, sizes = zip(*rounds, strict=True)
    figures = {
        "start_s": statistics.median(starts),
        "touch_s": statistics.median(touches),
        "server_s": statistics.median(start - touch for start, touch, _ in rounds),
        "own_gb": statistics.median(sizes) / 1e9,
    }
    print(json.dumps({name: round(value, 3) for name, value in figures.items()}))


if __name__ == "__main__":
    main()
