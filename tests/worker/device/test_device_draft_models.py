"""A draft model on the device: its own words, and the output of a worker that guesses nothing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from device_runs import SMALL, assert_same
from factory import model_folders
from judged import Judged
from local_engine import LocalEngine, Output
from slipway.engine.config import DraftConfig
from slipway.engine.guesses import Guessing
from slipway.engine.params import SamplingParams
from slipway.engine.request import Request

MOST = 3
DEVICE = SMALL | {"device": "cuda", "max_num_batched_tokens": 16}
WORK = [
    ([5, 9, 14, 77, 6, 31, 8, 200, 41, 3], SamplingParams(9, temperature=0.0, num_logprobs=2)),
    ([21, 8, 3], SamplingParams(7, temperature=0.9, top_k=9, seed=11, num_logprobs=0)),
]
Models = Callable[[str], Path]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Models:
    sizes = {
        "llama": ("llama", {"num_hidden_layers": 2}),
        "other": ("qwen3", {"num_hidden_layers": 1, "head_dim": 16, "seed": 5}),
        "many words": ("llama", {"num_hidden_layers": 1, "seed": 9, "vocab_size": 640}),
    }
    return model_folders(tmp_path_factory.mktemp("drafting"), sizes)


@pytest.fixture(scope="module")
def expected(models: Models) -> list[Output]:
    with LocalEngine(models("llama"), **DEVICE) as engine:
        return engine.run(WORK)


def drafting(models: Models, draft: str, **settings: object) -> LocalEngine:
    """An engine whose model another guesses for, and goes on with that."""
    config = DraftConfig(method="draft_model", model=str(models(draft)))
    engine = LocalEngine(models("llama"), **(DEVICE | {"draft": config, "num_drafts": MOST} | settings))
    engine.core.scheduler.guessing = None
    return engine


def test_the_model_itself_guesses_right(models: Models, expected: list[Output]) -> None:
    with drafting(models, "llama") as engine:
        judged = Judged(engine)
        assert_same(engine.run(WORK), expected)
    assert (judged.accepted, judged.rejected) == (10, 0)
    assert judged.proposing > 0


@pytest.mark.slow
@pytest.mark.parametrize("draft", ["other", "many words"])
@pytest.mark.parametrize("overlap", [True, False])
def test_another_models_drafts_change_nothing(
    models: Models, expected: list[Output], draft: str, overlap: bool
) -> None:
    with drafting(models, draft, overlap=overlap) as engine:
        judged = Judged(engine)
        assert_same(engine.run(WORK), expected)
    assert judged.rejected >= 8


class Varying(Guessing):
    """Grants none, then some, then none for longer than a block."""

    def most(self, request: Request) -> int:
        return (0, 2, 3, 1)[len(request.tokens) // 3 % 4] if len(request.tokens) < 24 else MOST


@pytest.mark.slow
@pytest.mark.parametrize(("overlap", "num_blocks"), [(True, 32), (False, 32), (True, 8)])
def test_it_has_read_all_that_the_target_has(models: Models, overlap: bool, num_blocks: int) -> None:
    """Behind pauses, behind prompts in chunks, behind prefixes of others, and behind preemptions."""
    common = list(range(40, 60))
    work = [([*common, n], SamplingParams(n, temperature=0.0)) for n in (30, 16)]
    chunked = {"max_num_batched_tokens": 8, "max_num_seqs": 2, "overlap": overlap}
    with LocalEngine(models("llama"), **(DEVICE | chunked)) as engine:
        expected = engine.run(work)
    with drafting(models, "llama", **chunked, num_blocks=num_blocks) as engine:
        engine.core.scheduler.guessing = Varying()
        judged = Judged(engine)
        found = engine.run(work) if num_blocks == 8 else [engine.run([one])[0] for one in work]
    assert_same(found, expected)
    assert judged.accepted >= 10
    assert judged.rejected == 0
    if num_blocks == 8:
        assert sum(one.num_preemptions for one in found) > 0
    else:
        assert found[1].num_cached_tokens > 0
