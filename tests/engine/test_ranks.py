"""Ranks of one engine on one host: processes that share every matrix, and meet in memory."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from e2e.ground.patience import scaled

from factory import model_folders
from local_engine import LocalEngine, Output
from lora_folder import lora_folder
from slipway.dist.beats import Heartbeats
from slipway.engine.messages import AdapterRef
from slipway.engine.params import SamplingParams
from slipway.exits import ENGINE_DIED, OUT_OF_MEMORY, WORKER_KILLED, Exit
from slipway.load.errors import LoadError

pytestmark = pytest.mark.slow

TinyModels = Callable[[str], Path]
DENSE = ("llama", "mistral", "ministral", "qwen2", "qwen3", "gemma2", "gemma3_text")
NEAR_TIE = 1e-3


@pytest.fixture(scope="module")
def native_models(tmp_path_factory: pytest.TempPathFactory) -> TinyModels:
    """With heads that our own code computes."""
    return model_folders(
        tmp_path_factory.mktemp("ranks"),
        {name: (name, {"head_dim": 24}) for name in DENSE if name != "qwen2"} | {"qwen2": ("qwen2", {})},
    )


def prompts(count: int = 3) -> list[list[int]]:
    random = np.random.default_rng(7)
    return [random.integers(3, 500, 20 + 9 * number).tolist() for number in range(count)]


def runs(model: Path, requests: list[list[int]], most: int = 24, **fields: Any) -> list[Output]:
    """What greedy requests give, all at once, on so many ranks of a thread each."""
    with LocalEngine(model, **({"dtype": "float32", "threads": 1} | fields)) as engine:
        return engine.run(
            [(tokens, SamplingParams(most, temperature=0.0, num_logprobs=2)) for tokens in requests]
        )


def assert_same(found: Output, expected: Output) -> None:
    """Token by token, up to the first at which the model's own two best are too close to tell."""
    for token, wanted, known in zip(found.tokens, expected.tokens, expected.logprobs, strict=True):
        (_, best), (_, second) = known.top[:2]
        if token != wanted:
            assert best - second < NEAR_TIE
            return


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("variant", DENSE)
def test_ranks_draw_what_one_rank_draws(variant: str, size: int, native_models: TinyModels) -> None:
    model = native_models(variant)
    alone = runs(model, prompts())
    together = runs(model, prompts(), tensor_parallel_size=size)
    for found, expected in zip(together, alone, strict=True):
        assert_same(found, expected)


@pytest.mark.parametrize("size", [2, 3])
def test_the_demo_is_cut_by_its_three_key_heads(size: int, demo_model: Path) -> None:
    alone = runs(demo_model, prompts(2))
    together = runs(demo_model, prompts(2), tensor_parallel_size=size)
    for found, expected in zip(together, alone, strict=True):
        assert_same(found, expected)


def test_seeded_draws_are_those_of_one_rank(tiny_models: TinyModels) -> None:
    def drawn(size: int) -> list[list[int]]:
        with LocalEngine(
            tiny_models("qwen2"), dtype="float32", threads=1, tensor_parallel_size=size
        ) as engine:
            params = [SamplingParams(24, temperature=0.8, top_p=0.9, seed=seed) for seed in range(3)]
            return [output.tokens for output in engine.run(list(zip(prompts(), params, strict=True)))]

    assert drawn(2) == drawn(1)


def ranks_of(engine: LocalEngine) -> list[int]:
    """Processes of the other ranks."""
    found = subprocess.run(
        ["pgrep", "-P", str(os.getpid()), "-f", "slipway.engine.rank"],
        capture_output=True,
        text=True,
        check=True,
    )
    return [int(line) for line in found.stdout.split()]


@pytest.mark.parametrize("adapted", [False, True])
def test_a_killed_rank_ends_the_engine_with_its_name(
    adapted: bool, tiny_models: TinyModels, tmp_path: Path
) -> None:
    """Wherever the others wait for it: behind a layer, or for what it makes of an adapter's A · x."""
    ref, fields = None, {}
    if adapted:
        ref = AdapterRef(1, "it", str(lora_folder(tiny_models("llama"), tmp_path / "it")))
        fields = {"max_loras": 1, "fully_sharded_loras": True}
    with LocalEngine(tiny_models("llama"), threads=1, tensor_parallel_size=2, **fields) as engine:
        engine.add(prompts(1)[0], SamplingParams(400, temperature=0.0), adapter=ref)
        while not engine.hub.deltas:  # the adapter is read in a thread beside
            engine.core.run_once()
        (rank,) = ranks_of(engine)
        os.kill(rank, signal.SIGKILL)
        with pytest.raises(Exit, match=rf"Rank 1 \(process {rank}\) ended with SIGKILL") as caught:
            engine.finish()
        assert caught.value.exit_code is WORKER_KILLED


def test_a_stopped_rank_is_found_by_its_silence_and_ended(
    tiny_models: TinyModels, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Heartbeats, "silence", 2.0)
    with LocalEngine(tiny_models("llama"), threads=1, tensor_parallel_size=2) as engine:
        engine.add(prompts(1)[0], SamplingParams(400, temperature=0.0))
        engine.core.run_once()
        (rank,) = ranks_of(engine)
        os.kill(rank, signal.SIGSTOP)
        with pytest.raises(Exit, match=rf"Rank 1 \(process {rank}\) was not heard for [23] s") as caught:
            engine.finish()
        assert caught.value.exit_code is ENGINE_DIED
    assert not Path(f"/proc/{rank}").exists()


def test_nobody_is_told_of_a_lost_rank_once_the_team_is_closed(tiny_models: TinyModels) -> None:
    with LocalEngine(tiny_models("llama"), threads=1, tensor_parallel_size=2) as engine:
        team, told = engine.worker.team, threading.Event()  # type: ignore[attr-defined]
        closes = threading.Thread(target=team.close)

        def tell() -> None:
            if told.is_set():  # by the thread that reads, and by the one that hears its beats
                return
            closes.start()
            closes.join(0.2)
            assert closes.is_alive()
            told.set()

        team.watch(tell)
        os.kill(ranks_of(engine)[0], signal.SIGKILL)
        assert told.wait(scaled(10))
        closes.join()


def wait(engine: LocalEngine) -> None:
    while True:
        engine.core.run_once()


def test_an_idle_engine_notices_a_killed_rank(tiny_models: TinyModels) -> None:
    with LocalEngine(tiny_models("llama"), threads=1, tensor_parallel_size=2) as engine:
        (rank,) = ranks_of(engine)
        os.kill(rank, signal.SIGKILL)
        with pytest.raises(Exit, match="Rank 1"):
            wait(engine)


def test_what_cannot_be_cut_is_refused_with_what_can(tiny_models: TinyModels) -> None:
    with pytest.raises((LoadError, Exit), match="--tensor-parallel-size 7 cannot cut 4 heads") as caught:
        LocalEngine(tiny_models("llama"), tensor_parallel_size=7)
    assert "4" in caught.value.hint


def test_loading_in_turn_gives_the_same(tiny_models: TinyModels) -> None:
    fields: dict[str, Any] = {"tensor_parallel_size": 4}
    in_turn = runs(tiny_models("llama"), prompts(), **fields, max_parallel_loading_workers=1)
    assert [one.tokens for one in in_turn] == [
        one.tokens for one in runs(tiny_models("llama"), prompts(), **fields)
    ]


def test_it_sleeps_and_wakes_on_all_ranks(tiny_models: TinyModels) -> None:
    with LocalEngine(tiny_models("llama"), dtype="float32", threads=1, tensor_parallel_size=2) as engine:
        request = (prompts(1)[0], SamplingParams(24, temperature=0.0))
        (before,) = engine.run([request])
        assert engine.call("sleep", "2") == "ok"
        assert engine.call("wake_up", "weights", "kv_cache") == "ok"
        (after,) = engine.run([request])
        assert after.tokens == before.tokens


REFUSING = """
import os

from slipway.exits import OUT_OF_MEMORY, Exit
from slipway.worker.cpu import CpuWorker

class Refusing(CpuWorker):
    asked = 0
    def sleep(self, *, keep_weights):
        self.asked += 1
        if str(self.ranks.rank) in os.environ["REFUSING"].split(",") and self.asked == 1:
            raise Exit(OUT_OF_MEMORY, "there is no room for weights that sleep")
        super().sleep(keep_weights=keep_weights)
"""


@pytest.fixture
def refusing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], dict[str, Any]]:
    """Fields of an engine of two ranks, of which some refuse to sleep for the first time."""
    (tmp_path / "refusing_worker.py").write_text(REFUSING)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))

    def fields(ranks: str) -> dict[str, Any]:
        monkeypatch.setenv("REFUSING", ranks)
        given = {"worker_cls": "refusing_worker.Refusing", "tensor_parallel_size": 2}
        return given | {"dtype": "float32", "threads": 1}

    return fields


@pytest.mark.parametrize("level", ["1", "2"])
@pytest.mark.parametrize("ranks", ["0", "1", "0,1"])
def test_where_one_rank_refuses_to_sleep_none_does(
    tiny_models: TinyModels, refusing: Callable[[str], dict[str, Any]], ranks: str, level: str
) -> None:
    with LocalEngine(tiny_models("llama"), **refusing(ranks)) as engine:
        request = (prompts(1)[0], SamplingParams(24, temperature=0.0))
        before = engine.run([request])
        answer = engine.call("sleep", level)
        assert answer.startswith("failed: fall asleep: ")
        assert answer.endswith(f"there is no room for weights that sleep {OUT_OF_MEMORY.hint}")
        assert not engine.worker._worker._dropped  # type: ignore[attr-defined]
        assert engine.run([request]) == before
        assert engine.call("sleep", level) == engine.call("wake_up", "weights", "kv_cache") == "ok"
        assert engine.run([request])[0].tokens == before[0].tokens
