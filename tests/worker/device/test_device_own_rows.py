"""Adapters with tokens, rows or a rotation of their own, on a device: as on a CPU, and nobody else's."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from test_device_ngrams import Halves

from adapter_runs import ref as named
from device_runs import SMALL, assert_near, assert_same, launches
from factory import make_model, model_folders
from local_engine import LocalEngine, Output
from made_adapter import PREFIX
from repeated_graphs import Repeated
from resized_adapters import Resized, new_embeddings, stretched, vocab_of, whole
from slipway.engine.grammar import Grammars
from slipway.engine.messages import AdapterRef
from slipway.engine.params import Processor, SamplingParams
from slipway.worker.device.low_rank import LowRank
from slipway.worker.device.own_places import OwnPlaces
from slipway.worker.device.worker import DeviceWorker

Models = Callable[[str], Path]
Asked = list[tuple[list[int], AdapterRef | None]]
GREEDY = SamplingParams(3, temperature=0.0, num_logprobs=3)
SERVED: dict[str, object] = {"max_loras": 2, "max_lora_rank": 4, "lora_extra_vocab_size": 8}
CUDA: dict[str, object] = {"device": "cuda"}
TRAINED = 20
LONG: dict[str, object] = {"max_loras": 2, "max_model_len": 44, "long_lora_scaling_factors": [2.0, 3.0]}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Models:
    one: dict[str, Any] = {"num_hidden_layers": 1}
    capped = {"num_hidden_layers": 2, "head_dim": 24, "sliding_window": 6}
    sizes = {"llama": ("llama", one), "gemma2": ("gemma2", capped)}
    return model_folders(tmp_path_factory.mktemp("own"), sizes)


def run(engine: LocalEngine, asked: Asked, params: SamplingParams = GREEDY) -> list[Output]:
    names = [engine.add(tokens, params, adapter=ref) for tokens, ref in asked]
    engine.finish()
    return [engine.output(name) for name in names]


def outputs(model: Path, asked: Asked, params: SamplingParams = GREEDY, **settings: object) -> list[Output]:
    with LocalEngine(model, **SMALL | SERVED | settings) as engine:
        return run(engine, asked, params)


def replaced(model: Path, folder: Path, count: int) -> AdapterRef:
    """Other rows than the model's for so many tokens of its vocabulary, and no factors."""
    made = Resized(model, folder)
    for name, matrix in made.resize(0, changed=tuple(range(5, 5 + count))).items():
        made.tensors[f"{PREFIX}{name}"] = matrix
    return made.save()


def low_rank_of(engine: LocalEngine) -> LowRank:
    assert isinstance(engine.worker, DeviceWorker)
    low_rank = engine.worker._decoder.low_rank
    assert low_rank is not None
    return low_rank


@pytest.mark.parametrize("name", ["llama", "gemma2"])
def test_a_batch_with_added_and_replaced_rows_and_without_is_the_cpus(
    models: Models, tmp_path: Path, name: str
) -> None:
    """Of a scaled embedding and of a capped head, too."""
    model = models(name)
    vocab = vocab_of(model)
    both, _ = whole(model, tmp_path / "both", changed=(3, 42))
    added, _ = new_embeddings(model, tmp_path / "added", head=name == "llama")
    asked: Asked = [
        ([vocab, 3, 9, vocab + 4], both),
        ([7, vocab + 1, 42], added),
        ([3, 42, 8], None),
    ]
    found, expected = (outputs(model, asked, **device) for device in (CUDA, {}))
    assert_same(found, expected)
    assert any(token >= vocab for one in found[:2] for token in one.tokens)
    (bare,) = outputs(model, asked[2:], lora_extra_vocab_size=0, **CUDA)
    assert (found[2].tokens, found[2].finish_reason) == (bare.tokens, bare.finish_reason)
    with LocalEngine(model, **SMALL | SERVED | CUDA) as engine:
        alone = [run(engine, [one])[0] for one in asked]
    assert_same(alone, found)


@pytest.mark.parametrize("num_drafts", [0, 3])
def test_edits_filters_reports_and_drafts_know_added_tokens(
    models: Models, tmp_path: Path, num_drafts: int
) -> None:
    model = models("llama")
    vocab = vocab_of(model)
    both, _ = whole(model, tmp_path / "both", changed=(3,))
    params = SamplingParams(
        6,
        temperature=0.0 if num_drafts else 1.0,
        seed=3,
        top_p=0.9,
        min_p=0.01,
        num_logprobs=2,
        num_prompt_logprobs=0,
        presence_penalty=0.5,
        repetition_penalty=1.1,
    )
    edits = {"bad_words": ((vocab + 3,),), "logit_bias": ((vocab + 2, 9.0), (vocab, -2.0))}
    ran: list[list[Output]] = []
    for device in (CUDA, {}):
        with LocalEngine(model, **SMALL | SERVED | device | {"num_drafts": num_drafts}) as engine:
            own = msgspec.structs.replace(params, **edits)
            names = [engine.add([vocab, 5, vocab + 1, 9] * 3, own, adapter=both)]
            names.append(engine.add([9, 4, 9, 4, 9], params))
            engine.finish()
            ran.append([engine.output(name) for name in names])
    found, expected = ran
    assert_same(found, expected)
    for one, other in zip(found, expected, strict=True):
        known, wanted = ([each.logprob for each in output.prompt_logprobs if each] for output in (one, other))
        assert known == pytest.approx(wanted, abs=1e-3)
    assert any(token >= vocab for token in found[0].tokens)
    assert all(token < vocab for token in found[1].tokens)


def test_masks_and_processors_of_others_are_of_the_models_tokens(models: Models, tmp_path: Path) -> None:
    """In steps whose rows of logits are wider."""
    model = models("llama")
    vocab = vocab_of(model)
    both, _ = whole(model, tmp_path / "both", changed=(3,))
    processed = msgspec.structs.replace(GREEDY, processors=(Processor("row_processors.counting", ""),))
    ran: list[list[Output]] = []
    for device in (CUDA, {}):
        with LocalEngine(model, **SMALL | SERVED | device | {"processors": True}) as engine:
            engine.core.grammars = Grammars(lambda message: Halves())
            names = [
                engine.add([vocab, 5], GREEDY, adapter=both),
                engine.add([9, 4], GREEDY, grammar="halves"),
                engine.add([9, 4], processed),
                engine.add([9, 4], GREEDY),
            ]
            engine.finish()
            ran.append([engine.output(name) for name in names])
    assert_same(*ran)
    found, _ = ran
    assert found[2].tokens == [2, 4, 6]
    assert found[1].tokens != found[3].tokens
    assert any(token >= vocab for token in found[0].tokens)


def test_an_added_token_without_a_row_of_the_head_is_never_drawn(models: Models, tmp_path: Path) -> None:
    model = models("llama")
    vocab = vocab_of(model)
    added, _ = new_embeddings(model, tmp_path / "added", head=False)
    params = SamplingParams(2, temperature=0.0, logit_bias=((vocab, 100.0), (vocab + 1, 100.0)))
    found, expected = (outputs(model, [([vocab, 8], added)], params, **device) for device in (CUDA, {}))
    assert [one.tokens for one in found] == [one.tokens for one in expected]
    assert all(token < vocab for token in found[0].tokens)


def test_places_grow_and_are_taken_over_and_graphs_follow(models: Models, tmp_path: Path) -> None:
    """More rows than there is room for, after what has fewer, and others and none after it."""
    model = models("llama")
    vocab = vocab_of(model)
    few, _ = whole(model, tmp_path / "few")
    many = replaced(model, tmp_path / "many", 20)
    plain = Resized(model, tmp_path / "plain")
    plain.linear("model.layers.0.self_attn.v_proj")
    none = plain.save()
    rounds: list[Asked] = [
        [([vocab], few)],
        [([6], many)],
        [([6], none)],
        [([vocab + 1], few), ([6], none)],
        [([6], None)],
    ]
    settings = SMALL | SERVED | {"max_cpu_loras": 2}
    with LocalEngine(model, **settings) as engine:
        expected = [run(engine, asked) for asked in rounds]
    with LocalEngine(model, **settings | CUDA) as engine:
        worker = engine.worker
        assert isinstance(worker, DeviceWorker)
        graphs = Repeated.into(worker, [2], 64)
        for asked, same in zip(rounds, expected, strict=True):
            assert_same(run(engine, asked), same)
            while worker.idle():
                pass
        assert low_rank_of(engine).own.rows == 32
        assert {key.own_rows for key in graphs.decodes} == {0, 16, 32}
        graphs.replayed = 0
        for asked, same in zip(rounds, expected, strict=True):
            assert_same(run(engine, asked), same)
        assert graphs.replayed >= 2 * len(rounds)


def test_a_batch_without_such_adapters_launches_what_an_engine_without_them_does(
    models: Models, tmp_path: Path
) -> None:
    model = models("llama")
    ref, _ = whole(model, tmp_path / "adapter")
    lists = []
    for served in (SERVED | {"long_lora_scaling_factors": [2.0]}, {}):
        with LocalEngine(model, **SMALL | CUDA | served) as engine:
            if served:
                with launches() as noted:
                    run(engine, [([4], ref)])
                assert noted.count("own_embedding_kernel") == noted.count("own_logits_kernel") == 3
            with launches() as noted:
                run(engine, [([4, 5], None)])
            lists.append(noted)
    assert lists[0] == lists[1]


@pytest.mark.parametrize("level", ["1", "2"])
def test_it_wakes_to_the_same_answers(models: Models, tmp_path: Path, level: str) -> None:
    model = models("llama")
    vocab = vocab_of(model)
    ref, _ = whole(model, tmp_path / "adapter", changed=(3,))
    asked: Asked = [([vocab, 3], ref), ([3], None)]
    with LocalEngine(model, **SMALL | SERVED | CUDA) as engine:
        before = run(engine, asked)
        assert engine.call("sleep", level) == "ok"
        assert engine.call("wake_up", "weights", "kv_cache") == "ok"
        assert_same(run(engine, asked), before)


def test_of_a_quantized_head_all_rows_are_the_adapters(models: Models, tmp_path: Path) -> None:
    """As none of them has the model's numbers; beside it others multiply what is quantized."""
    model = models("llama")
    ref = replaced(model, tmp_path / "adapter", 3)
    settings = {"quantization": "int8", "dtype": "bfloat16"}
    asked: Asked = [([6, 7], ref), ([6, 7], None)]
    with LocalEngine(model, **SMALL | SERVED | settings | CUDA) as engine:
        found = run(engine, asked)
    for one, other in zip(found, outputs(model, asked, **settings), strict=True):
        assert_near(one, other, 0.25, shared=2)


def test_rows_that_the_device_has_no_room_for_are_refused_with_the_size(
    models: Models, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = models("llama")
    ref, _ = whole(model, tmp_path / "adapter")

    def full(self: OwnPlaces, rows: int) -> None:
        raise torch.OutOfMemoryError

    monkeypatch.setattr(OwnPlaces, "reserve", full)
    with LocalEngine(model, **SMALL | SERVED | CUDA) as engine:
        names = [engine.add([4], GREEDY, adapter=one) for one in (ref, None)]
        engine.finish()
        (delta,) = engine.hub.deltas[names[0]]
        assert delta.error is not None
        assert (
            "The adapter adapter has rows of its own for 5 tokens, and the device has no room for 2 places"
            in delta.error
        )
        assert engine.output(names[1]).finish_reason == "length"


@pytest.mark.parametrize("graphs", [False, True])
def test_an_adapter_stretches_the_context_as_on_a_cpu(tmp_path: Path, graphs: bool) -> None:
    base = make_model("llama", tmp_path / "model", max_position_embeddings=TRAINED, num_hidden_layers=1)
    two, _ = stretched(base, tmp_path / "two", 2.0, 2 * TRAINED)
    three, _ = stretched(base, tmp_path / "three", 3.0, 2 * TRAINED + 4)
    near, _ = stretched(base, tmp_path / "near", 1.0, TRAINED)
    long, short = list(range(20, 46)), list(range(30, 36))
    asked: Asked = [(long, named(two)), (long, named(three)), (short, named(near)), (short, None)]
    settings = SMALL | LONG | {"max_lora_rank": 8, "max_loras": 3}
    with LocalEngine(base, **settings) as engine:
        expected = run(engine, asked)
    with LocalEngine(base, **settings | CUDA) as engine:
        if graphs:
            assert isinstance(engine.worker, DeviceWorker)
            repeated = Repeated.into(engine.worker, [4], 64)
            run(engine, asked)
            while engine.worker.idle():
                pass
        assert_same(run(engine, asked), expected)
        if graphs:
            assert repeated.replayed
    assert expected[0].logprobs[0].logprob != expected[1].logprobs[0].logprob
