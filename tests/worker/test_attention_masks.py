"""What masks show: those that transformers makes, with and without numbers, and others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from transformers import masking_utils as masks

from slipway.worker.attention_masks import DENSE, Seen, Unknown, mask, probing, recognized, seen_by


def chunked(size: int, device: str = "cpu") -> Callable[..., Any]:
    made: Callable[..., Any] = masks.chunked_causal_mask_function(
        size, torch.zeros(1, dtype=torch.long, device=device)
    )
    return made


@pytest.mark.parametrize(
    ("function", "longest", "local_size", "seen"),
    [
        (masks.causal_mask_function, 100, None, Seen()),
        (masks.causal_mask_function, 1_000_000, None, Seen()),
        (masks.sliding_window_causal_mask_function(8), 100, None, Seen(window=8)),
        (masks.sliding_window_causal_mask_function(1), 100, 1, Seen(window=1)),
        (masks.sliding_window_causal_mask_function(200), 100, 200, Seen()),
        (
            masks.sliding_window_causal_mask_function(DENSE + 1000),
            100_000,
            DENSE + 1000,
            Seen(window=DENSE + 1000),
        ),
        (chunked(8), 100, None, Seen(chunk=8)),
        (chunked(8, "meta"), 100, 8, Seen(chunk=8)),
        (chunked(8192, "meta"), 100_000, 8192, Seen(chunk=8192)),
        (
            masks.and_masks(masks.causal_mask_function, masks.sliding_window_overlay(5)),
            50,
            None,
            Seen(window=5),
        ),
    ],
)
def test_what_transformers_makes_is_recognized(
    function: Any, longest: int, local_size: int | None, seen: Seen
) -> None:
    assert recognized(function, longest, local_size) == seen


def strided(batch: Any, head: Any, row: Any, key: Any) -> Any:
    return (key <= row) & ((row - key) % 2 == 0)


def by_head(batch: Any, head: Any, row: Any, key: Any) -> Any:
    return (key <= row) & (row - key < 4 + head)


def beyond(batch: Any, head: Any, row: Any, key: Any) -> Any:
    """Causal as far as every pair is looked at, and two positions behind a power of two no longer."""
    return (key <= row) & ((row < 2**14) | (key > 0))


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (masks.bidirectional_mask_function, "later tokens"),
        (masks.sliding_window_bidirectional_mask_function(4), "later tokens"),
        (strided, "neither a window nor a chunk"),
        (by_head, "differ by head"),
        (beyond, "neither a window nor a chunk"),
        (
            masks.or_masks(masks.sliding_window_causal_mask_function(4), chunked(8)),
            "neither a window nor a chunk",
        ),
        (lambda *_: 1 / 0, "cannot be evaluated"),
    ],
)
def test_what_no_kernel_computes_is_refused_with_its_reason(function: Any, reason: str) -> None:
    with pytest.raises(Unknown, match=reason):
        recognized(function, 50_000)


def made(function: Any) -> Any:
    device = torch.device("cpu")
    return mask(
        batch_size=1, q_length=2, kv_length=2, mask_function=function, device=device, dtype=torch.float32
    )


def test_a_mask_shows_what_it_is_unless_the_model_changes_it() -> None:
    with probing(64):
        whole, odd = made(masks.sliding_window_causal_mask_function(4)), made(strided)
    assert seen_by(whole) == Seen(window=4)
    assert seen_by(None) == Seen()
    for changed in (whole[:, :, :, :1], ~whole, whole.float(), torch.ones(2, 2)):
        with pytest.raises(Unknown, match="changes its mask"):
            seen_by(changed)
    with pytest.raises(Unknown, match="neither"):
        seen_by(odd)


def test_no_mask_is_evaluated_in_steps() -> None:
    assert made(lambda *_: 1 / 0).shape == (1, 1, 2, 2)
