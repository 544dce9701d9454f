"""A model that guesses beside all else that an engine does: answers are those of a server without it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from test_draft_models import Noted, drafting, going_on, planned
from test_given_rows import embedded
from test_processors import named
from test_sleep import BOTH, WORK
from test_sleep import same as same_answers

from adapter_runs import adapter, ref
from counted import Counted
from factory import model_folders
from local_engine import LocalEngine
from slipway.engine.messages import NO_TOKEN, LoadAdapter
from slipway.engine.params import SamplingParams
from slipway.load.errors import LoadError

Models = Callable[[str], Path]
BASE: dict[str, Any] = {"dtype": "float32", "max_model_len": 256, "num_blocks": 100, "max_num_seqs": 8}
LONG = SamplingParams(60, temperature=0.0, num_logprobs=1)


@pytest.mark.parametrize("level", ["1", "2"])
def test_it_wakes_to_the_same_answers_and_guesses_on(tiny_models: Models, level: str) -> None:
    target = tiny_models("llama")
    with LocalEngine(target, **BASE) as engine:
        plain = engine.run(WORK)
    with going_on(target, **(BASE | drafting(target))) as engine:
        same_answers(engine.run(WORK), plain)
        for _ in range(2):
            assert engine.call("sleep", level) == "ok"
            worker: Any = engine.worker
            assert hasattr(worker, "proposer") == (level == "1")
            assert engine.call("wake_up", *BOTH) == "ok"
            counted = Counted(engine)
            same_answers(engine.run(WORK), plain)
            worker._model = counted._model
            assert counted.accepted > 15
            assert counted.rejected < 3


def test_prompts_of_embeddings_are_never_read_by_the_draft(tiny_models: Models) -> None:
    target = tiny_models("llama")
    settings = BASE | {"enable_prompt_embeds": True, "max_num_batched_tokens": 16}
    prompts = [[5, 6, 7] * 12, [9, 10] * 20, [11, 12, 13] * 9]

    def answers(engine: LocalEngine) -> list[object]:
        names = []
        for place, prompt in enumerate(prompts):
            given = {} if place == 1 else {"prompt_embeds": embedded(target, prompt)}
            tokens = [NO_TOKEN] * len(prompt) if given else prompt
            names.append(engine.add(tokens, LONG, **given))
        engine.finish()
        return [(one.tokens, one.logprobs) for one in map(engine.output, names)]

    with LocalEngine(target, **settings) as engine:
        plain = [answers(engine), answers(engine)]  # with prefix hits
    with going_on(target, **(settings | drafting(target))) as engine:
        noted = Noted(engine)
        assert [answers(engine), answers(engine)] == plain
    assert noted.drafts
    assert {tuple(known[:2]) for known, _, _ in noted.drafts} == {(9, 10)}


def test_adapters_change_the_answers_and_not_the_draft(tiny_models: Models, tmp_path: Path) -> None:
    target = tiny_models("llama")
    added = adapter(target, tmp_path / "adapter")
    settings = BASE | {"max_loras": 1}

    def answers(engine: LocalEngine) -> list[object]:
        names = [engine.add([7, 8, 9] * 8, LONG, adapter=ref(one)) for one in (added, None)]
        engine.finish()
        return [(one.tokens, one.logprobs) for one in map(engine.output, names)]

    with LocalEngine(target, **settings) as engine:
        plain = answers(engine)
    assert plain[0] != plain[1]
    with going_on(target, **(settings | drafting(target))) as engine:
        counted = Counted(engine)
        assert answers(engine) == plain
    assert counted.accepted > 40
    assert counted.rejected > 10


def test_a_step_that_loads_an_adapter_alone_tells_nothing_of_rows(
    tiny_models: Models, tmp_path: Path
) -> None:
    target = tiny_models("llama")
    with LocalEngine(target, **BASE, max_loras=1, **drafting(target)) as engine:
        engine.tell(LoadAdapter(1, ref(adapter(target, tmp_path / "adapter"))))  # type: ignore[arg-type]
        engine.finish()
        assert engine.hub.replies == {1: "ok"}
        assert len(engine.run([([7, 8, 9] * 8, LONG)])[0].tokens) == LONG.max_tokens


@pytest.mark.torch
def test_requests_with_processors_get_no_drafts(tiny_models: Models) -> None:
    target = tiny_models("llama")
    settings = BASE | {"processors": True}
    params = msgspec.structs.replace(LONG, processors=(named("biased"),))
    with LocalEngine(target, **settings) as engine:
        plain = engine.run([([5, 6, 7] * 6, params)])
    with going_on(target, **(settings | drafting(target))) as engine:
        noted = Noted(engine)
        assert engine.run([([5, 6, 7] * 6, params)]) == plain
    assert len(plain[0].tokens) == LONG.max_tokens
    assert not noted.drafts


def test_nothing_is_guessed_in_a_pause(tiny_models: Models, tmp_path: Path) -> None:
    """A draft that is never right, whose own time counts: a stake is lost, then one is tried at times."""
    target = tiny_models("llama")
    wrong = model_folders(tmp_path, {"other": ("llama", {"seed": 9})})("other")
    work = [([5, 6, 7] * 6, SamplingParams(200, temperature=0.0))]
    with LocalEngine(target, **BASE) as engine:
        plain = engine.run(work)
    with LocalEngine(target, **(BASE | drafting(wrong))) as engine:
        counted, noted = Counted(engine), Noted(engine)
        assert engine.run(work) == plain
    verified = counted.accepted + counted.rejected
    assert 0 < verified < 60
    # The step that verifies the last before a pause has guessed once more.
    assert sum(len(drafts) for _, _, drafts in noted.drafts) < verified + 40


@pytest.mark.parametrize("most", [2, 3])
def test_from_so_many_running_requests_on_the_model_is_not_asked(tiny_models: Models, most: int) -> None:
    target = tiny_models("llama")
    with going_on(target, **(BASE | drafting(target) | {"max_guessing": most})) as engine:
        noted = Noted(engine)
        engine.run([([5, 6, 7] * 6, LONG), ([9, 6, 7] * 6, LONG)])
    assert bool(noted.drafts) == (most == 3)


def test_what_is_wrong_with_the_draft_says_so(tiny_models: Models, tmp_path: Path) -> None:
    target = tiny_models("llama")
    with pytest.raises(LoadError, match=r"Of the draft model .* --quantization awq wants") as refused:
        planned(target, target, quantization="awq")
    assert refused.value.argument == "speculative_config"
    with pytest.raises(LoadError, match=f"Of the draft model {tmp_path}"):
        planned(target, tmp_path)
