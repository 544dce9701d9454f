"""Prompts that are embeddings, whole or in part, on a device: the answers are the CPU's, and a text's own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.torch import load_file

from device_runs import SMALL, assert_same, launches
from factory import model_folders
from judged import Judged
from local_engine import LocalEngine, Output
from made_adapter import Made
from prompt_folder import prompt_folder
from repeated_graphs import Repeated
from slipway.engine.config import DraftConfig
from slipway.engine.messages import NO_TOKEN, AdapterRef
from slipway.engine.params import SamplingParams
from slipway.worker.device.worker import DeviceWorker

Models = Callable[[str], Path]
CUDA: dict[str, object] = {"device": "cuda"}
GIVEN: dict[str, object] = {"enable_prompt_embeds": True, "enable_prefix_caching": False}
GREEDY = SamplingParams(4, temperature=0.0, num_logprobs=2)
DRAWN = SamplingParams(4, temperature=0.9, seed=3, num_logprobs=2, repetition_penalty=1.3)
PROMPTS = [list(range(20, 30)), list(range(40, 47)), [300] * 6, list(range(60, 78))]
AXES: dict[str, dict[str, object]] = {
    "whole": {"max_num_batched_tokens": 40},
    "chunks": {"max_num_batched_tokens": 5},
    "in turn": {"overlap": False},
    "preemption": {"num_blocks": 3, "max_model_len": 24, "max_num_batched_tokens": 40},
    "swap": {"num_blocks": 3, "max_model_len": 24, "max_num_batched_tokens": 40, "swap_bytes": 1 << 20},
    "a prefix cache": {"enable_prefix_caching": True},
    "drafts": {"num_drafts": 2, "prompt_lookup_min": 1, "prompt_lookup_max": 2},
}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Models:
    small: dict[str, Any] = {"num_hidden_layers": 1}
    gemma = {"num_hidden_layers": 2, "head_dim": 24, "sliding_window": 6}
    return model_folders(
        tmp_path_factory.mktemp("given"), {"llama": ("llama", small), "gemma2": ("gemma2", gemma)}
    )


def table_rows(model: Path, tokens: list[int]) -> bytes:
    table = load_file(model / "model.safetensors")["model.embed_tokens.weight"]
    return np.ascontiguousarray(table[tokens].float().numpy(), np.float32).tobytes()


def random_rows(count: int, seed: int) -> bytes:
    return (np.random.default_rng(seed).standard_normal((count, 64)) * 0.3).astype(np.float32).tobytes()


def add_rows(engine: LocalEngine, rows: bytes, params: SamplingParams, **fields: object) -> str:
    return engine.add([NO_TOKEN] * (len(rows) // 256), params, prompt_embeds=rows, **fields)


def answered(engine: LocalEngine, names: list[str]) -> list[Output]:
    engine.finish()
    return [engine.output(name) for name in names]


def texts(model: Path) -> list[Output]:
    with LocalEngine(model, **SMALL | {"enable_prefix_caching": False}) as engine:
        return [
            engine.run([(tokens, params)])[0]
            for tokens, params in zip(PROMPTS, [GREEDY, GREEDY, GREEDY, GREEDY], strict=True)
        ]


@pytest.mark.parametrize("axis", AXES)
def test_a_texts_own_embeddings_give_its_answer_beside_texts(models: Models, axis: str) -> None:
    model = models("llama")
    with LocalEngine(model, **SMALL | GIVEN | CUDA | AXES[axis]) as engine:
        names = [
            engine.add(tokens, GREEDY) if place == 0 else add_rows(engine, table_rows(model, tokens), GREEDY)
            for place, tokens in enumerate(PROMPTS)
        ]
        found = answered(engine, names)
        stats = list(engine.hub.stats)
    assert_same(found, texts(model))
    if axis in ("preemption", "swap"):
        assert sum(one.num_preemptions for one in found) > 0
        assert bool(max(one.num_swapped for one in stats)) == (axis == "swap")


def of_rows(model: Path, refs: list[AdapterRef | None], **settings: object) -> list[Output]:
    """What prompts of random rows give, and one of tokens."""
    with LocalEngine(model, **SMALL | GIVEN | settings) as engine:
        names = [
            add_rows(engine, random_rows(count, count), params, adapter=ref)
            for count, params, ref in zip((7, 3, 11), (GREEDY, DRAWN, GREEDY), refs, strict=True)
        ]
        return answered(engine, [*names, engine.add(PROMPTS[0], GREEDY)])


@pytest.mark.parametrize("name", ["llama", "gemma2"])
def test_rows_that_no_table_has_give_the_cpus_answers(models: Models, name: str) -> None:
    """Gemma scales what comes out of its table, and not what is given."""
    none = [None] * 3
    assert_same(of_rows(models(name), none, **CUDA), of_rows(models(name), none))


def test_an_adapter_of_the_embedding_adds_nothing_to_them(models: Models, tmp_path: Path) -> None:
    made = Made(models("llama"), tmp_path / "tuned")
    made.embedding()
    made.linear("model.layers.0.mlp.down_proj")
    refs, served = [made.save(), None, None], {"max_loras": 1, "max_lora_rank": 8}
    found, expected = (of_rows(models("llama"), refs, **served, **device) for device in (CUDA, {}))
    assert_same(found, expected)
    assert found[0].logprobs != of_rows(models("llama"), [None] * 3, **CUDA)[0].logprobs


def test_a_single_row_that_is_left_of_a_prompt_runs_in_no_graph(models: Models) -> None:
    """It looks like a decode: a prefix hit has found the others."""
    settings = SMALL | GIVEN | {"enable_prefix_caching": True}
    rows = random_rows(9, 1)
    outputs = []
    for device in (CUDA, {}):
        with LocalEngine(models("llama"), **settings | device) as engine:
            if device:
                assert isinstance(engine.worker, DeviceWorker)
                graphs = Repeated.into(engine.worker, [4], 64, eager=False)
            answered(engine, [add_rows(engine, rows, GREEDY)])
            outputs += answered(engine, [add_rows(engine, rows, GREEDY)])
            if device:
                assert outputs[0].num_cached_tokens == 8
                assert graphs.replayed == 2 * (GREEDY.max_tokens - 1)
    assert_same(outputs[:1], outputs[1:])


def test_a_draft_model_follows_only_prompts_that_have_tokens(models: Models) -> None:
    """One that guesses as the target does: its rows of what is given would be wrong."""
    model, params = models("llama"), SamplingParams(8, temperature=0.0)
    draft = {"draft": DraftConfig(method="draft_model", model=str(model)), "num_drafts": 2}
    accepted, rejected, found = [], [], []
    for place in range(3):  # texts alone, one of two, and none
        with LocalEngine(model, **SMALL | GIVEN | CUDA | draft | {"max_num_batched_tokens": 16}) as engine:
            engine.core.scheduler.guessing = None
            judged = Judged(engine)
            names = [
                add_rows(engine, table_rows(model, tokens), params)
                if number < place
                else engine.add(tokens, params)
                for number, tokens in enumerate(PROMPTS[:2])
            ]
            found.append([one.tokens for one in answered(engine, names)])
        accepted.append(judged.accepted)
        rejected.append(judged.rejected)
    assert found[0] == found[1] == found[2]
    assert accepted[0] > accepted[1] > accepted[2] == 0
    assert rejected == [0, 0, 0]


def test_a_slot_that_had_embeddings_takes_a_text_afterwards(models: Models) -> None:
    model = models("llama")
    with LocalEngine(model, **SMALL | GIVEN | CUDA | {"max_num_seqs": 1}) as engine:
        names = [add_rows(engine, random_rows(7, 2), GREEDY), engine.add(PROMPTS[0], GREEDY)]
        found = answered(engine, names)
    assert_same(found[1:], texts(model)[:1])


def test_who_is_aborted_in_its_prompt_leaves_no_rows_to_the_next(models: Models) -> None:
    model = models("llama")
    with LocalEngine(model, **SMALL | GIVEN | CUDA | {"max_num_seqs": 1}) as engine:
        left = add_rows(engine, random_rows(20, 2), GREEDY)
        engine.core.run_once()
        engine.abort(left)
        found = answered(engine, [engine.add(PROMPTS[0], GREEDY)])
    assert_same(found, texts(model)[:1])


@pytest.mark.parametrize("name", ["llama", "gemma2"])
def test_a_prompt_adapter_gives_the_cpus_answers_beside_none(
    models: Models, tmp_path: Path, name: str
) -> None:
    folders = [prompt_folder(tmp_path / str(tokens), tokens, seed=tokens) for tokens in (3, 10)]
    refs = [AdapterRef(1 + place, one.name, str(one), int(one.name)) for place, one in enumerate(folders)]
    params = [SamplingParams(3, temperature=0.0, num_logprobs=2, num_prompt_logprobs=0), DRAWN, GREEDY]
    served: dict[str, object] = {"max_prompt_adapters": 2, "max_prompt_adapter_token": 12}
    found = []
    for device in (CUDA, {}):
        with LocalEngine(models(name), **SMALL | served | device) as engine:
            asked = zip(PROMPTS, params, [*refs, None], strict=False)
            found.append(answered(engine, [engine.add(one, how, adapter=ref) for one, how, ref in asked]))
    assert_same(*found)
    told = [[one.logprob for one in outputs[0].prompt_logprobs if one] for outputs in found]
    assert len(told[0]) == len(PROMPTS[0]) - 1
    assert told[0] == pytest.approx(told[1], abs=1e-3)


def test_steps_without_given_rows_launch_what_an_engine_without_them_does(models: Models) -> None:
    lists, found = [], []
    for served in (GIVEN | {"max_prompt_adapters": 1, "max_prompt_adapter_token": 4}, GIVEN):
        settings = SMALL | CUDA | served | {"enable_prompt_embeds": len(lists) == 0}
        with LocalEngine(models("llama"), **settings) as engine:
            if not lists:
                answered(engine, [add_rows(engine, random_rows(7, 2), GREEDY)])
            with launches() as noted:
                found.append(engine.run([(PROMPTS[0], GREEDY), (PROMPTS[1], DRAWN)]))
            lists.append(noted)
    assert lists[0] == lists[1]
    assert_same(*found)
