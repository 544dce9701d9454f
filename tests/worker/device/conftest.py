"""The worker for CUDA: on a GPU where there is one, its kernels in the interpreter elsewhere."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from slipway.worker.device import worker
from slipway_kernels.cuda.interpret import repair

if not torch.cuda.is_available():
    repair()


@pytest.fixture(scope="module", autouse=True)
def started_without_the_largest_step() -> Iterator[None]:
    """The interpreter has no memory to measure, and takes seconds for that step: a third of all the time that
    engines of these tests would take. test_device_largest_step.py runs it for each kind of server."""
    with pytest.MonkeyPatch.context() as patch:
        if not torch.cuda.is_available():
            patch.setattr(worker, "measured", lambda device, step: (0, 0))
        yield
