"""Logits processors that tests name in requests."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

BIASED = 77
released = threading.Event()


def biased(token_ids: list[int], logits: Tensor) -> Tensor:
    """As `logit_bias` of 20 for one token does, in place."""
    logits[BIASED] += 20.0
    return logits


def raised(token: int, by: float) -> Callable[[list[int], Tensor], Tensor]:
    """Makes one that does what `logit_bias` of so much for a token does."""

    def processor(token_ids: list[int], logits: Tensor) -> Tensor:
        logits[token] += by
        return logits

    return processor


def nearly_equal(token_ids: list[int], logits: Tensor) -> Tensor:
    """One token is the likeliest, by less than bfloat16 tells apart."""
    logits.fill_(100.0)
    logits[BIASED] += 0.01
    return logits


def counting(prompt: list[int], output: list[int], logits: Tensor) -> Tensor:
    """Leaves one token: the prompt's length and twice that of the output."""
    wanted = logits.new_full(logits.shape, -float("inf"))
    wanted[len(prompt) + 2 * len(output)] = 0.0
    return wanted


def only(token: int, *, after: int = 0) -> Callable[[list[int], Tensor], Tensor]:
    """Makes one that leaves this token alone from so many tokens on."""

    def processor(token_ids: list[int], logits: Tensor) -> Tensor:
        if len(token_ids) >= after:
            kept = logits[token].item()
            logits.fill_(-float("inf"))
            logits[token] = kept
        return logits

    return processor


def raising(token_ids: list[int], logits: Tensor) -> Tensor:
    if len(token_ids) == 2:
        raise RuntimeError("two are enough")
    return logits


def exiting(token_ids: list[int], logits: Tensor) -> Tensor:
    raise SystemExit(3)


def short(token_ids: list[int], logits: Tensor) -> Tensor:
    return logits[:-1]


def nothing(token_ids: list[int], logits: Tensor) -> None:
    return None


def not_numbers(token_ids: list[int], logits: Tensor) -> Tensor:
    return logits * float("nan")


def all_forbidden(token_ids: list[int], logits: Tensor) -> Tensor:
    return logits - float("inf")


def hanging(token_ids: list[int], logits: Tensor) -> Tensor:
    released.wait()
    return logits
