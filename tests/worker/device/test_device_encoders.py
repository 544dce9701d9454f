"""Encoders on a device give what they give on a CPU, in fp32."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from encoder_models import ENCODERS, make_encoder, text
from local_engine import LocalEngine
from slipway.engine.params import PoolingParams, SamplingParams
from slipway.load.arrays import Floats

SMALL: dict[str, Any] = {
    "dtype": "float32",
    "max_num_seqs": 3,
    "max_num_batched_tokens": 24,
    "max_model_len": 24,
    "override_pooler_config": {"pooling_type": "ALL", "normalize": False},
}
PROMPTS = [text(20, 1), text(1, 2), text(5, 3)]
"""More than a step computes."""


def small(variant: str, folder: Path, head: str = "", **sizes: Any) -> Path:
    layers = 2 if variant != "modernbert" else 3  # of which one has a window
    window = {"local_attention": 8} if variant.startswith("modernbert") else {}
    return make_encoder(variant, folder, head, num_hidden_layers=layers, **(window | sizes))


def pooled(folder: Path, *, pairs: bool = False, **settings: Any) -> list[Floats]:
    """Of prompts, whose second half is the second text of a pair."""
    with LocalEngine(folder, **(SMALL | settings)) as engine:
        names = [
            engine.add(
                prompt,
                SamplingParams(1),
                pooling=PoolingParams(type_from=len(prompt) // 2 if pairs else None),
            )
            for prompt in PROMPTS
        ]
        engine.finish()
        return [engine.pooled(name) for name in names]


def assert_close(found: list[Floats], wanted: list[Floats], largest: float = 1e-4) -> None:
    for ours, theirs in zip(found, wanted, strict=True):
        assert ours.shape == theirs.shape
        np.testing.assert_allclose(ours, theirs, atol=largest)


@pytest.mark.parametrize("variant", ENCODERS)
def test_final_rows_are_the_cpus(tmp_path: Path, variant: str) -> None:
    folder = small(variant, tmp_path)
    assert_close(pooled(folder, device="cuda"), pooled(folder))


@pytest.mark.parametrize("variant", ["bert", "xlm_roberta"])
def test_the_second_text_of_a_pair_has_its_own_type(tmp_path: Path, variant: str) -> None:
    folder = small(variant, tmp_path)
    found = pooled(folder, pairs=True, device="cuda")
    assert_close(found, pooled(folder, pairs=True))
    assert not np.allclose(found[0], pooled(folder)[0], atol=1e-3)


@pytest.mark.parametrize("variant", ["bert", "roberta", "modernbert"])
def test_classes_are_the_cpus(tmp_path: Path, variant: str) -> None:
    folder = small(variant, tmp_path, "SequenceClassification", num_labels=3)
    asked: dict[str, Any] = {"override_pooler_config": {}}
    assert_close(pooled(folder, device="cuda", **asked), pooled(folder, **asked))


@pytest.mark.parametrize(("variant", "quantization"), [("bert", "int8"), ("bert", "fp8"), ("gte", "int4")])
def test_quantized_products_point_where_the_cpus_do(tmp_path: Path, variant: str, quantization: str) -> None:
    asked = {"quantization": quantization, "dtype": "bfloat16"}
    folder = small(variant, tmp_path)
    for ours, theirs in zip(pooled(folder, device="cuda", **asked), pooled(folder, **asked), strict=True):
        cosines = (ours * theirs).sum(1) / np.linalg.norm(ours, axis=1) / np.linalg.norm(theirs, axis=1)
        assert cosines.min() > 0.98


def test_sleep_gives_back_weights_and_tables(tmp_path: Path) -> None:
    folder = small("bert", tmp_path)
    with LocalEngine(folder, **(SMALL | {"device": "cuda"})) as engine:
        before = engine.pool(PROMPTS)
        worker: Any = engine.worker
        shapes: list[tuple[int, ...]] = []
        worker._move(lambda tensor: shapes.append(tuple(tensor.shape)) or tensor)
        assert {(2, 64), (300, 64)} <= set(shapes)  # types and positions
        for level in ("1", "2"):
            assert engine.call("sleep", level) == "ok"
            assert engine.call("wake_up", "kv_cache", "weights") == "ok"
            assert all(map(np.array_equal, engine.pool(PROMPTS), before))


def test_what_encoders_have_no_use_for_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    asked = {"attention_backend": "TORCH_SDPA", "swap_bytes": 1 << 20, "offload_bytes": 1 << 20}
    with LocalEngine(small("roberta", tmp_path), **(SMALL | asked | {"device": "cuda"})) as engine:
        told = " ".join(engine.start.warnings)
    assert "--attention-backend TORCH_SDPA has no effect: an encoder's rows attend both ways" in told
    assert "--preemption-mode swap has no effect: an encoder keeps no keys and values" in told
    assert "--cpu-offload-gb has no effect: RobertaModel is an encoder" in caplog.text


def test_random_weights_make_an_encoder_that_runs(tmp_path: Path) -> None:
    (first, *_) = pooled(small("gte", tmp_path), load_format="dummy", device="cuda")
    assert first.std() > 0.1
