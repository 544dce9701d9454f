"""Heads and layers that guess on the device, beside all else that a server does: no token changes."""

from __future__ import annotations

from pathlib import Path

import pytest
from test_device_adapters import made
from test_device_given import GIVEN, add_rows, table_rows
from test_device_ngrams import Halves

import device_drafts
from device_drafts import MOST, Seen, Settings, assert_right, going_on
from device_runs import SMALL, assert_same
from factory import make_model
from judged import Judged
from local_engine import LocalEngine, Output
from slipway.engine.grammar import Grammars
from slipway.engine.messages import NO_TOKEN
from slipway.engine.params import SamplingParams

DEVICE = SMALL | {"device": "cuda", "max_num_batched_tokens": 16, "max_num_seqs": 2}
WORK = [
    ([5, 9, 14, 77, 6, 31, 8, 200, 41, 3], SamplingParams(7, temperature=0.0, num_logprobs=2)),
    ([21, 8, 3], SamplingParams(6, temperature=0.9, top_k=9, seed=11, num_logprobs=0)),
]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model("llama", tmp_path_factory.mktemp("llama"))


@pytest.fixture(scope="module")
def drafting(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    settings = device_drafts.drafting(tmp_path_factory.mktemp("drafting"))
    return lambda kind: DEVICE | settings(kind) | {"num_drafts": MOST}


@pytest.mark.parametrize(
    ("kind", "level"),
    [("medusa", "1"), ("mlp speculator", "2"), ("eagle", "2"), ("eagle3", "1"), ("two mtp layers", "2")],
)
def test_they_wake_to_the_same_drafts(model: Path, drafting: Settings, kind: str, level: str) -> None:
    with going_on(model, **drafting(kind)) as engine:
        seen, found = Seen(engine), []
        for _ in range(2):
            found.append((engine.run(WORK), list(seen.drafts)))
            seen.drafts.clear()
            assert engine.call("sleep", level) == "ok"
            assert engine.call("wake_up", "weights", "kv_cache") == "ok"
    assert_same(found[0][0], found[1][0])
    assert found[0][1] == found[1][1] != []


@pytest.mark.parametrize(("kind", "guesses"), [("medusa", True), ("eagle", False)])
def test_prompts_of_embeddings_are_guessed_for_by_what_reads_no_prompts(
    model: Path, drafting: Settings, kind: str, guesses: bool
) -> None:
    (given, params), text = WORK
    outputs = []
    for settings in (DEVICE, drafting(kind)):
        with going_on(model, **settings | GIVEN) as engine:
            seen = Seen(engine)
            names = [add_rows(engine, table_rows(model, given), params), engine.add(*text)]
            engine.finish()
            outputs.append([engine.output(name) for name in names])
    assert_same(outputs[1], outputs[0])
    assert seen.of(text[0])
    assert bool(seen.of([NO_TOKEN] * len(given))) == guesses


@pytest.mark.parametrize("kind", ["medusa", "eagle3"])
def test_they_guess_within_masks(model: Path, drafting: Settings, kind: str) -> None:
    outputs, judged = [], []
    for settings in (DEVICE, drafting(kind)):
        with going_on(model, **settings) as engine:
            engine.core.grammars = Grammars(lambda message: Halves())
            judged.append(Judged(engine))
            names = [engine.add(*one, grammar=name) for one, name in zip(WORK, ("halves", ""), strict=True)]
            engine.finish()
            outputs.append([engine.output(name) for name in names])
    assert_same(outputs[1], outputs[0])
    assert judged[1].rejected >= 4


@pytest.mark.parametrize("kind", ["mlp speculator", "eagle"])
def test_they_go_on_from_rows_with_adapters(
    model: Path, drafting: Settings, tmp_path: Path, kind: str
) -> None:
    adapter = made(model, tmp_path / "adapter", 1, 9)
    served = {"max_loras": 2, "max_lora_rank": 9}
    outputs: list[list[Output]] = []
    for settings in (DEVICE, drafting(kind)):
        with going_on(model, **(settings | served)) as engine:
            judged = Judged(engine)
            names = [engine.add(*one, adapter=ref) for one, ref in zip(WORK, (adapter, None), strict=True)]
            engine.finish()
            outputs.append([engine.output(name) for name in names])
    assert_same(outputs[1], outputs[0])
    assert judged.rejected >= 4


@pytest.mark.parametrize("kind", ["medusa", "eagle", "two mtp layers"])
def test_they_go_on_where_a_request_is_swapped(model: Path, drafting: Settings, kind: str) -> None:
    bounds = {"max_model_len": 24, "num_blocks": 4, "swap_bytes": 1 << 20, "enable_prefix_caching": False}
    work = [
        ([3] * 6, SamplingParams(11, temperature=0.0)),
        ([4] * 7, SamplingParams(11, temperature=0.0)),
    ]
    with LocalEngine(model, **DEVICE) as engine:
        expected = engine.run(work)
    with going_on(model, **(drafting(kind) | bounds)) as engine:
        judged, seen = Judged(engine), Seen(engine)
        found = engine.run(work)
        assert max(one.num_swapped for one in engine.hub.stats) == 1
    assert_same(found, expected)
    assert judged.rejected >= 2
    assert_right(kind, drafting(kind), model, seen.drafts)
