"""What stops a record does not stop the run that it is of."""

from __future__ import annotations

from pathlib import Path

import pytest

from slipway.engine import record
from slipway.engine.config import EngineConfig
from slipway.engine.executor import NullWorker
from slipway.engine.params import SamplingParams
from slipway.engine.plan import SlotStart, StepPlan
from slipway.engine.record import RecordingWorker
from slipway.engine.replay import read_record, replay


def recorded(path: Path, sizes: list[int]) -> list[list[list[int]]]:
    """The tokens of each step of a run, in which a prompt of so many bytes of embeddings starts."""
    worker = RecordingWorker(NullWorker(16), str(path), EngineConfig(model="none"))
    tokens = []
    for slot, size in enumerate(sizes):
        start = SlotStart(slot, [1, 2, 3], 3, 0, SamplingParams(8), 3, given=bytes(size))
        worker.launch(StepPlan([start], [], [slot], [3], [0], [True], [3]))
        worker.draw()
        tokens.append(worker.collect().tokens)
    worker.close()
    return tokens


def test_a_full_disk_ends_the_record(caplog: pytest.LogCaptureFixture) -> None:
    assert recorded(Path("/dev/full"), [0, 0, 0]) == [[[3]]] * 3
    (told,) = caplog.records
    assert "/dev/full ends here" in told.message
    assert "No space left" in told.message


def test_a_step_too_large_for_a_frame_ends_the_record_before_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record, "MAX_RECORDED_BYTES", 10_000)
    run = recorded(tmp_path / "record", [0, 5_000, 20_000, 0])
    assert len(run) == 4
    assert "over the limit of 10000" in caplog.text
    _, steps = read_record(tmp_path / "record")
    assert [output.tokens for *_, output in steps] == run[:2]
    assert replay(NullWorker(16), steps) is None
