"""Faults put into a running engine, to show that a comparison finds them. Each is mended at its end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import torch
from in_process import Engine
from torch import Tensor

from slipway.engine.plan import StepPlan

Fault = Callable[[Engine], AbstractContextManager[None]]


@contextmanager
def matrix(engine: Engine) -> Iterator[None]:
    """Bits of the first layer's first matrix are flipped."""
    found: list[Tensor] = []

    def kept(tensor: Tensor) -> Tensor:
        found.append(tensor)
        return tensor

    engine.worker._move(kept)
    _flip(found[0])
    try:
        yield
    finally:
        _flip(found[0])


@contextmanager
def page(engine: Engine) -> Iterator[None]:
    """Bits of one page of the KV cache are flipped before the first step that begins no request."""
    worker = engine.worker
    granted: list[int] = []
    launch, done = worker.launch, False

    def launched(plan: StepPlan) -> None:
        nonlocal done
        granted.extend(page for grant in plan.pages for page in grant.pages)
        if granted and not plan.starts and not done:
            _flip(worker._pages.rows[granted[0]])
            done = True
        launch(plan)

    vars(worker)["launch"] = launched
    try:
        yield
    finally:
        del vars(worker)["launch"]
    if not done:
        raise RuntimeError("no page was granted before a step that begins no request")


FAULTS: dict[str, Fault] = {"fault: a matrix": matrix, "fault: a page": page}


def _flip(tensor: Tensor) -> None:
    """The first bit of each byte: the sign of a number, or its exponent's last bit."""
    tensor.view(torch.uint8).bitwise_xor_(0x80)
