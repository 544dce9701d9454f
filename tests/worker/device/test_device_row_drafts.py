"""Heads and layers on the device: each draft is that of torch, and the output is that without drafts."""

from __future__ import annotations

from pathlib import Path

import pytest

import device_drafts
from device_drafts import KINDS, MOST, Helping, Seen, Settings, assert_right, going_on
from device_runs import SMALL, assert_same
from factory import make_model
from followers import SOME as FOLLOWERS
from judged import Judged
from local_engine import LocalEngine, Output
from repeated_graphs import Repeated
from slipway.engine.guesses import Guessing
from slipway.engine.params import SamplingParams
from slipway.engine.request import Request

DEVICE = SMALL | {"device": "cuda", "max_num_batched_tokens": 16}
WORK = [
    ([5, 9, 14, 77, 6, 31, 8, 200, 41, 3], SamplingParams(16, temperature=0.0, num_logprobs=2)),
    ([21, 8, 3], SamplingParams(12, temperature=0.9, top_k=9, seed=11, num_logprobs=0)),
    ([60], SamplingParams(8, temperature=0.0, presence_penalty=0.4)),
]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model("llama", tmp_path_factory.mktemp("llama"))


@pytest.fixture(scope="module")
def drafting(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    settings = device_drafts.drafting(tmp_path_factory.mktemp("drafting"))
    return lambda kind: DEVICE | settings(kind)


@pytest.fixture(scope="module")
def expected(model: Path) -> list[Output]:
    with LocalEngine(model, **DEVICE) as engine:
        return engine.run(WORK)


@pytest.mark.parametrize("kind", KINDS)
def test_each_draft_is_that_of_torch_and_none_changes_a_token(
    model: Path, drafting: Settings, expected: list[Output], kind: str
) -> None:
    settings = drafting(kind)
    with going_on(model, **settings) as engine:
        judged, seen = Judged(engine), Seen(engine)
        assert_same(engine.run(WORK), expected)
    assert judged.rejected > 12
    assert judged.proposing > 0
    assert_right(kind, settings, model, seen.of(WORK[0][0]))


class Varying(Guessing):
    """Grants none, then some, then none."""

    def most(self, request: Request) -> int:
        return (0, 2, 3, 1)[len(request.tokens) // 3 % 4]


CHUNKED = {"max_num_batched_tokens": 8, "max_num_seqs": 2, "max_model_len": 56}
ALIKE = [([*range(40, 60), n], SamplingParams(n, temperature=0.0)) for n in (30, 16)]


@pytest.fixture(scope="module")
def in_chunks(model: Path) -> list[Output]:
    with LocalEngine(model, **(DEVICE | CHUNKED)) as engine:
        return engine.run(ALIKE)


@pytest.mark.parametrize(
    ("kind", "overlap", "num_blocks"),
    [(kind, *how) for how in ((True, 32), (False, 32), (True, 7)) for kind in FOLLOWERS],
)
def test_drafts_are_right_behind_pauses_prefixes_and_preemptions(
    model: Path, drafting: Settings, in_chunks: list[Output], kind: str, overlap: bool, num_blocks: int
) -> None:
    settings = drafting(kind) | CHUNKED | {"overlap": overlap, "num_blocks": num_blocks}
    with going_on(model, **settings) as engine:
        engine.core.scheduler.guessing = Varying()
        seen = Seen(engine)
        found = engine.run(ALIKE) if num_blocks == 7 else [engine.run([one])[0] for one in ALIKE]
    assert_same(found, in_chunks)
    assert_right(kind, settings, model, seen.drafts)
    if num_blocks == 7:
        assert sum(one.num_preemptions for one in found) > 0
    else:
        assert found[1].num_cached_tokens > 0


@pytest.mark.parametrize("kind", ["medusa", "mlp speculator", *FOLLOWERS])
def test_graphs_leave_the_rows_and_steps_accept_and_reject(
    model: Path, drafting: Settings, expected: list[Output], kind: str
) -> None:
    """Of drafts that are those of torch, or what comes, at times with a fault."""
    settings = drafting(kind) | {"num_drafts": MOST}
    with going_on(model, **settings) as engine:
        repeated = Repeated.into(engine.worker, [2, 4], 64)
        repeated.replayed = 0
        judged, seen = Judged(engine), Seen(engine)
        texts = [prompt + one.tokens for (prompt, _), one in zip(WORK, expected, strict=True)]
        helping = Helping(engine, texts)
        assert_same(engine.run(WORK), expected)
    assert min(judged.accepted, judged.rejected, helping.helped, helping.left) >= 4
    assert repeated.replayed > 4
    assert_right(kind, settings, model, seen.of(WORK[0][0]))


@pytest.mark.parametrize("kind", ["medusa", FOLLOWERS[0]])
def test_a_prompt_behind_padding_is_followed_as_well(model: Path, drafting: Settings, kind: str) -> None:
    """Its step is a graph for more decodes than there are: their padding stands before it."""
    settings = drafting(kind) | {"max_num_batched_tokens": 32}
    with going_on(model, **settings) as engine:
        repeated = Repeated.into(engine.worker, [1, 2, 4], 64)
        for late in ([70, 71, 72, 17], [60, 61, 62, 7]):  # the first time the graph is missed
            seen = Seen(engine)
            for prompt in ([5, 9, late[0]], [21, 8, late[0]]):
                engine.add(prompt, SamplingParams(20, temperature=0.0))
            for _ in range(6):
                engine.core.run_once()
            engine.add(late, SamplingParams(20, temperature=0.0))
            engine.finish()
    assert any(key.decodes > 2 for key in repeated.prompts)
    assert_right(kind, settings, model, seen.of(late))
