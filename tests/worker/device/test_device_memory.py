"""How the device's memory is divided."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from factory import make_model
from local_engine import LocalEngine
from slipway.exits import Exit
from slipway.worker.device import load
from slipway.worker.device.budget import Budget
from slipway.worker.device.memory import allocated_within

GIB = 1 << 30


def budget(**changed: float) -> Budget:
    sizes = {"total": 80, "weights": 16, "activations": 2, "graphs": 1, "others": 1} | changed
    share = sizes.pop("share", 0.9)
    return Budget(share=share, **{name: int(size * GIB) for name, size in sizes.items()})


def test_the_cache_gets_what_the_share_leaves() -> None:
    assert budget().kv_cache == int(80 * GIB * 0.9) - 19 * GIB
    assert "53.00 GiB for the KV cache: 90% of 80.00 GiB less 16.00 of weights" in budget().explained()


def test_memory_that_others_hold_is_not_given_away() -> None:
    assert budget(others=40).kv_cache == (80 - 19 - 40) * GIB


def test_nothing_is_left_where_weights_take_all() -> None:
    assert budget(weights=79).kv_cache == 0


def test_a_pool_that_does_not_fit_is_made_smaller() -> None:
    tried = []

    def allocate(count: int) -> None:
        tried.append(count)
        if count > 700:
            raise torch.OutOfMemoryError("no room")

    assert allocated_within(1000, allocate) == 656
    assert tried == [1000, 900, 810, 729, 656]


def test_where_not_even_a_quarter_fits_the_start_ends_with_the_reason() -> None:
    def allocate(count: int) -> None:
        raise torch.OutOfMemoryError("no room")

    with pytest.raises(Exit, match="no room for a quarter of the KV cache"):
        allocated_within(1000, allocate)


def test_slots_have_room_for_the_context_that_fits_with_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A slot of the model's own length would be 2 MiB, and all of them half of the memory."""
    monkeypatch.setattr(load, "device_memory", lambda device: (GIB // 4, GIB // 4))
    model = make_model("llama", tmp_path / "model", max_position_embeddings=1 << 19, num_hidden_layers=1)
    settings = {"device": "cuda", "dtype": "float32", "max_num_seqs": 64, "max_num_batched_tokens": 64}
    with LocalEngine(model, **settings, block_size=8) as engine:
        state, length = engine.worker._state, engine.start.size.max_model_len
        assert state.tokens.shape == (64, length)
        assert 1 << 17 < length < 1 << 19
        taken = state.tokens.nbytes + state.tables.nbytes + engine.worker._pages.pool.nbytes
        assert taken == pytest.approx(0.9 * GIB / 4, rel=1e-3)
