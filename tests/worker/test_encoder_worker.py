"""An encoder from its folder to a step of the worker, and what is refused on the way."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from encoder_models import make_encoder, reference_rows, text
from model.stepping import plan
from slipway.engine.config import EngineConfig
from slipway.engine.params import PoolingParams, SamplingParams
from slipway.engine.plan import SlotStart, StepPlan
from slipway.engine.start import Start
from slipway.load.errors import LoadError
from slipway.worker.cpu import CpuWorker


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_encoder("modernbert", tmp_path_factory.mktemp("encoder") / "modernbert")


def start_of(prompts: dict[int, list[int]]) -> StepPlan:
    params = SamplingParams(1, temperature=0.0)
    starts = [
        SlotStart(slot, tokens, len(tokens), 0, params, 1, pooling=PoolingParams())
        for slot, tokens in prompts.items()
    ]
    count = len(prompts)
    grants = [len(tokens) for tokens in prompts.values()]
    return StepPlan(starts, [], [*prompts], grants, [0] * count, [True] * count, grants)


def test_an_encoder_is_loaded_and_stepped_without_a_page(folder: Path) -> None:
    config = EngineConfig(
        model=str(folder), dtype="float32", device="cpu", max_num_seqs=3, use_tqdm_on_load=False
    )
    start = Start.of(config)
    assert (start.size.num_pages, start.size.max_model_len) == (0, 300)
    assert not start.config.enable_chunked_prefill
    worker: Any = start.worker
    assert isinstance(worker, CpuWorker)
    assert worker.token_budget >= 300  # of the longest prompt
    prompts = {1: text(300), 2: text(2)}
    assert worker.step(start_of(prompts)).tokens == [[], []]
    rows = torch.from_numpy(np.split(worker._model._hidden, [300])[0])
    assert (rows - reference_rows(folder, prompts[1])).abs().max() < 1e-4
    assert not worker.idle()
    assert start.ready().max_model_len == 300
    worker.close()


def test_roberta_serves_two_tokens_less_than_it_has_positions(tmp_path: Path) -> None:
    """The padding's position and the one before it are no token's."""
    assert plan(make_encoder("roberta", tmp_path)).max_model_len == 298


def test_an_eight_bit_cache_that_nothing_fills_is_told(folder: Path) -> None:
    found = plan(folder, kv_cache_dtype="fp8", dtype="bfloat16")
    assert "--kv-cache-dtype fp8 has no effect: an encoder keeps no keys" in found.warnings[0]


REFUSED: dict[str, tuple[str, dict[str, Any], str]] = {
    "relative positions": (
        "bert",
        {"position_embedding_type": "relative_key"},
        "position_embedding_type 'relative_key' instead of 'absolute'",
    ),
    "a decoder": ("bert", {"is_decoder": True}, "is_decoder True instead of False"),
    "an activation": ("bert", {"hidden_act": "quick_gelu"}, "the activation 'quick_gelu'"),
    "heads of 5": ("bert", {"hidden_size": 60, "num_attention_heads": 12}, "heads of 5 numbers"),
    "mixed NTK": (
        "gte",
        {"rope_scaling": {"type": "ntk", "factor": 8.0, "mixed_b": 0.5}},
        "scaling 'ntk with mixed_b' is not supported",
    ),
    "experts": ("nomic_bert", {"moe_every_n_layers": 2}, "moe_every_n_layers 2 instead of 0"),
    "no gate": (
        "nomic_bert",
        {"activation_function": "gelu"},
        "activation_function 'gelu', which gates nothing",
    ),
    "another pooling": (
        "modernbert",
        {"architectures": ["ModernBertForSequenceClassification"], "classifier_pooling": "max"},
        "classifier_pooling in the model's config.json is 'max'",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_encoders_do_not_compute_is_refused_by_name(tmp_path: Path, case: str) -> None:
    from slipway.model.encoder_registry import encoders
    from slipway.worker.encoder import encoder_route

    variant, fields, message = REFUSED[case]
    name = {"bert": "BertModel", "gte": "NewModel", "nomic_bert": "NomicBertModel"}.get(variant, "")
    config = {**encoders()["BertModel"].defaults, "architectures": [name], "rope_theta": 1e4, **fields}
    with pytest.raises(LoadError, match=message):
        encoder_route(config, None)
