"""Decoders whose rows see those behind them, too: what transformers gives, to the bit the same in company."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from test_encoders import AXES, PROMPTS, close, engine
from test_pooling import rows_of
from test_sentence_folders import sentence_model

from factory import make_model
from model.stepping import plan
from slipway.engine.params import PoolingParams
from slipway.load.errors import LoadError

GEMMA: dict[str, Any] = {"use_bidirectional_attention": True, "head_dim": 24}
ALL = {"override_pooler_config": {"pooling_type": "ALL"}}


def test_embeddinggemma_is_computed_with_its_windows_and_dense_layers(tmp_path: Path) -> None:
    layers = [torch.nn.Linear(64, 96, bias=False), torch.nn.Linear(96, 64, bias=False)]
    names = {"architecture": "gemma3_text", "use_bidirectional_attention": True}
    folder = sentence_model(tmp_path / "model", "pooling_mode_mean_tokens", *layers, **names)
    prompts = [prompt[:100] for prompt in PROMPTS]
    with engine(folder, max_model_len=None) as embedding:
        ready = embedding.start.ready()
        found = embedding.pool(prompts)
    assert ready.pools is not None
    assert (ready.pools.task, ready.pools.dimensions, ready.max_model_len) == ("embed", 64, 100)
    assert embedding.start.size.num_pages == 0
    for prompt, vector in zip(prompts, found, strict=True):
        mean = rows_of(folder, prompt).mean(0, keepdim=True)
        close(vector, torch.nn.functional.normalize(layers[1](layers[0](mean))).detach())


@pytest.mark.parametrize("window", [24, 7, 1])
def test_a_window_reaches_to_both_sides(tmp_path: Path, window: int) -> None:
    folder = make_model("gemma3_text", tmp_path, head="", sliding_window=window, **GEMMA)
    with engine(folder, **ALL) as embedding:
        (found,) = embedding.pool(PROMPTS[2:3], PoolingParams(activate=False))
    close(found, rows_of(folder, PROMPTS[2]))


@pytest.mark.parametrize("architecture", ["llama", "qwen2"])
def test_any_family_without_windows_may_see_both_ways(tmp_path: Path, architecture: str) -> None:
    folder = make_model(architecture, tmp_path, is_causal=False)
    with engine(folder, task="embed", **ALL) as embedding:
        (found,) = embedding.pool(PROMPTS[2:3], PoolingParams(activate=False))
    reference = transformers.AutoModel.from_pretrained(folder, attn_implementation="eager")
    length = len(PROMPTS[2])
    with torch.no_grad():
        every = torch.zeros(1, 1, length, length)  # added to scores: nothing is hidden
        rows = reference(torch.tensor([PROMPTS[2]]), attention_mask=every).last_hidden_state[0]
    close(found, rows)


@pytest.mark.parametrize("dtype", ["float32", pytest.param("bfloat16", marks=pytest.mark.slow)])
def test_no_bit_depends_on_company(tmp_path: Path, dtype: str) -> None:
    settings = {"dtype": dtype, "override_pooler_config": {"pooling_type": "MEAN"}}
    folder = make_model("gemma3_text", tmp_path, head="", **GEMMA)
    with engine(folder, **settings) as alone:
        wanted = [alone.pool([prompt])[0] for prompt in PROMPTS]
    for name, axis in AXES.items():
        with engine(folder, **settings, **axis) as together:
            found = together.pool(PROMPTS)
        assert all(map(np.array_equal, found, wanted)), name


def test_what_is_not_known_of_one_that_sees_both_ways_is_refused(tmp_path: Path) -> None:
    slides = make_model("mistral", tmp_path / "slides", head_dim=24, is_causal=False)
    with pytest.raises(LoadError, match="sliding_window is 24: how far it reaches to each side"):
        plan(slides, task="embed")
    draws = make_model("llama", tmp_path / "draws", is_causal=False)
    with pytest.raises(LoadError, match=r"lets rows see those behind them.* draws no next token"):
        plan(draws, model_impl="vllm")
