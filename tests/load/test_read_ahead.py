"""Weights that threads read ahead are those of the usual reader, and memory stays bounded."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from e2e.ground.patience import scaled
from quantize import quantize, recipe

from factory import make_model
from model.stepping import plan
from slipway.engine.config import EngineConfig
from slipway.load import read_ahead
from slipway.load.arrays import FP32
from slipway.load.checkpoint import Checkpoint, open_checkpoint
from slipway.load.errors import LoadError
from slipway.load.read_ahead import ReadAheadWeights
from tensor_files import numbers_of, save

KiB = 1 << 10


def opened(folder: Path, load_format: str = "fastsafetensors") -> Checkpoint:
    settings = EngineConfig(model=str(folder), load_format=load_format, use_tqdm_on_load=False)
    return open_checkpoint(settings, lambda phase, done, total: None)


@pytest.fixture
def small_reads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Chunks of 4 KiB, 16 KiB ahead; the bytes of each read."""
    monkeypatch.setattr(read_ahead, "CHUNK", 4 * KiB)
    monkeypatch.setattr(read_ahead, "AHEAD", 16 * KiB)
    reads: list[int] = []
    preadv = os.preadv

    def counted(file: int, buffers: list[memoryview], offset: int) -> int:
        done = preadv(file, buffers, offset)
        reads.append(done)
        return done

    monkeypatch.setattr(os, "preadv", counted)
    return reads


def settles(count: Callable[[], int], wanted: int) -> bool:
    """Whether it comes to that number in time, and then stays there."""
    end = time.monotonic() + scaled(5)
    while count() < wanted and time.monotonic() < end:
        time.sleep(0.001)
    time.sleep(0.02)
    return count() == wanted


def readers() -> int:
    return sum(thread.name == "read-ahead" for thread in threading.enumerate())


@pytest.mark.parametrize("quantized", [False, True])
def test_weights_that_are_read_ahead_are_the_same_to_the_bit(
    quantized: bool, tmp_path: Path, small_reads: list[int], tiny_models: Callable[[str], Path]
) -> None:
    folder = make_model("llama", tmp_path / "model", shards=3)
    if quantized:
        folder = quantize(tiny_models("llama"), tmp_path / "awq", recipe("awq", group=32))
    fast, usual = numbers_of(opened(folder)), numbers_of(opened(folder, "safetensors"))
    for (name, one), (other, two) in zip(fast, usual, strict=True):
        assert name == other
        assert one.tobytes() == two.tobytes()
    assert small_reads
    assert readers() == 0


def test_no_more_is_read_ahead_than_the_bound(tmp_path: Path, small_reads: list[int]) -> None:
    save({f"w{number}": np.zeros(2 * KiB, np.float32) for number in range(8)}, tmp_path / "w.safetensors")
    weights = ReadAheadWeights([tmp_path / "w.safetensors"], lambda *told: None)
    names = list(weights.entries)
    with weights.reading(names):
        assert settles(lambda: sum(small_reads), 16 * KiB)
        weights.release(names[0])
        assert settles(lambda: sum(small_reads), 24 * KiB)
        for name in names[1:]:
            weights.release(name)
        assert settles(lambda: sum(small_reads), 64 * KiB)
    assert readers() == 0


def test_a_load_that_is_given_up_leaves_no_thread(
    small_reads: list[int], tiny_models: Callable[[str], Path]
) -> None:
    stored = opened(tiny_models("llama")).stored(FP32)
    next(stored)
    assert readers() > 0
    stored.close()  # type: ignore[attr-defined]
    assert readers() == 0


@pytest.mark.parametrize("harm", ["truncate", "remove"])
def test_a_bad_file_fails_as_by_the_usual_reader(harm: str, tmp_path: Path) -> None:
    folder = make_model("llama", tmp_path / "model", shards=3)
    shard = sorted(folder.glob("*.safetensors"))[1]
    if harm == "truncate":
        os.truncate(shard, shard.stat().st_size - 1)
    else:
        shard.unlink()
    told = []
    for load_format in ("safetensors", "fastsafetensors"):
        with pytest.raises(LoadError) as raised:
            opened(folder, load_format)
        told.append((raised.value.code, str(raised.value)))
    assert told[0] == told[1]


def test_a_file_that_vanishes_once_it_is_open_is_read_on(tmp_path: Path) -> None:
    folder = make_model("llama", tmp_path / "model")
    wanted = {name: stored.read() for name, stored in opened(folder).stored(FP32)}
    checkpoint = opened(folder)
    (folder / "model.safetensors").unlink()
    found = {name: stored.read() for name, stored in checkpoint.stored(FP32)}
    assert all(np.array_equal(found[name], weights) for name, weights in wanted.items())


def test_the_format_says_whose_reader_it_is_and_names_the_files_that_lack(
    tiny_models: Callable[[str], Path],
) -> None:
    warned = plan(tiny_models("llama"), load_format="fastsafetensors").warnings
    assert any("fastsafetensors reads safetensors ahead by threads of our own" in text for text in warned)
    assert not any("fastsafetensors" in text for text in plan(tiny_models("llama")).warnings)
    settings = EngineConfig(
        model=str(tiny_models("opt").parent),
        load_format="fastsafetensors",
        hf_config_path=str(tiny_models("llama")),
        use_tqdm_on_load=False,
    )
    with pytest.raises(LoadError, match=r"holds no weights \(\*\.safetensors\)"):
        open_checkpoint(settings, lambda phase, done, total: None)
