"""What clients are told of an engine that ended."""

from __future__ import annotations

import pytest
import torch

from slipway.engine.start import describe
from slipway.exits import OUT_OF_MEMORY


@pytest.mark.parametrize("kind", [MemoryError, torch.OutOfMemoryError])
def test_memory_that_is_not_there_is_said_so_and_never_an_internal_error(kind: type[Exception]) -> None:
    told = describe(kind("2 GiB are not there"))
    assert (told.code, told.reason) == (OUT_OF_MEMORY.code, "OutOfMemory")
    assert "2 GiB are not there" in told.message
    assert told.hint


def test_a_device_without_room_for_the_weights_is_told_how_to_need_less() -> None:
    assert "--cpu-offload-gb" in describe(torch.OutOfMemoryError("")).hint
