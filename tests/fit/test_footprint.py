"""What processes take of a host's memory, against what they are made to take."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from slipway.footprint import footprint

MIB = 1 << 20
CHILD = """
import mmap, os, sys
own = bytearray(b"x") * (40 << 20)
if sys.argv[1:]:
    file = open(sys.argv[1], "rb")
    cached = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
    sum(cached[::4096])
    shared = mmap.mmap(-1, 20 << 20)
    shared.write(b"y" * (20 << 20))
    if not os.fork():
        shared.seek(0)
        sum(shared.read()[::4096])
print("ready", flush=True)
sys.stdin.read()
"""


def taken(*words: str) -> int:
    """By a process with CHILD, once it and what it has forked are ready."""
    ready = 2 if words else 1
    with subprocess.Popen(
        [sys.executable, "-c", CHILD, *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        for _ in range(ready):
            assert process.stdout.readline() == "ready\n"
        return footprint(process.pid)


def test_what_is_a_process_s_own_counts(tmp_path: Path):
    assert 40 * MIB < taken() < 60 * MIB


def test_children_count_what_is_shared_once_and_page_cache_not_at_all(tmp_path: Path):
    file = tmp_path / "large"
    file.write_bytes(os.urandom(MIB) * 100)
    assert 60 * MIB < taken(str(file)) < 90 * MIB


def test_who_has_ended_takes_nothing():
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    assert footprint(process.pid) == 0
