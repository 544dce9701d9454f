"""Logits processors of requests on a device: what they do is what they do on a CPU, and only to their own."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

import row_processors
from device_runs import SMALL, assert_same, launches
from factory import make_model
from local_engine import LocalEngine, Output
from repeated_graphs import Repeated
from slipway.engine.params import Processor, SamplingParams
from slipway.worker import processors as worker_processors
from slipway.worker.device.worker import DeviceWorker

SERVED: dict[str, object] = {
    "processors": True,
    "max_num_batched_tokens": 16,
    "enable_prefix_caching": False,
}
CUDA: dict[str, object] = {"device": "cuda"}
PROMPTS = [list(range(20, 29)), [40, 41], [7, 8, 9]]
DRAWN = SamplingParams(5, temperature=0.9, top_p=0.9, seed=7, num_logprobs=2, frequency_penalty=0.3)
GREEDY = SamplingParams(5, temperature=0.0, num_logprobs=2)


def by(params: SamplingParams, name: str, *args: object) -> SamplingParams:
    arguments = msgspec.json.encode([args, {}]).decode() if args else ""
    return msgspec.structs.replace(params, processors=(Processor(f"row_processors.{name}", arguments),))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model("llama", tmp_path_factory.mktemp("processed") / "model", num_hidden_layers=1)


def outputs(model: Path, work: list[tuple[list[int], SamplingParams]], **settings: object) -> list[Output]:
    with LocalEngine(model, **SMALL | SERVED | settings) as engine:
        return engine.run(work)


@pytest.mark.parametrize(
    "settings",
    [
        pytest.param({}, id="ahead"),
        pytest.param({"overlap": False}, id="in-turn"),
        pytest.param({"max_num_batched_tokens": 4}, id="chunks"),
        pytest.param({"num_drafts": 2, "prompt_lookup_min": 1, "prompt_lookup_max": 2}, id="drafts"),
        pytest.param({"num_blocks": 3, "max_model_len": 24}, id="preemption"),
        pytest.param({"model_impl": "transformers"}, id="fallback"),
    ],
)
def test_what_they_ban_and_bias_is_the_cpus_beside_requests_without(
    model: Path, settings: dict[str, object]
) -> None:
    work = [
        (PROMPTS[0], by(GREEDY, "only", 9)),
        (PROMPTS[1], by(DRAWN, "biased")),
        (PROMPTS[2], DRAWN),
        (PROMPTS[0], by(GREEDY, "counting")),
    ]
    found, expected = (outputs(model, work, **settings, **device) for device in (CUDA, {}))
    assert_same(found, expected)
    assert found[0].tokens == [9] * 5
    assert found[3].tokens == [9, 11, 13, 15, 17]
    assert row_processors.BIASED in found[1].tokens
    assert_same(found[2:3], outputs(model, [(PROMPTS[2], DRAWN)], **CUDA))


def test_what_is_reported_are_the_models_own_log_probabilities(model: Path) -> None:
    forced, plain = outputs(model, [(PROMPTS[0], by(GREEDY, "only", 9)), (PROMPTS[0], GREEDY)], **CUDA)
    assert forced.tokens[0] == 9 != plain.tokens[0]
    for (token, logprob), (other, same) in zip(forced.logprobs[0].top, plain.logprobs[0].top, strict=True):
        assert (token, logprob) == (other, pytest.approx(same, abs=1e-5))
    assert forced.logprobs[0].rank > 1


def test_small_differences_that_they_make_outlive_a_narrow_type(model: Path) -> None:
    """Logits are bfloat16; what the processors give is drawn from in fp32."""
    work = [(PROMPTS[1], by(GREEDY, "nearly_equal"))]
    (found,) = outputs(model, work, dtype="bfloat16", **CUDA)
    assert found.tokens == [row_processors.BIASED] * 5


@pytest.mark.parametrize("name", ["raising", "short", "not_numbers", "missing"])
def test_one_that_fails_ends_its_own_request_alone_as_on_a_cpu(model: Path, name: str) -> None:
    errors = []
    for device in (CUDA, {}):
        with LocalEngine(model, **SMALL | SERVED | device) as engine:
            failing, other = engine.add(PROMPTS[0], by(DRAWN, name)), engine.add(PROMPTS[1], DRAWN)
            engine.finish()
            deltas = engine.hub.deltas.pop(failing)
            assert (deltas[-1].finish_reason, deltas[-1].unfit) == ("error", True)
            errors.append(([one.token_ids for one in deltas], deltas[-1].error))
            plain = engine.output(other)
            assert_same([plain], engine.run([(PROMPTS[1], DRAWN)]))
    assert errors[0] == errors[1]


@pytest.fixture
def hanging(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(worker_processors, "SECONDS", 0.3)
    monkeypatch.setattr(row_processors, "released", threading.Event())
    yield
    row_processors.released.set()


def test_one_that_hangs_ends_its_request_and_the_others_go_on(model: Path, hanging: None) -> None:
    with LocalEngine(model, **SMALL | SERVED | CUDA) as engine:
        expected = engine.run([(PROMPTS[1], by(DRAWN, "biased")), (PROMPTS[2], DRAWN)])
        stuck = engine.add(PROMPTS[0], by(DRAWN, "hanging"))
        names = [engine.add(PROMPTS[1], by(DRAWN, "biased")), engine.add(PROMPTS[2], DRAWN)]
        engine.finish()
        assert "row_processors.hanging took more than 0.3 s" in engine.hub.deltas.pop(stuck)[-1].error
        assert_same([engine.output(name) for name in names], expected)
        again = engine.add(PROMPTS[0], by(DRAWN, "hanging"))
        engine.finish()
        assert "and is not called again" in engine.hub.deltas.pop(again)[-1].error


def test_tokens_are_told_before_a_draw_waits_for_processors(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And steps of others run ahead as ever."""
    with LocalEngine(model, **SMALL | SERVED | CUDA) as engine:
        under_way: list[int] = []
        draw = engine.core.executor.draw

        def noted(masks: object = None) -> None:
            under_way.append(len(engine.core._under_way))
            draw(masks)  # type: ignore[arg-type]

        monkeypatch.setattr(engine.core.executor, "draw", noted)
        engine.run([(PROMPTS[1], GREEDY)])
        assert under_way == [1, 2, 2, 2, 2]
        under_way.clear()
        engine.run([(PROMPTS[1], GREEDY), (PROMPTS[2], by(GREEDY, "biased"))])
        assert under_way == [1] * 5


def test_a_graphs_logits_are_edited_and_the_graph_goes_on_for_others(model: Path) -> None:
    work = [(PROMPTS[0], by(GREEDY, "biased")), (PROMPTS[1], GREEDY)]
    with LocalEngine(model, **SMALL | SERVED) as engine:
        expected = [engine.run(work), engine.run(work[1:])]
    with LocalEngine(model, **SMALL | SERVED | CUDA) as engine:
        assert isinstance(engine.worker, DeviceWorker)
        graphs = Repeated.into(engine.worker, [4], 64, eager=False)
        found = [engine.run(work)]
        assert graphs.replayed == GREEDY.max_tokens - 1  # forward passes; the draws are launched
        found.append(engine.run(work[1:]))
        assert graphs.replayed == 2 * GREEDY.max_tokens - 1  # a prompt alone is one, too
    for ours, theirs in zip(found, expected, strict=True):
        assert_same(ours, theirs)


def test_a_slot_forgets_those_of_the_request_before(model: Path) -> None:
    with LocalEngine(model, **SMALL | SERVED | CUDA | {"max_num_seqs": 1}) as engine:
        first, _, last = engine.run([(PROMPTS[0], one) for one in (DRAWN, by(DRAWN, "counting"), DRAWN)])
    assert_same([last], [first])


def test_steps_without_processors_launch_what_an_engine_without_them_does(model: Path) -> None:
    lists = []
    for served in (True, False):
        with LocalEngine(model, **SMALL | SERVED | CUDA | {"processors": served}) as engine:
            if served:
                engine.run([(PROMPTS[0], by(DRAWN, "biased"))])
            with launches() as noted:
                engine.run([(PROMPTS[0], GREEDY), (PROMPTS[1], DRAWN)])
            lists.append(noted)
    assert lists[0] == lists[1]
