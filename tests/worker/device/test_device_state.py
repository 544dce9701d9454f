"""The arena on the device, and uploads of any length into it."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from slipway.worker.device import state
from slipway.worker.device.state import Arena, SlotState
from slipway_kernels.cuda.launch import device_in_use

DEVICE = device_in_use()


def test_arrays_begin_apart_and_places_are_theirs() -> None:
    arena = Arena(DEVICE, {"a": (3, 5), "b": (2,), "c": (2, 3, 4)})
    arena.words.copy_(torch.arange(len(arena.words)))
    assert arena.arrays["a"].shape == (3, 5)
    assert int(arena.arrays["a"][2, 4]) == arena.place("a", 2, 4)
    assert int(arena.arrays["c"][1, 2, 0]) == arena.place("c", 1, 2)
    assert int(arena.arrays["b"][0]) == arena.place("b") >= 15


def test_an_upload_changes_what_it_names_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    # So small that one change takes several sends.
    monkeypatch.setattr(state, "UPLOAD_WORDS", 7)
    monkeypatch.setattr(state, "UPLOAD_RUNS", 2)
    arena = Arena(DEVICE, {"a": (40,), "b": (3, 4)})
    arena.put("a", np.arange(1, 31, dtype=np.int32), 3)
    arena.put("b", [-5], 2, 1)
    arena.put("b", [7, 8], 0)
    arena.send()
    assert arena.arrays["a"].tolist() == [0, 0, 0, *range(1, 31), *[0] * 7]
    assert arena.arrays["b"].tolist() == [[7, 8, 0, 0], [0, 0, 0, 0], [0, -5, 0, 0]]


def test_a_slots_rows_are_changed_by_name() -> None:
    slots = SlotState(
        2, groups=1, block_size=2, record_words=16, token_budget=4, most_drafts=0, device=DEVICE
    )
    slots.allocate(8)
    slots.arena.put("tokens", [4, 5, 6], 1)
    slots.arena.put("tables", [9], 0, 1, 2)
    slots.arena.send()
    assert slots.tokens.tolist() == [[0] * 8, [4, 5, 6, 0, 0, 0, 0, 0]]
    assert slots.tables[0, 1, :4].tolist() == [0, 0, 9, 0]
    assert {slots.tables.shape[2] % 32, slots.tokens.stride(0) % 32} == {0}
