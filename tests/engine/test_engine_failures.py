"""What clients are told of an engine that ended."""

from __future__ import annotations

import pytest

from slipway.engine.start import describe
from slipway.exits import OUT_OF_MEMORY


@pytest.mark.parametrize("kind", ["MemoryError", pytest.param("OutOfMemoryError", marks=pytest.mark.torch)])
def test_memory_that_is_not_there_is_said_so_and_never_an_internal_error(kind: str) -> None:
    told = describe(error(kind)("2 GiB are not there"))
    assert (told.code, told.reason) == (OUT_OF_MEMORY.code, "OutOfMemory")
    assert "2 GiB are not there" in told.message
    assert told.hint


@pytest.mark.torch
def test_a_device_without_room_for_the_weights_is_told_how_to_need_less() -> None:
    assert "--cpu-offload-gb" in describe(error("OutOfMemoryError")("")).hint


def error(kind: str) -> type[Exception]:
    """Python's own, or torch's."""
    if kind == "MemoryError":
        return MemoryError
    import torch

    found: type[Exception] = getattr(torch, kind)
    return found
