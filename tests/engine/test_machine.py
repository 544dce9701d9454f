"""What the machine is said to have, and the size of the KV cache that comes of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from local_engine import LocalEngine
from slipway import machine

GIB = 1 << 30


@pytest.mark.parametrize(
    ("limit", "used"),
    [
        ("memory.max", "memory.current"),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"),
    ],
)
def test_whole_memory_is_the_limit_whatever_is_used(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, limit: str, used: str
) -> None:
    monkeypatch.setattr(machine, "_CGROUP", tmp_path)
    (tmp_path / "memory").mkdir()
    (tmp_path / limit).write_text(f"{GIB}\n")
    for bytes_used in (0, GIB // 2):
        (tmp_path / used).write_text(f"{bytes_used}\n")
        assert machine.whole_memory() == GIB
        assert machine.available_memory() == GIB - bytes_used


@pytest.mark.parametrize("unlimited", ["max", "9223372036854771712", None])
def test_without_a_limit_it_is_the_machines(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, unlimited: str | None
) -> None:
    monkeypatch.setattr(machine, "_CGROUP", tmp_path)
    if unlimited is not None:
        (tmp_path / "memory.max").write_text(unlimited)
    assert machine.available_memory() < machine.whole_memory() < 1 << 50


def test_the_cache_is_sized_after_the_weights_and_alike_at_every_start(
    monkeypatch: pytest.MonkeyPatch, tiny_models: Callable[[str], Path]
) -> None:
    """It was a quarter of what was available at that moment, while weights were being touched."""
    asked = {"max_num_seqs": 10_000, "max_model_len": 64}
    monkeypatch.setattr("slipway.worker.cpu.whole_memory", lambda: 64 << 20)
    sizes = set()
    for available in (GIB, 1 << 20):
        monkeypatch.setattr("slipway.machine.available_memory", lambda left=available: left)
        with LocalEngine(tiny_models("llama"), **asked) as engine:
            plan = engine.start.plan
            sizes.add(engine.start.size.num_pages)
    (pages,) = sizes
    held = plan.checkpoint.total_bytes // 2  # which is in float32, and is held in bfloat16
    assert abs(pages - ((64 << 20) - held) // 4 // plan.kv.page_bytes) <= 1


@pytest.mark.parametrize("device", ["cpu", "auto"])
def test_threads_that_cannot_be_bound_are_said(device: str, tiny_models: Callable[[str], Path]) -> None:
    """The default device, auto, is this processor, too."""
    engine = LocalEngine(tiny_models("llama"), device=device, threads=None, bound_cpus=[[4095]])
    (warning,) = (text for text in engine.start.warnings if "VLLM_CPU_OMP_THREADS_BIND" in text)
    assert "processor 4095 is not among those that this process may use" in warning
