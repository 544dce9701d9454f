"""Pipeline stages as processes: they say what one rank says, to the bit, and end together."""

from __future__ import annotations

import json
import os
import re
import signal
from pathlib import Path
from typing import Any

import pytest

from adapter_runs import adapter, ref
from factory import make_model
from local_engine import LocalEngine, Output
from slipway.dist.mesh import Mesh
from slipway.engine.params import SamplingParams
from slipway.engine.pipelined import PipelinedWorker
from slipway.exits import ENGINE_DIED, WORKER_KILLED, Exit
from slipway.load.errors import LoadError
from slipway.text import structure
from slipway.text.open import load

pytestmark = pytest.mark.slow

DATA = Path(__file__).parents[1] / "data"
SETTINGS: dict[str, Any] = {
    "dtype": "float32",
    "max_model_len": 128,
    "num_blocks": 64,
    "max_num_batched_tokens": 32,
    "threads": 1,
}
REPEATING = [[*range(20, 50), *([90 + i, 91, 92, 93] * 5)] for i in range(6)]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model("llama", tmp_path_factory.mktemp("models") / "llama", num_hidden_layers=4)


def served(model: Path, pp: int, tp: int = 1, **settings: Any) -> LocalEngine:
    return LocalEngine(model, pipeline_parallel_size=pp, tensor_parallel_size=tp, **(SETTINGS | settings))


def answers(engine: LocalEngine, prompts: list[list[int]], count: int = 24) -> list[Output]:
    how = ({"temperature": 0.7 if i % 2 else 0.0, "seed": i} for i in range(len(prompts)))
    params = [SamplingParams(count, num_logprobs=1, **own) for own in how]  # type: ignore[arg-type]
    return engine.run(list(zip(prompts, params, strict=True)))


def followed(engine: LocalEngine, added: Path) -> list[Output]:
    """Of requests whose masks and adapters go to other processes, too."""
    grammar = structure.of_regex("[ab]{4,12}c")
    greedy = SamplingParams(16, temperature=0.0)
    asked: list[tuple[list[int], dict[str, Any]]] = [
        (REPEATING[0], {}),
        (REPEATING[1], {"adapter": ref(added)}),
        (REPEATING[2], {"grammar": grammar}),
        (REPEATING[3], {"grammar": grammar, "adapter": ref(added)}),
    ]
    names = [engine.add(prompt, greedy, **fields) for prompt, fields in asked]
    engine.finish()
    assert not [delta.error for name in names for delta in engine.hub.deltas[name] if delta.error]
    return [engine.output(name) for name in names]


def test_stages_as_processes_say_what_one_does(model: Path, tmp_path: Path) -> None:
    settings = {"max_loras": 1, "num_drafts": 3, "prompt_lookup_min": 1}
    added, found = adapter(model, tmp_path / "adapter"), []
    for pp in (1, 2):
        with served(model, pp, **settings) as engine:
            found.append([answers(engine, REPEATING), followed(engine, added)])
            assert isinstance(engine.worker, PipelinedWorker) == (pp > 1)
            assert any(one.num_cached_tokens for one in answers(engine, REPEATING))
    assert len({tuple(one.tokens) for outputs in found[0] for one in outputs}) > 6
    assert found[1] == found[0]


def test_stages_of_several_ranks_say_what_those_of_one_stage_do(model: Path) -> None:
    """Which add up in the same order; that what they say is what one rank says is told of them alone."""
    found = []
    for pp in (1, 2):
        with served(model, pp, tp=2) as engine:
            found.append(answers(engine, REPEATING))
    assert found[1] == found[0]


def test_a_partition_goes_to_every_stage(model: Path) -> None:
    with served(model, 1) as engine:
        alone = answers(engine, REPEATING[:2])
    with served(model, 2, layer_partition=[3, 1]) as engine:
        assert answers(engine, REPEATING[:2]) == alone
    with pytest.raises(LoadError, match="VLLM_PP_LAYER_PARTITION=2,1 deals 3 layers"):
        served(model, 2, layer_partition=[2, 1])


def test_recorded_steps_are_played_back_by_stages(model: Path, tmp_path: Path) -> None:
    from slipway.engine.replay import read_record, replay
    from slipway.engine.start import Start

    with served(model, 2, record=str(tmp_path / "run.record")) as engine:
        answers(engine, REPEATING)
    config, steps = read_record(tmp_path / "run.record")
    worker = Start.of(config).worker
    try:
        assert steps
        assert replay(worker, steps) is None
    finally:
        worker.close()


@pytest.mark.parametrize(("pp", "tp", "rank"), [(3, 1, 1), (3, 1, 2), (2, 2, 1), (2, 2, 2), (2, 2, 3)])
def test_a_stage_that_is_killed_ends_all_with_its_name(model: Path, pp: int, tp: int, rank: int) -> None:
    with served(model, pp, tp) as engine:
        worker = engine.worker
        assert isinstance(worker, PipelinedWorker)
        for prompt in REPEATING:
            engine.add(prompt, SamplingParams(80, temperature=0.0))
        for _ in range(6):
            engine.core.run_once()
        pids = [other.pid for other in worker.team.ranks.values()]
        os.kill(pids[rank - 1], signal.SIGKILL)
        name = f"{Mesh(1, pp, tp).name(rank).capitalize()} (process {pids[rank - 1]}) ended with SIGKILL"
        with pytest.raises(Exit, match=re.escape(name)) as raised:
            engine.finish()
        assert raised.value.exit_code in (WORKER_KILLED, ENGINE_DIED)
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


@pytest.mark.parametrize("pp", [2, 4])
def test_stages_of_the_demo_model_say_what_one_does(demo_model: Path, pp: int) -> None:
    tokenizer = load(demo_model)
    prompts = [tokenizer.encode(text) for text in json.loads((DATA / "prompts.json").read_text())][:8]
    settings = {"max_model_len": 512, "num_blocks": 400, "max_num_batched_tokens": 128}
    with served(demo_model, 1, **settings) as engine:
        alone = answers(engine, prompts, 32)
    with served(demo_model, pp, **settings) as engine:
        assert answers(engine, prompts, 32) == alone
