"""What the log says of a model at the level DEBUG before its weights are read: `data/explained-load.txt`."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

import pytest

from gguf_convert import to_gguf
from slipway.engine.config import EngineConfig
from slipway.load.checkpoint import open_checkpoint
from slipway.worker.planning import plan_model

GOLDEN = Path(__file__).parent / "data" / "explained-load.txt"


def planned(path: Path, **options: object) -> None:
    config = EngineConfig(model=str(path), use_tqdm_on_load=False, **options)  # type: ignore[arg-type]
    plan_model(open_checkpoint(config, lambda *_: None), config)


@pytest.mark.torch
def test_what_is_decided_of_a_model_is_told(
    tiny_models: Callable[[str], Path], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "slipway.load")
    planned(tiny_models("gemma2"), kv_cache_dtype="fp8", block_size=32)
    packed = to_gguf(tiny_models("qwen2"), tmp_path / "q.gguf", "Q4_0", others={"ffn_down": "Q5_1"})
    planned(packed, max_model_len=64)
    told = [record.getMessage() for record in caplog.records if record.name == "slipway.load"]
    assert "\n".join([*told, ""]) == GOLDEN.read_text()


def test_nothing_is_made_of_it_at_other_levels(
    tiny_models: Callable[[str], Path], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "slipway.load")
    planned(tiny_models("llama"))
    assert not caplog.records
