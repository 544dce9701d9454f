"""A model that guesses for another: output is the same to the bit, and each draft is what that one would say.

The target as its own draft is always right, another random model hardly ever.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from test_drafts import AXES, BASE, Request, requests, same
from test_grammar import WORK as MASKED_WORK
from test_grammar import run as run_masked
from test_grammar import served as served_masked

from consolidated import to_consolidated
from counted import Counted
from factory import VOCABULARY, model_folders
from gguf_convert import to_gguf
from local_engine import LocalEngine, Output
from slipway.engine.config import DraftConfig, EngineConfig
from slipway.engine.params import SamplingParams
from slipway.engine.replay import read_record, replay
from slipway.engine.start import Start
from slipway.load.checkpoint import open_checkpoint
from slipway.load.errors import LoadError
from slipway.worker.cpu import CpuWorker
from slipway.worker.drafts.plan import with_draft
from slipway.worker.plan import ModelPlan
from slipway.worker.planning import plan_model

NUM_DRAFTS = 4
SMALLER: dict[str, Any] = {"num_hidden_layers": 2, "head_dim": 16}
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "llama of 16 layers": ("llama", {"num_hidden_layers": 16}),
    "mistral": ("mistral", {"head_dim": 16, "sliding_window": 20}),
    "gemma3": ("gemma3_text", {"head_dim": 16}),
    "other qwen3": ("qwen3", {"seed": 5, **SMALLER}),
    "other mistral": ("mistral", {"seed": 6, **SMALLER, "sliding_window": 20}),
    "narrow mistral": ("mistral", {"seed": 7, **SMALLER, "head_dim": 8, "sliding_window": 20}),
    "wide qwen3": ("qwen3", {"seed": 8, **SMALLER, "head_dim": 64, "num_key_value_heads": 4}),
    "many words": ("llama", {"seed": 9, "vocab_size": 640}),
    "few words": ("llama", {"seed": 9, "vocab_size": 448}),
}
PAIRS = [
    "llama float32 / llama",
    "llama bfloat16 / other mistral",
    "llama float32 / many words",
    "llama of 16 layers float32 / narrow mistral",
    "llama float32 / wide qwen3",
    "mistral float32 / mistral",
    "gemma3 bfloat16 / gemma3",
    "gemma3 float32 / other qwen3",
]
FAST = PAIRS[:1]
CELLS = [
    pytest.param(pair, axis, marks=() if pair in FAST else pytest.mark.slow)
    for pair, axis in product(PAIRS, AXES)
]
"""A pair, and how it is served."""


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    return model_folders(tmp_path_factory.mktemp("drafting"), VARIANTS)


def drafting(draft: Path, **fields: Any) -> dict[str, object]:
    """Settings by which a model guesses."""
    config = DraftConfig(method="draft_model", model=str(draft), **fields)
    return {"draft": config, "num_drafts": NUM_DRAFTS}


@contextmanager
def going_on(target: Path, **settings: Any) -> Iterator[LocalEngine]:
    """An engine that goes on guessing, whatever becomes of the drafts."""
    with LocalEngine(target, **settings) as engine:
        engine.core.scheduler.guessing = None
        yield engine


class Noted:
    """A proposer, and what it proposed: the tokens that a slot had, and its drafts."""

    def __init__(self, engine: LocalEngine) -> None:
        worker: Any = engine.worker
        assert isinstance(worker, CpuWorker)
        assert worker.proposer is not None
        self._proposer, worker.proposer = worker.proposer, self
        self._params: dict[int, SamplingParams] = {}
        self.drafts: list[tuple[list[int], SamplingParams, list[int]]] = []

    def start(self, slots: Any, start: Any) -> None:
        self._params[start.slot] = start.params
        self._proposer.start(slots, start)

    def precede(self, slots: Any, plan: Any) -> None:
        self._proposer.precede(slots, plan)

    def follow(self, slots: Any, plan: Any, result: Any) -> None:
        drew = result.requests["num_drawn"].tolist()
        self._proposer.follow(slots, plan, result)
        for slot, drawn in zip(plan.slots, drew, strict=True):
            if drawn and slots.num_drafts[slot]:
                known, drafts = slots.known(slot).tolist(), slots.drafts(slot).tolist()
                self.drafts.append((known, self._params[slot], drafts))

    def check(self, draft: Path, **settings: Any) -> None:
        """Each draft is what that model would say alone, asked to go on from there in the target's words."""
        # Counts of what a request has said before are not those of a prompt.
        found = [one for one in self.drafts if not counts(one[1])]
        assert len(found) > 20
        with LocalEngine(draft, **(BASE | settings)) as alone:
            words = tuple(range(VOCABULARY)) if "many words" in str(draft) else ()
            asked = {"num_logprobs": -1, "allowed_token_ids": words}
            work = [
                (known, msgspec.structs.replace(params, max_tokens=len(drafts), **asked))
                for known, params, drafts in found
            ]
            said = [one.tokens for one in alone.run(work)]
        assert said == [drafts for _, _, drafts in found]


def counts(params: SamplingParams) -> bool:
    penalties = params.presence_penalty or params.frequency_penalty or params.repetition_penalty != 1.0
    return bool(penalties or params.min_tokens or params.stop_token_ids or params.num_prompt_logprobs >= 0)


Case = tuple[Path, Path, dict[str, object], list[Output]]


@pytest.fixture(
    scope="module", params=[pytest.param(one, marks=() if one in FAST else pytest.mark.slow) for one in PAIRS]
)
def case(request: pytest.FixtureRequest, models: Callable[[str], Path]) -> Case:
    """A target, its draft, their settings, and what each request gives alone without drafts."""
    target, draft = request.param.split(" / ")
    name, dtype = target.rsplit(" ", 1)
    settings = BASE | {"dtype": dtype}
    with LocalEngine(models(name), **(settings | {"threads": 1})) as engine:
        alone = [engine.run([one])[0] for one in requests()]
    return models(name), models(draft), settings, alone


@pytest.mark.parametrize(("case", "axis"), CELLS, indirect=["case"])
def test_a_draft_model_changes_no_token_and_no_logprob(case: Case, axis: str) -> None:
    target, draft, settings, alone = case
    with going_on(target, **(settings | drafting(draft) | AXES[axis])) as engine:
        counted = Counted(engine)
        together = engine.run(requests())
    same(together, alone)
    assert counted.accepted + counted.rejected > 200
    if target == draft:
        assert counted.rejected < 0.02 * counted.accepted
    if "preemption" in axis:
        assert sum(one.num_preemptions for one in together) > 0


@pytest.mark.parametrize(("case", "axis"), CELLS, indirect=["case"])
def test_each_draft_is_what_its_model_would_say(case: Case, axis: str) -> None:
    target, draft, settings, _ = case
    with going_on(target, **(settings | drafting(draft) | AXES[axis])) as engine:
        noted = Noted(engine)
        engine.run(requests())
        engine.run(requests())  # with prefix hits, where there are some
    noted.check(draft, dtype=settings["dtype"])


def test_a_draft_model_changes_nothing_of_a_request_alone(case: Case) -> None:
    target, draft, settings, alone = case
    with going_on(target, **(settings | drafting(draft))) as engine:
        same([engine.run([one])[0] for one in requests()], alone)


def test_prompt_logprobs_and_prefix_hits_are_the_same(models: Callable[[str], Path]) -> None:
    settings = BASE | {"dtype": "float32", "enable_prefix_caching": True, "max_num_batched_tokens": 16}
    asked = [
        (prompt, msgspec.structs.replace(params, num_prompt_logprobs=place % 3 - 1))
        for place, (prompt, params) in enumerate(requests())
    ]
    with LocalEngine(models("llama"), **settings) as engine:
        plain = [engine.run(asked), engine.run(asked)]
    with going_on(models("llama"), **(settings | drafting(models("llama")))) as engine:
        counted = Counted(engine)
        assert [engine.run(asked), engine.run(asked)] == plain
    assert any(one.num_cached_tokens for one in plain[1])
    assert counted.accepted > 400
    assert counted.rejected < 0.02 * counted.accepted


@pytest.mark.parametrize("draft", ["llama", "other qwen3"])
@pytest.mark.parametrize("axis", [{}, {"overlap": True}, {"num_blocks": 8}], ids=str)
def test_a_draft_model_changes_nothing_within_masks(
    models: Callable[[str], Path], axis: dict[str, object], draft: str
) -> None:
    grammars = ["turning", "turning", ""]
    with served_masked(models("llama")) as engine:
        plain = run_masked(engine, grammars)
    with served_masked(models("llama"), **(drafting(models(draft)) | axis)) as engine:
        engine.core.scheduler.guessing = None
        counted = Counted(engine)
        drafted = run_masked(engine, grammars)
    assert [(one.tokens, one.logprobs) for one in drafted] == [(one.tokens, one.logprobs) for one in plain]
    assert counted.rejected > 20
    assert (counted.accepted > 40) == (draft == "llama")
    assert len(MASKED_WORK) == len(grammars)


@pytest.mark.slow
def test_a_run_with_a_draft_model_replays(models: Callable[[str], Path], tmp_path: Path) -> None:
    record = tmp_path / "run.record"
    settings = BASE | {"dtype": "float32", "num_blocks": 20, "record": str(record)}
    with going_on(models("llama"), **(settings | drafting(models("other qwen3")))) as engine:
        engine.run(requests())
    config, steps = read_record(record)
    assert any(max(plan.ahead, default=0) for plan, _, _ in steps)
    assert replay(Start.of(config).worker, steps) is None


def test_drafts_end_at_the_draft_models_length_and_at_the_last_token(models: Callable[[str], Path]) -> None:
    work: list[Request] = [([5, 6, 7, 8] * 5, SamplingParams(30, temperature=0.0))]
    settings = BASE | {"dtype": "float32"}
    with LocalEngine(models("llama"), **settings) as engine:
        plain = engine.run(work)
    with going_on(models("llama"), **(settings | drafting(models("llama"), max_model_len=37))) as engine:
        noted = Noted(engine)
        assert engine.run(work) == plain
    # The last draft is the token at 37, counted from 0: the draft model has computed 37 then.
    assert max(len(known) + len(drafts) for known, _, drafts in noted.drafts) == 38
    with going_on(models("llama"), **(settings | drafting(models("llama")))) as engine:
        noted = Noted(engine)
        assert engine.run(work) == plain
    # The token that ends the request needs no draft: it is drawn in any case.
    assert max(len(known) + len(drafts) for known, _, drafts in noted.drafts) == 49


def test_a_draft_model_takes_no_page_from_anybody(models: Callable[[str], Path]) -> None:
    """With pages for two requests to the last, the same are served at the same time."""
    settings = BASE | {
        "dtype": "float32",
        "max_model_len": 64,
        "num_blocks": 8,
        "max_num_partial_prefills": 2,
    }
    work: list[Request] = [([7, 8, 9] * 10, SamplingParams(34, temperature=0.0))] * 2
    with LocalEngine(models("llama"), **settings) as engine:
        plain = engine.run(work)
    with going_on(models("llama"), **(settings | drafting(models("llama")))) as engine:
        drafted = engine.run(work)
    assert drafted == plain
    assert [one.num_preemptions for one in drafted] == [0, 0]


def test_a_draft_follows_by_blocks_where_nothing_may_be_guessed(models: Callable[[str], Path]) -> None:
    """A pause costs it no step a token, and what it left in the pages serves the next request."""
    with going_on(models("llama"), **(BASE | {"dtype": "float32"} | drafting(models("llama")))) as engine:
        worker: Any = engine.worker
        engine.core.scheduler.limits = replace(engine.core.scheduler.limits, lookahead=0, num_drafts=0)
        model, steps = worker.proposer._model, []

        class Steps:
            def step(self, slots: Any, num_new: Any) -> Any:
                steps.append(num_new.tolist())
                return model.step(slots, num_new)

        worker.proposer._model = Steps()
        engine.run([([5, 6, 7] * 6, SamplingParams(40, temperature=0.0))])
    assert steps == [[16], [16], [16]]


@pytest.mark.parametrize("kind", ["quantized while loading", "gguf"])
def test_a_packed_form_of_the_target_guesses_for_it(
    models: Callable[[str], Path], tmp_path: Path, kind: str
) -> None:
    target = models("llama")
    if kind == "gguf":
        draft = drafting(to_gguf(target, tmp_path / "draft.gguf", "Q8_0"))
    else:
        draft = drafting(target, quantization="int8")
    work = requests()
    with LocalEngine(target, **BASE) as engine:
        plain = engine.run(work)
    with going_on(target, **(BASE | draft)) as engine:
        counted = Counted(engine)
        same(engine.run(work), plain)
    assert counted.accepted > 10
    assert counted.rejected > 10


@pytest.mark.slow
def test_draws_have_the_models_distribution(models: Callable[[str], Path]) -> None:
    """50,000 third tokens, with drafts that are often right, against the model's own probabilities."""
    allowed = (9, 30, 77, 120, 200, 305, 411, 500)
    params = SamplingParams(3, temperature=1.5, allowed_token_ids=allowed, num_logprobs=0)
    work = [([5, 6, 7], msgspec.structs.replace(params, seed=seed)) for seed in range(50_000)]
    settings = {"dtype": "float32", "max_model_len": 32, "max_num_seqs": 256, "num_blocks": 2000}
    settings |= {"max_num_batched_tokens": 2048} | drafting(models("llama"), quantization="int8")
    with going_on(models("llama"), **settings) as engine:
        counted = Counted(engine)
        third = [tuple(one.tokens) for one in engine.run(work)]
        prefixes = sorted({tokens[:2] for tokens in third})
        probability = {prefix: np.zeros(len(allowed)) for prefix in prefixes}
        for prefix in prefixes:
            asked = [
                SamplingParams(1, temperature=0.0, allowed_token_ids=(one,), num_logprobs=0)
                for one in allowed
            ]
            said = engine.run([([5, 6, 7, *prefix], one) for one in asked])
            logprobs = np.array([one.logprobs[0].logprob for one in said]) / 1.5
            probability[prefix] = np.exp(logprobs) / np.exp(logprobs).sum()
    assert counted.accepted > 10_000
    assert counted.rejected > 100
    expected = np.array([sum(probability[one[:2]][place] for one in third) for place in range(len(allowed))])
    observed = np.array([sum(one[2] == token for one in third) for token in allowed])
    assert ((observed - expected) ** 2 / expected).sum() < 24.3  # 7 degrees of freedom, one in a thousand


def planned(target: Path, draft: Path, **fields: Any) -> ModelPlan:
    number = {"num_drafts": fields.pop("num_drafts", NUM_DRAFTS)}
    settings = drafting(draft, **fields) | number
    config = EngineConfig(model=str(target), use_tqdm_on_load=False, **settings)  # type: ignore[arg-type]
    return with_draft(plan_model(open_checkpoint(config, quiet), config), config, quiet)


def quiet(phase: str, done: int, total: int) -> None:
    """No progress is shown."""


def test_a_draft_model_that_cannot_guess_for_the_target_is_refused(
    models: Callable[[str], Path],
) -> None:
    with pytest.raises(LoadError, match=r"knows 448 tokens, and .* has 512") as refused:
        planned(models("llama"), models("few words"))
    assert refused.value.argument == "speculative_config"
    with pytest.raises(LoadError, match=r"no num_speculative_tokens, the most that .* guesses ahead"):
        planned(models("llama"), models("llama"), num_drafts=0)
    with pytest.raises(LoadError, match="513 of the draft model is too long: it was made for 512"):
        planned(models("llama"), models("llama"), max_model_len=513)


@pytest.mark.torch
def test_what_transformers_runs_is_no_draft_model(
    models: Callable[[str], Path], tiny_models: Callable[[str], Path]
) -> None:
    with pytest.raises(LoadError, match="transformers' code"):
        planned(models("llama"), tiny_models("gpt2"))


def test_what_is_said_of_the_targets_files_does_not_concern_the_drafts(
    models: Callable[[str], Path], tmp_path: Path
) -> None:
    target = to_consolidated(models("mistral"), tmp_path / "target")
    settings = drafting(models("other qwen3")) | {"config_format": "mistral", "load_format": "mistral"}
    config = EngineConfig(model=str(target), use_tqdm_on_load=False, **settings)  # type: ignore[arg-type]
    plan = with_draft(plan_model(open_checkpoint(config, quiet), config), config, quiet)
    assert plan.draft is not None
    assert plan.draft.checkpoint.folder == models("other qwen3")


@pytest.mark.torch
def test_a_draft_model_guesses_for_what_transformers_runs(models: Callable[[str], Path]) -> None:
    work: list[Request] = [([5, 6, 7, 8] * 5, SamplingParams(30, temperature=0.0))]
    settings = BASE | {"dtype": "float32", "model_impl": "transformers"}
    with LocalEngine(models("llama"), **settings) as engine:
        plain = engine.run(work)
    with going_on(models("llama"), **(settings | drafting(models("llama")))) as engine:
        counted = Counted(engine)
        assert engine.run(work) == plain
    assert counted.accepted > 15


def test_weights_and_pages_of_the_draft_are_counted(models: Callable[[str], Path]) -> None:
    target, draft = models("llama"), models("other qwen3")
    plan = planned(target, draft)
    assert plan.draft is not None
    assert plan.stored_bytes == plan.checkpoint.total_bytes + plan.draft.checkpoint.total_bytes
    assert plan.draft.checkpoint.total_bytes > 0
    model: ModelPlan = plan.draft.model  # type: ignore[attr-defined]
    assert plan.kv.groups == model.kv.groups
    places = [*plan.kv.layer_place, *model.kv.layer_place]
    assert len(set(places)) == len(places) == 3 + 2
