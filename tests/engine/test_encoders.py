"""Encoders in the engine: what transformers gives, to the bit the same in any company."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from encoder_models import make_encoder, reference_rows, text
from local_engine import LocalEngine
from slipway.engine.params import PoolingParams, SamplingParams
from slipway.engine.replay import read_record, replay
from slipway.engine.start import Start
from slipway.load.errors import LoadError

BASE: dict[str, Any] = {"dtype": "float32", "max_model_len": 128}
LENGTHS = (1, 2, 90, 128, 17, 33, 64, 5, 128, 16, 15, 71)
PROMPTS = [text(length, seed) for seed, length in enumerate(LENGTHS)]
AXES: dict[str, dict[str, Any]] = {
    "one at a time": {"max_num_seqs": 1},
    "small steps": {"max_num_batched_tokens": 128},
    "one step": {"max_num_batched_tokens": 4096},
    "what decoders have": {"enable_chunked_prefill": True, "enable_prefix_caching": True, "num_blocks": 4},
    "overlap": {"overlap": True},
    "two threads": {"threads": 2},
    "three threads": {"threads": 3},
}


def engine(model: Path, **settings: Any) -> LocalEngine:
    return LocalEngine(model, **(BASE | settings))


def close(found: Any, wanted: torch.Tensor) -> None:
    torch.testing.assert_close(torch.from_numpy(found.copy()), wanted, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("head", ["", "MaskedLM"])
@pytest.mark.parametrize("variant", ["bert", "xlm_roberta", "modernbert", "nomic_bert", "gte"])
def test_unasked_an_encoder_embeds_by_its_first_row(tmp_path: Path, variant: str, head: str) -> None:
    folder = make_encoder(variant, tmp_path, head)
    with engine(folder) as embedding:
        pools = embedding.start.ready().pools
        assert pools is not None
        assert (pools.task, pools.dimensions) == ("embed", 64)
        found = embedding.pool(PROMPTS[1:4])
    for prompt, vector in zip(PROMPTS[1:4], found, strict=True):
        close(vector, torch.nn.functional.normalize(reference_rows(folder, prompt)[:1]))


@pytest.mark.parametrize("kind", ["CLS", "MEAN", "LAST", "ALL"])
def test_another_pooling_may_be_asked_for(tmp_path: Path, kind: str) -> None:
    folder = make_encoder("bert", tmp_path)
    asked = {"pooling_type": kind, "normalize": False}
    with engine(folder, override_pooler_config=asked) as embedding:
        (found,) = embedding.pool(PROMPTS[2:3])
    rows = reference_rows(folder, PROMPTS[2])
    wanted = {"CLS": rows[:1], "MEAN": rows.mean(0, keepdim=True), "LAST": rows[-1:], "ALL": rows}
    close(found, wanted[kind])


def test_rewards_are_its_rows(tmp_path: Path) -> None:
    folder = make_encoder("bert", tmp_path)
    with engine(folder, task="reward") as rewarding:
        (found,) = rewarding.pool(PROMPTS[2:3])
    close(found, reference_rows(folder, PROMPTS[2]))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("variant", ["bert", pytest.param("modernbert", marks=pytest.mark.slow)])
def test_no_bit_depends_on_company(tmp_path: Path, variant: str, dtype: str) -> None:
    settings = {"dtype": dtype, "override_pooler_config": {"pooling_type": "MEAN"}}
    folder = make_encoder(variant, tmp_path)
    with engine(folder, **settings) as alone:
        wanted = [alone.pool([prompt])[0] for prompt in PROMPTS]
    for name, axis in AXES.items():
        with engine(folder, **settings, **axis) as together:
            found = together.pool(PROMPTS)
        assert all(map(np.array_equal, found, wanted)), name


def test_prompts_are_answered_in_their_order_though_none_is_cut(tmp_path: Path) -> None:
    """The oldest never waits for younger ones that would fill a step better."""
    with engine(make_encoder("bert", tmp_path), max_num_batched_tokens=128) as embedding:
        names = [embedding.add(prompt, SamplingParams(1), pooling=PoolingParams()) for prompt in PROMPTS]
        embedding.finish()
        assert [*embedding.hub.deltas] == names
        steps = [count for stats in embedding.hub.stats for count in stats.num_step_tokens]
    assert sum(steps) == sum(LENGTHS)
    assert max(steps) <= 128


@pytest.mark.parametrize("labels", [1, 3])
@pytest.mark.parametrize("variant", ["bert", "roberta", "modernbert"])
@torch.inference_mode()
def test_pairs_are_scored_as_transformers_does(tmp_path: Path, variant: str, labels: int) -> None:
    from transformers import AutoModelForSequenceClassification

    folder = make_encoder(variant, tmp_path, "SequenceClassification", num_labels=labels)
    reference = AutoModelForSequenceClassification.from_pretrained(folder, attn_implementation="eager").eval()
    pairs = [(prompt, length // 3) for prompt, length in zip(PROMPTS, LENGTHS, strict=True)]
    typed = variant == "bert"
    with engine(folder) as scoring:
        pools = scoring.start.ready().pools
        assert pools is not None
        assert (pools.task, pools.dimensions) == ("classify", labels)
        names = [
            scoring.add(prompt, SamplingParams(1), pooling=PoolingParams(type_from=start))
            for prompt, start in pairs
        ]
        scoring.finish()
        found = [scoring.pooled(name) for name in names]
        plain = scoring.pool(PROMPTS)
        raw = scoring.pool(PROMPTS[:1], PoolingParams(activate=False))
    for (prompt, start), score, untyped in zip(pairs, found, plain, strict=True):
        types = {"token_type_ids": torch.tensor([[int(i >= start) for i in range(len(prompt))]])}
        logits = reference(torch.tensor([prompt]), **(types if typed else {})).logits
        close(score, logits.sigmoid() if labels == 1 else logits.softmax(-1))
        if not typed:  # there is one type
            assert np.array_equal(score, untyped)
    close(raw[0], reference(torch.tensor(PROMPTS[:1])).logits)
    assert typed != all(map(np.array_equal, found, plain))


ACTIVATIONS = {
    "regression": ({"problem_type": "regression"}, lambda x: x),
    "before": ({"sbert_ce_default_activation_function": "torch.nn.modules.linear.Identity"}, lambda x: x),
    "now": ({"sentence_transformers": {"activation_fn": "torch.nn.modules.activation.Tanh"}}, torch.tanh),
}


def test_a_file_beside_may_say_what_a_score_goes_through_and_overrides_go_first(tmp_path: Path) -> None:
    """As newer releases of sentence-transformers write it."""
    folder = make_encoder("bert", tmp_path, "SequenceClassification", num_labels=1)
    with engine(folder) as scoring:
        (raw,) = scoring.pool(PROMPTS[2:3], PoolingParams(activate=False))
        (usual,) = scoring.pool(PROMPTS[2:3])
    file = folder / "config_sentence_transformers.json"
    file.write_text('{"activation_fn": "torch.nn.modules.linear.Identity"}')
    sigmoid = {"sentence_transformers": {"activation_fn": "torch.nn.Sigmoid"}}
    for overrides, wanted in (({}, raw), (sigmoid, usual)):
        with engine(folder, hf_overrides=overrides) as scoring:
            assert np.array_equal(scoring.pool(PROMPTS[2:3])[0], wanted)
    assert not np.array_equal(raw, usual)


@pytest.mark.parametrize("case", ACTIVATIONS)
@torch.inference_mode()
def test_a_score_goes_through_what_the_files_say(tmp_path: Path, case: str) -> None:
    from transformers import AutoModelForSequenceClassification

    said, activate = ACTIVATIONS[case]
    folder = make_encoder("bert", tmp_path, "SequenceClassification", num_labels=1)
    with engine(folder, hf_overrides=said) as scoring:
        (found,) = scoring.pool(PROMPTS[2:3])
    reference = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    close(found, activate(reference(torch.tensor(PROMPTS[2:3])).logits))


def test_an_encoder_that_slept_deeply_wakes_to_the_same_scores(tmp_path: Path) -> None:
    folder = make_encoder("bert", tmp_path, "SequenceClassification", num_labels=3)
    with engine(folder) as scoring:
        before = scoring.pool(PROMPTS)
        assert scoring.call("sleep", "2") == "ok"
        assert scoring.call("wake_up", "weights", "kv_cache") == "ok"
        assert all(map(np.array_equal, scoring.pool(PROMPTS), before))


def test_a_recorded_run_replays_to_the_bit(tmp_path: Path) -> None:
    folder, record = make_encoder("bert", tmp_path / "model"), tmp_path / "run.record"
    with engine(folder, record=str(record), max_num_batched_tokens=128) as embedding:
        for prompt in PROMPTS:
            embedding.add(prompt, SamplingParams(1), pooling=PoolingParams(type_from=len(prompt) // 2))
        embedding.finish()
    config, steps = read_record(record)
    assert len(steps) > 3
    assert replay(Start.of(config).worker, steps) is None


def sentence_encoder(folder: Path) -> Path:
    """With the files of sentence-transformers, which pool it by the mean."""
    make_encoder("bert", folder)
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text('{"pooling_mode_mean_tokens": true}')
    modules = [{"type": "sentence_transformers.models.Transformer", "path": ""}]
    modules += [{"type": "sentence_transformers.models.Pooling", "path": "1_Pooling"}]
    (folder / "modules.json").write_text(json.dumps(modules))
    return folder


def test_words_before_texts_are_told_and_left_to_clients(tmp_path: Path) -> None:
    file = sentence_encoder(tmp_path) / "config_sentence_transformers.json"
    file.write_text('{"prompts": {"query": "find: ", "document": ""}, "default_prompt_name": "query"}')
    with engine(tmp_path) as embedding:
        (told,) = embedding.start.ready().warnings
    assert "query 'find: ', 'query' before every text where nothing else is said" in told
    for nothing in ('{"prompts": {"query": "", "document": ""}}', '{"prompts": null}', "{}"):
        file.write_text(nothing)
        with engine(tmp_path) as embedding:
            assert embedding.start.ready().warnings == []


def test_a_folder_says_how_long_its_texts_are(tmp_path: Path) -> None:
    folder = sentence_encoder(tmp_path)
    (folder / "sentence_bert_config.json").write_text('{"max_seq_length": 100}')
    with engine(folder, max_model_len=None) as embedding:
        assert embedding.start.ready().max_model_len == 100
        (found,) = embedding.pool([text(100)])
    close(found, reference_rows(folder, text(100)).mean(0, keepdim=True))
    (folder / "sentence_bert_config.json").write_text('{"max_seq_length": 400}')  # the table has 300
    with engine(folder, max_model_len=None) as embedding:
        assert embedding.start.ready().max_model_len == 300


def refusal(model: Path, **settings: Any) -> str:
    with pytest.raises(LoadError) as refused:
        engine(model, **settings)
    return str(refused.value)


def test_what_an_encoder_cannot_do_is_refused_at_load(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make_encoder("roberta", tmp_path / "model")
    assert "It is an encoder: its rows see those behind them" in refusal(folder, task="generate")
    assert "It can embed, reward" in refusal(folder, task="classify")
    assert "by our own code, not with --model-impl transformers" in refusal(folder, model_impl="transformers")
    assert "runs, and not to encoders" in refusal(folder, max_loras=1)
    assert "an encoder embeds tokens alone" in refusal(folder, enable_prompt_embeds=True)
    classes = make_encoder("modernbert", tmp_path / "classes", "SequenceClassification")
    assert "It can classify" in refusal(classes, task="embed")
    odd = {"num_labels": 1, "id2label": {"0": "x"}, "sentence_transformers": {"activation_fn": "my.code.Act"}}
    assert "put scores through my.code.Act" in refusal(classes, hf_overrides=odd)
    assert "made for 298 tokens" in refusal(folder, max_model_len=299)
    monkeypatch.setenv("VLLM_ALLOW_LONG_MAX_MODEL_LEN", "1")
    assert "has 298 positions" in refusal(folder, max_model_len=299)
