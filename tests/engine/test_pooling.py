"""Requests that pool: what transformers' rows give, to the bit the same however they are computed."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from factory import make_model, model_folders
from gguf_convert import to_gguf
from local_engine import LocalEngine
from slipway.engine.params import PoolingParams, SamplingParams
from slipway.engine.replay import read_record, replay
from slipway.engine.start import Start
from slipway.load.errors import LoadError
from slipway.model.pooling import no_tokenizer, pooling_of

BASE: dict[str, Any] = {
    "task": "embed",
    "dtype": "float32",
    "enable_prefix_caching": False,
    "max_num_batched_tokens": 4096,
    "max_model_len": 256,
    "num_blocks": 400,
}
AXES: dict[str, dict[str, Any]] = {
    "chunks of 1": {"max_num_batched_tokens": 1},
    "chunks of 7": {"max_num_batched_tokens": 7},
    "blocks of 8": {"block_size": 8, "num_blocks": 800},
    "prefix cache": {"enable_prefix_caching": True},
    "few pages": {  # of which prompts take a chunk each, side by side
        "num_blocks": 16,
        "max_num_batched_tokens": 64,
        "long_prefill_token_threshold": 8,
        "max_num_partial_prefills": 8,
        "max_long_partial_prefills": 8,
    },
    "overlap": {"overlap": True, "max_num_batched_tokens": 24},
    "two threads": {"threads": 2},
    "three threads": {"threads": 3},
    "whole prompts": {"enable_chunked_prefill": False},
}
TYPES = ("LAST", "MEAN", "CLS", "ALL", "STEP")
STEP_TAG = 7


def prompts(count: int = 8) -> list[list[int]]:
    """Ragged, some with a common beginning; each has the token of STEP."""
    rng = random.Random(5)
    common = [rng.randrange(9, 500) for _ in range(40)]
    made = []
    for i in range(count):
        own = [rng.randrange(9, 500) for _ in range(rng.randint(1, 60))] + [STEP_TAG, 11]
        made.append(common + own if i % 3 == 0 else own)
    return made


PROMPTS = prompts()
HEADS: dict[str, Any] = {"qwen3": {"head_dim": 24}, "gemma2": {"head_dim": 24, "query_pre_attn_scalar": 20}}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    kinds = {name: (name, HEADS.get(name, {})) for name in ("llama", "qwen3", "gemma2", "mixtral")}
    return model_folders(tmp_path_factory.mktemp("pooled"), kinds)


def engine(model: Path, **settings: Any) -> LocalEngine:
    return LocalEngine(model, **(BASE | settings))


def pooler(kind: str, **others: Any) -> dict[str, Any]:
    return {"pooling_type": kind} | ({"step_tag_id": STEP_TAG} if kind == "STEP" else {}) | others


def rows_of(model: Path, prompt: list[int]) -> torch.Tensor:
    """[tokens, hidden]  final rows by transformers"""
    reference = transformers.AutoModel.from_pretrained(model, dtype=torch.float32)
    with torch.no_grad():
        rows: torch.Tensor = reference(torch.tensor([prompt])).last_hidden_state[0]
    return rows


def expected(kind: str, rows: torch.Tensor, prompt: list[int]) -> torch.Tensor:
    wanted = {
        "LAST": rows[-1:],
        "MEAN": rows.mean(0, keepdim=True),
        "CLS": rows[:1],
        "ALL": rows,
        "STEP": rows[torch.tensor(prompt) == STEP_TAG],
    }
    return wanted[kind]


@pytest.mark.parametrize("architecture", ["llama", "qwen3", "gemma2", "mixtral"])
@pytest.mark.parametrize("kind", TYPES)
def test_vectors_are_those_of_transformers(
    models: Callable[[str], Path], architecture: str, kind: str
) -> None:
    model = models(architecture)
    with engine(model, override_pooler_config=pooler(kind)) as pooling:
        found = pooling.pool(PROMPTS[:3])
        raw = pooling.pool(PROMPTS[:3], PoolingParams(activate=False))
        cut = pooling.pool(PROMPTS[:3], PoolingParams(dimensions=20))
    for prompt, *vectors in zip(PROMPTS, raw, found, cut, strict=False):
        plain = expected(kind, rows_of(model, prompt), prompt)
        normed = torch.nn.functional.normalize(plain)
        shorter = torch.nn.functional.normalize(plain[:, :20])
        for vector, wanted in zip(vectors, (plain, normed, shorter), strict=True):
            torch.testing.assert_close(torch.from_numpy(vector.copy()), wanted, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("dtype", ["float32", pytest.param("bfloat16", marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", TYPES)
def test_no_bit_depends_on_how_a_prompt_is_computed(
    tiny_models: Callable[[str], Path], kind: str, dtype: str
) -> None:
    settings = {"override_pooler_config": pooler(kind), "dtype": dtype}
    with engine(tiny_models("llama"), **settings) as alone:
        wanted = [alone.pool([prompt])[0] for prompt in PROMPTS]
    for name, axis in AXES.items():
        with engine(tiny_models("llama"), **settings, **axis) as together:
            for _ in range(2):  # the second time the prefix cache is warm
                found = together.pool(PROMPTS)
                assert all(map(np.array_equal, found, wanted)), name
            assert together.preemptions == 0


def test_only_the_last_row_may_lie_behind_a_prefix_hit(tiny_models: Callable[[str], Path]) -> None:
    for kind, spares in (("LAST", True), ("MEAN", False), ("ALL", False)):
        settings = {"override_pooler_config": pooler(kind), "enable_prefix_caching": True}
        with engine(tiny_models("llama"), **settings) as pooling:
            pooling.pool(PROMPTS[:1])
            pooling.pool(PROMPTS[:1])
            assert (pooling.last.num_cached_tokens > 0) == spares, kind


def test_a_recorded_run_replays_to_the_bit(tiny_models: Callable[[str], Path], tmp_path: Path) -> None:
    record = tmp_path / "run.record"
    axis = AXES["few pages"] | {"override_pooler_config": pooler("MEAN"), "record": str(record)}
    with engine(tiny_models("llama"), **axis) as pooling:
        pooling.pool(PROMPTS)
    config, steps = read_record(record)
    assert len(steps) > 10
    assert replay(Start.of(config).worker, steps) is None


def test_a_pooling_program_has_no_head_and_a_generating_one_no_rows(
    tiny_models: Callable[[str], Path],
) -> None:
    for task, has, lacks in (("embed", "hidden", "head"), ("generate", "head", "hidden")):
        with engine(tiny_models("llama"), task=task) as started:
            names = [name for name, _ in started.worker._model.measure()]  # type: ignore[attr-defined]
        assert has in names
        assert lacks not in names


def test_requests_of_the_other_kind_fail_alone(tiny_models: Callable[[str], Path]) -> None:
    with engine(tiny_models("llama")) as pooling:
        name = pooling.add([5, 6], SamplingParams(4))
        pooling.finish()
        (delta,) = pooling.hub.deltas.pop(name)
        assert "pools, and does nothing else" in delta.error
        assert len(pooling.pool([[5, 6]])) == 1
    with engine(tiny_models("llama"), task="generate") as generating:
        name = generating.add([5, 6], SamplingParams(4), pooling=PoolingParams())
        generating.finish()
        assert "generates, and does nothing else" in generating.hub.deltas.pop(name)[0].error


def test_rows_that_are_no_numbers_fail_their_request_alone(
    tiny_models: Callable[[str], Path], tmp_path: Path
) -> None:
    folder = make_model("llama", tmp_path / "model", tie_word_embeddings=False)
    weights = load_file(folder / "model.safetensors")
    weights["model.embed_tokens.weight"][9] = torch.nan
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    with engine(folder) as pooling:
        names = [
            pooling.add(prompt, SamplingParams(1), pooling=PoolingParams()) for prompt in ([5, 9], [5, 6])
        ]
        pooling.finish()
        (failed,) = pooling.hub.deltas.pop(names[0])
        assert failed.finish_reason == "error"
        assert "no numbers" in failed.error
        assert np.isfinite(pooling.pooled(names[1])).all()


@pytest.mark.parametrize("labels", [1, 3])
def test_a_sequence_classifier_gives_the_scores_of_transformers(tmp_path: Path, labels: int) -> None:
    names = {i: f"class {i}" for i in range(labels)}
    folder = make_model(
        "llama", tmp_path / "model", head="ForSequenceClassification", num_labels=labels, id2label=names
    )
    reference = transformers.AutoModelForSequenceClassification.from_pretrained(folder, dtype=torch.float32)
    with engine(folder, task="auto") as pooling:
        offer = pooling.start.ready().pools
        assert offer is not None
        assert (offer.task, offer.dimensions, offer.labels) == ("classify", labels, list(names.values()))
        found = pooling.pool(PROMPTS)
        raw = pooling.pool(PROMPTS, PoolingParams(activate=False))
    with engine(folder, task="auto", override_pooler_config={"softmax": True}) as pooling:
        assert all(map(np.array_equal, pooling.pool(PROMPTS), found))  # of one score it is the sigmoid
    for prompt, *scores in zip(PROMPTS, found, raw, strict=True):
        with torch.inference_mode():
            logits = reference(torch.tensor([prompt])).logits
        activated = logits.sigmoid() if labels == 1 else logits.softmax(-1)
        for score, wanted in zip(scores, (activated, logits), strict=True):
            torch.testing.assert_close(torch.from_numpy(score.copy()), wanted, atol=1e-4, rtol=1e-4)


def test_scores_that_are_kept_keep_their_labels(tmp_path: Path) -> None:
    names = {0: "a", 1: "b", 2: "c"}
    folder = make_model("llama", tmp_path, head="ForSequenceClassification", num_labels=3, id2label=names)
    kept = {"override_pooler_config": {"returned_token_ids": [2, 1]}}
    with engine(folder, task="classify", **kept) as pooling:
        offer = pooling.start.ready().pools
        found = pooling.pool(PROMPTS[:1], PoolingParams(activate=False))[0]
    with engine(folder, task="classify") as pooling:
        whole = pooling.pool(PROMPTS[:1], PoolingParams(activate=False))[0]
    assert offer is not None
    assert (offer.dimensions, offer.labels) == (2, ["c", "b"])
    assert np.array_equal(found, whole[:, [2, 1]])


def test_scores_are_logits_of_tokens_where_those_are_named(models: Callable[[str], Path]) -> None:
    """As rerankers are that say yes or no."""
    for architecture in ("qwen3", "gemma2"):  # with a head of its own, and a tied one
        model = models(architecture)
        overrides = {"classifier_from_token": ["n", "y"], "method": "from_2_way_softmax"}
        with engine(model, task="score", hf_overrides=overrides) as pooling:
            found = pooling.pool(PROMPTS)
        reference = transformers.AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
        tokenizer = transformers.AutoTokenizer.from_pretrained(model)
        ids = tokenizer.convert_tokens_to_ids(["n", "y"])
        for prompt, score in zip(PROMPTS, found, strict=True):
            with torch.inference_mode():
                rows = reference.model(torch.tensor([prompt])).last_hidden_state[0, -1]
                wanted = (reference.lm_head(rows)[ids]).softmax(-1)[1:]
            torch.testing.assert_close(torch.from_numpy(score[0].copy()), wanted, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(("head", "labels"), [("ForRewardModel", 1), ("ForProcessRewardModel", 2)])
def test_reward_models_score_tokens_by_two_layers(tmp_path: Path, head: str, labels: int) -> None:
    folder = make_model("qwen2", tmp_path / "model", tie_word_embeddings=False)
    weights = load_file(folder / "model.safetensors")
    del weights["lm_head.weight"]
    layers = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, labels))
    weights |= {f"score.{name}": value.detach() for name, value in layers.state_dict().items()}
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    settings = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(settings | {"architectures": [f"Qwen2{head}"]}))
    steps = {"override_pooler_config": {"step_tag_id": STEP_TAG}} if labels == 2 else {}
    with engine(folder, task="auto", **steps) as pooling:
        found = pooling.pool(PROMPTS)
    with engine(folder, task="reward", **steps, **AXES["chunks of 7"]) as chunked:
        assert all(map(np.array_equal, chunked.pool(PROMPTS), found))
    body = make_model("qwen2", tmp_path / "body", tie_word_embeddings=False)
    for prompt, scores in zip(PROMPTS, found, strict=True):
        logits = layers(rows_of(body, prompt)).detach()
        if labels == 2:
            logits = logits.softmax(-1)[torch.tensor(prompt) == STEP_TAG]
        torch.testing.assert_close(torch.from_numpy(scores.copy()), logits, atol=1e-4, rtol=1e-4)


def test_a_gguf_file_says_how_it_is_pooled(tmp_path: Path) -> None:
    folder = make_model("llama", tmp_path / "model", pooled_as="MEAN")
    with engine(to_gguf(folder, tmp_path / "model.gguf"), task="auto") as pooling:
        found = pooling.pool(PROMPTS[:2])
    for prompt, vector in zip(PROMPTS, found, strict=False):
        wanted = torch.nn.functional.normalize(rows_of(folder, prompt).mean(0), dim=0)
        torch.testing.assert_close(torch.from_numpy(vector[0].copy()), wanted, atol=1e-4, rtol=1e-4)


def test_auto_takes_what_the_class_is_for() -> None:
    found = {
        "LlamaForCausalLM": None,
        "GPT2LMHeadModel": None,
        "SomeForConditionalGeneration": None,
        "MistralModel": "embed",
        "LlamaForSequenceClassification": "classify",
        "Qwen2ForRewardModel": "reward",
    }
    for architecture, task in found.items():
        config = {"architectures": [architecture], "hidden_size": 8}
        pooling = pooling_of(config, None, "auto", {}, no_tokenizer)
        assert (pooling and pooling.task) == task, architecture


def test_speculation_is_told_to_have_no_effect(tiny_models: Callable[[str], Path]) -> None:
    with engine(tiny_models("llama"), num_drafts=3) as pooling:
        assert any("Speculation has no effect" in warning for warning in pooling.start.warnings)
        assert len(pooling.pool(PROMPTS[:1])) == 1


def refusal(model: Path, **settings: Any) -> str:
    with pytest.raises(LoadError) as refused:
        engine(model, **settings)
    return str(refused.value)


def test_what_a_model_cannot_do_is_refused_at_load(
    tiny_models: Callable[[str], Path], tmp_path: Path
) -> None:
    llama = tiny_models("llama")
    assert "has no layer that scores" in refusal(llama, task="classify")
    assert "pooling_type MAX is none of" in refusal(llama, override_pooler_config={"pooling_type": "MAX"})
    assert "softmax has no meaning for --task embed" in refusal(
        llama, override_pooler_config={"softmax": False}
    )
    assert "only for pooling_type STEP" in refusal(llama, override_pooler_config={"step_tag_id": 3})
    beyond = {"override_pooler_config": {"returned_token_ids": [512]}}
    assert "not all tokens" in refusal(llama, task="reward", **beyond)
    assert "computed by our own code, not with" in refusal(llama, model_impl="transformers")
    classifier = make_model("llama", tmp_path / "classes", head="ForSequenceClassification")
    assert "It can classify" in refusal(classifier, task="generate")
    assert "must be an object of labels by number" in refusal(
        classifier, task="classify", hf_overrides={"id2label": {"good": "0", "bad": "1"}}
    )
    assert "no tokens here" in refusal(
        llama, task="score", hf_overrides={"classifier_from_token": ["no such token"]}
    )
