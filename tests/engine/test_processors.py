"""Logits processors of requests: what they change, and that nothing else does."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

import row_processors
from local_engine import LocalEngine, Output
from slipway.engine.params import Processor, SamplingParams
from slipway.engine.replay import read_record, replay
from slipway.engine.start import Start
from slipway.worker import processors as worker_processors

pytestmark = pytest.mark.torch  # they get rows as its tensors

Models = Callable[[str], Path]
BASE: dict[str, object] = {"dtype": "float32", "max_model_len": 128, "num_blocks": 64, "processors": True}
PROMPT = list(range(20, 60))
DRAWN = SamplingParams(12, temperature=0.9, top_p=0.9, seed=7, num_logprobs=2, frequency_penalty=0.3)
GREEDY = SamplingParams(12, temperature=0.0, num_logprobs=2)


def named(name: str, *args: object, **kwargs: object) -> Processor:
    arguments = msgspec.json.encode([args, kwargs]).decode() if args or kwargs else ""
    return Processor(f"row_processors.{name}", arguments)


def by(params: SamplingParams, *processors: Processor) -> SamplingParams:
    return msgspec.structs.replace(params, processors=processors)


@pytest.fixture(scope="module")
def engine(tiny_models: Models) -> Iterator[LocalEngine]:
    with LocalEngine(tiny_models("llama"), **BASE) as served:
        yield served


@pytest.fixture
def hanging(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(worker_processors, "SECONDS", 0.3)
    monkeypatch.setattr(row_processors, "released", threading.Event())
    yield
    row_processors.released.set()


@pytest.mark.parametrize(
    "settings",
    [
        pytest.param({}, id="alone"),
        pytest.param({"dtype": "bfloat16"}, id="bfloat16"),
        pytest.param({"max_num_batched_tokens": 7}, id="chunks"),
        pytest.param({"num_blocks": 9}, id="preemption"),
        pytest.param({"overlap": True}, id="overlap"),
        pytest.param({"num_drafts": 3, "prompt_lookup_min": 1}, id="drafts"),
        pytest.param({"threads": 2}, id="two-threads"),
        pytest.param({"model_impl": "transformers"}, id="fallback"),
        pytest.param({"processor_threads": 1}, id="one-thread-of-theirs"),
    ],
)
def test_it_changes_what_a_bias_changes_and_that_only_to_the_bit(
    tiny_models: Models, settings: dict[str, object]
) -> None:
    bias = {"logit_bias": ((row_processors.BIASED, 20.0),)}
    pairs = [(by(one, named("biased")), msgspec.structs.replace(one, **bias)) for one in (DRAWN, GREEDY)]
    with LocalEngine(tiny_models("llama"), **BASE | settings) as served:
        plain = served.run([(PROMPT, DRAWN)])
        expected = [served.run([(PROMPT, biased)])[0] for _, biased in pairs]
        assert served.call("reset_prefix_cache") == "ok"
        work = [(PROMPT, processed) for processed, _ in pairs]
        *found, other = served.run([*work, (PROMPT, DRAWN)])
    assert [told(one) for one in found] == [told(one) for one in expected]
    assert told(other) == told(plain[0])
    assert row_processors.BIASED in set(expected[0].tokens) - set(plain[0].tokens)


def told(output: Output) -> Output:
    """What does not depend on company."""
    return replace(output, num_cached_tokens=0, num_preemptions=0)


def test_one_of_three_arguments_gets_the_prompt_beside_the_output(engine: LocalEngine) -> None:
    (output,) = engine.run([(PROMPT, by(DRAWN, named("counting")))])
    assert output.tokens == list(range(40, 64, 2))


def test_one_is_made_of_arguments_and_several_run_in_turn(engine: LocalEngine) -> None:
    late = named("only", 9, after=5)
    one, both = engine.run([(PROMPT, by(GREEDY, late)), (PROMPT, by(GREEDY, named("biased"), late))])
    assert one.tokens[5:] == both.tokens[5:] == [9] * 7
    (plain,) = engine.run([(PROMPT, GREEDY)])
    assert one.tokens[:5] == plain.tokens[:5]


def test_what_is_reported_are_the_models_own_log_probabilities(engine: LocalEngine) -> None:
    forced, plain = engine.run([(PROMPT, by(GREEDY, named("only", 9))), (PROMPT, GREEDY)])
    assert forced.tokens[0] == 9 != plain.tokens[0]
    assert forced.logprobs[0].top == plain.logprobs[0].top
    assert forced.logprobs[0].rank > 1


def test_a_mask_of_a_grammar_holds_beside_it(engine: LocalEngine) -> None:
    allowed = msgspec.structs.replace(GREEDY, allowed_token_ids=(5, 6), processors=(named("biased"),))
    (output,) = engine.run([(PROMPT, allowed)])
    assert set(output.tokens) <= {5, 6}


@pytest.mark.parametrize(
    ("processor", "words"),
    [
        (named("raising"), "its logits processors failed: RuntimeError: two are enough"),
        (named("exiting"), "its logits processors failed: SystemExit: 3"),
        (named("short"), "row_processors.short gave [511] instead of a tensor [512]"),
        (named("nothing"), "row_processors.nothing gave NoneType instead of a tensor [512]"),
        (named("not_numbers"), "what they gave has NaN or infinity, or nothing above -infinity"),
        (named("all_forbidden"), "what they gave has NaN or infinity, or nothing above -infinity"),
        (named("missing"), "AttributeError: module 'row_processors' has no attribute 'missing'"),
        (Processor("no_such_module.at_all"), "ModuleNotFoundError: No module named 'no_such_module'"),
        (named("only"), "TypeError: "),
        (named("only", 1, before=2), "TypeError: "),
    ],
    ids=lambda value: value.qualname.rpartition(".")[2] if isinstance(value, Processor) else "",
)
def test_one_that_fails_ends_its_own_request_alone(
    engine: LocalEngine, processor: Processor, words: str
) -> None:
    (alone,) = engine.run([(PROMPT, DRAWN)])
    failing, other = engine.add(PROMPT, by(DRAWN, processor)), engine.add(PROMPT, DRAWN)
    engine.finish()
    last = engine.hub.deltas.pop(failing)[-1]
    assert (last.finish_reason, last.unfit) == ("error", True)
    assert words in (last.error or "")
    assert told(engine.output(other)) == told(alone)


def test_one_that_fails_is_told_whatever_part_of_the_rows_it_is_in(tiny_models: Models) -> None:
    """A step draws from 64 rows at a time, and asks for the processors of each part."""
    settings = BASE | {"max_num_seqs": 80, "num_blocks": 160}
    with LocalEngine(tiny_models("llama"), **settings) as engine:
        (alone,) = engine.run([(PROMPT[:2], by(DRAWN, named("biased")))])
        kinds = ["short", *["biased"] * 68, "short"]
        names = [engine.add(PROMPT[:2], by(DRAWN, named(kind))) for kind in kinds]
        engine.finish()
        for name in (names[0], names[-1]):
            (last,) = engine.hub.deltas.pop(name)
            assert "row_processors.short gave [511]" in (last.error or "")
        assert all(told(engine.output(name)) == told(alone) for name in names[1:-1])


def test_one_that_hangs_ends_its_request_and_is_not_called_again(tiny_models: Models, hanging: None) -> None:
    with LocalEngine(tiny_models("llama"), **BASE, processor_threads=1) as engine:
        (alone,) = engine.run([(PROMPT, by(DRAWN, named("biased")))])
        first = engine.add(PROMPT, by(DRAWN, named("hanging")))
        other = engine.add(PROMPT, by(DRAWN, named("biased")))
        engine.finish()
        assert "row_processors.hanging took more than 0.3 s" in engine.hub.deltas.pop(first)[-1].error
        assert told(engine.output(other)) == told(alone)
        again = engine.add(PROMPT, by(DRAWN, named("hanging")))
        engine.finish()
        assert "and is not called again" in engine.hub.deltas.pop(again)[-1].error


def test_those_whose_turn_does_not_come_end_instead_of_the_engine(
    tiny_models: Models, hanging: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_processors, "SECONDS", 1.0)
    monkeypatch.setattr(worker_processors, "TURN_SECONDS", 0.3)
    with LocalEngine(tiny_models("llama"), **BASE, processor_threads=1) as engine:
        (alone,) = engine.run([(PROMPT, by(DRAWN, named("biased")))])
        kinds = ("hanging", "biased", "biased")
        first, *others = [engine.add(PROMPT, by(DRAWN, named(kind))) for kind in kinds]
        engine.finish()
        assert "row_processors.hanging took more than 1 s" in engine.hub.deltas.pop(first)[-1].error
        for name in others:
            assert "had no turn in 0.3 s" in engine.hub.deltas.pop(name)[-1].error
        (again,) = engine.run([(PROMPT, by(DRAWN, named("biased")))])
        assert told(again) == told(alone)


def test_a_slot_forgets_those_of_the_request_before(tiny_models: Models) -> None:
    with LocalEngine(tiny_models("llama"), **BASE, max_num_seqs=1) as engine:
        (plain,) = engine.run([(PROMPT, DRAWN)])
        engine.run([(PROMPT, by(DRAWN, named("counting")))])
        assert told(engine.run([(PROMPT, DRAWN)])[0]) == told(plain)


def test_a_run_with_processors_replays(tiny_models: Models, tmp_path: Path) -> None:
    path = tmp_path / "record"
    with LocalEngine(tiny_models("llama"), **BASE, record=str(path)) as engine:
        engine.run(
            [(PROMPT, by(DRAWN, named("biased"))), (PROMPT, DRAWN), (PROMPT, by(DRAWN, named("raising")))]
        )
    config, steps = read_record(path)
    assert any(output.errors for _, _, output in steps)
    assert replay(Start.of(config).worker, steps) is None
