"""Workers of others: a class in place of the device's own, and a class mixed into it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from device_runs import SMALL
from local_engine import LocalEngine
from slipway.engine.params import SamplingParams
from slipway.exits import BAD_ARGUMENTS, Exit
from slipway.plugins import imported

MODULE = """
from slipway.worker.cpu import CpuWorker

class Counting(CpuWorker):
    steps = 0
    def step(self, plan, masks=None):
        self.steps += 1
        return super().step(plan, masks)

class Told(CpuWorker):
    def warm_up(self):
        self.told = self.summary()

class Extension:
    label = "mine"
    def __init__(self):
        raise RuntimeError("is never called")
    def summary(self):
        return f"{self.label}: {self.token_budget} tokens a step"

class Whole(Extension):
    def close_to(self, tokens):
        return tokens - self.token_budget

class Replacing:
    def profile(self):
        return None
    def slots(self):
        return None

class Slotted:
    __slots__ = ("own",)

class Partial:
    def __init__(self, plan, config, progress):
        pass
    launch = draw = collect = close = profile = allocate = warm_up = leave = None
    def sleep(self, *, keep_weights):
        pass
    wake = read_adapter = idle = sleep

class Silent(Partial):
    launch = draw = collect = close = profile = allocate = warm_up = leave = Partial.sleep

def function():
    pass

broken = 3
"""
GREEDY = SamplingParams(4, temperature=0.0)


@pytest.fixture(autouse=True)
def own_workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_workers.py").write_text(MODULE)
    (tmp_path / "torn.py").write_text("def (")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "own_workers", raising=False)


def test_a_worker_of_ones_own_computes_in_place_of_the_devices(tiny_models: Callable[[str], Path]) -> None:
    with LocalEngine(tiny_models("llama"), dtype="float32") as usual:
        (wanted,) = usual.run([([5, 6, 7], GREEDY)])
    with LocalEngine(tiny_models("llama"), dtype="float32", worker_cls="own_workers.Counting") as engine:
        (output,) = engine.run([([5, 6, 7], GREEDY)])
        assert output.tokens == wanted.tokens
        worker: Any = engine.worker
        assert worker.steps == 4
        assert type(worker).__module__ == "own_workers"


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.torch)])
def test_an_extension_adds_to_every_worker_and_replaces_nothing(
    tiny_models: Callable[[str], Path], device: str
) -> None:
    fields: dict[str, Any] = {**SMALL, "device": device}
    with LocalEngine(tiny_models("llama"), worker_extension_cls="own_workers.Whole", **fields) as engine:
        worker: Any = engine.worker
        assert worker.summary() == f"mine: {SMALL['max_num_batched_tokens']} tokens a step"
        assert worker.close_to(SMALL["max_num_batched_tokens"] + 1) == 1
        (output,) = engine.run([([5, 6, 7], GREEDY)])
        assert len(output.tokens) == 4


def test_a_worker_of_ones_own_may_use_what_is_mixed_into_it(tiny_models: Callable[[str], Path]) -> None:
    names = {"worker_cls": "own_workers.Told", "worker_extension_cls": "own_workers.Extension"}
    with LocalEngine(tiny_models("llama"), **names, max_num_batched_tokens=64) as engine:
        worker: Any = engine.worker
        assert worker.told == "mine: 64 tokens a step"


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"worker_cls": "no.such.Worker"},
            "--worker-cls no.such.Worker cannot be imported: ModuleNotFoundError: No module named 'no'.",
        ),
        (
            {"worker_cls": "own_workers.Missing"},
            "--worker-cls own_workers.Missing cannot be imported: AttributeError: module 'own_workers' has "
            "no attribute 'Missing'.",
        ),
        (
            {"worker_cls": "own_workers.function"},
            "--worker-cls own_workers.function is no class: it is of type function.",
        ),
        (
            {"worker_cls": "own_workers.Partial"},
            "--worker-cls own_workers.Partial is no worker: it has no allocate, close, collect, draw, "
            "launch, leave, profile, warm_up.",
        ),
        (
            {"worker_cls": "own_workers.Silent"},
            "--worker-cls own_workers.Silent is no worker: it has no num_host_pages, repeats_bits, "
            "runs_ahead, takes_drafts.",
        ),
        (
            {"worker_extension_cls": "own_workers.broken"},
            "--worker-extension-cls own_workers.broken is no class: it is of type int.",
        ),
        (
            {"worker_extension_cls": "own_workers.Replacing"},
            "--worker-extension-cls own_workers.Replacing has profile, and so has the worker's own class "
            "slipway.worker.cpu.CpuWorker.",
        ),
    ],
)
def test_a_class_that_cannot_be_a_worker_ends_the_start(
    tiny_models: Callable[[str], Path], fields: dict[str, str], message: str
) -> None:
    with pytest.raises(Exit) as caught:
        LocalEngine(tiny_models("llama"), **fields)
    assert caught.value.exit_code is BAD_ARGUMENTS
    assert caught.value.message == message
    assert caught.value.argument in fields
    assert caught.value.hint


def test_a_class_of_another_layout_is_not_mixed_in(tiny_models: Callable[[str], Path]) -> None:
    with pytest.raises(
        Exit, match=r"--worker-extension-cls own_workers\.Slotted cannot be mixed into a worker"
    ):
        LocalEngine(tiny_models("llama"), worker_extension_cls="own_workers.Slotted")


def test_a_module_that_cannot_be_read_is_told_with_its_error() -> None:
    with pytest.raises(Exit, match=r"--worker-cls torn\.Worker cannot be imported: SyntaxError"):
        imported("torn.Worker", "--worker-cls", "worker_cls")
