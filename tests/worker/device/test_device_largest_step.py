"""The step that a start measures: it computes, draws and reports as much as a step of its server can."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import followers
import random_heads
from device_runs import SMALL, launches
from encoder_models import make_encoder
from factory import make_model
from local_engine import LocalEngine
from slipway.engine.config import DraftConfig
from slipway.worker.device import worker

Settings = dict[str, Any]
Make = Callable[[Path], Settings]
"""What a server is started with; files that it needs are written to a folder."""

SERVERS: dict[str, Make] = {
    "plain": lambda place: {},
    "quantized": lambda place: {"quantization": "int4", "dtype": "bfloat16"},
    "found scales": lambda place: {"kv_cache_dtype": "fp8", "calculate_kv_scales": True},
    "adapters": lambda place: {"max_loras": 2, "max_lora_rank": 4, "lora_extra_vocab_size": 8},
    "processors": lambda place: {"processors": True},
    "embeddings": lambda place: {"enable_prompt_embeds": True},
    "pooling": lambda place: {"task": "embed"},
    "layers on the host": lambda place: {"offload_bytes": 1 << 30},
    "n-grams": lambda place: {"num_drafts": 3, "prompt_lookup_min": 1},
    "a draft model": lambda place: {
        "num_drafts": 3,
        "draft": DraftConfig(method="draft_model", model=str(make_model("llama", place, seed=1))),
    },
    "heads": lambda place: random_heads.guessing("medusa", random_heads.write_heads("medusa", place)),
    "layers": lambda place: followers.guessing("eagle3", followers.write_follower("eagle3", place), 3),
    "transformers' code": lambda place: {"model_impl": "transformers"},
}
OWN: dict[str, set[str]] = {
    "quantized": {"linear_w4a16_kernel"},
    "adapters": {"shrink_kernel", "expand_kernel", "look_up_kernel"},
    "n-grams": {"find_kernel", "draft_kernel"},
    **{kind: {"catch_up_kernel", "append_kernel"} for kind in ("a draft model", "heads", "layers")},
}
"""Kernels by which a server is known."""


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("models")
    return {
        "llama": make_model("llama", root / "llama", num_hidden_layers=3),
        "qwen2_moe": make_model("qwen2_moe", root / "qwen2_moe", num_hidden_layers=1),
        "bert": make_encoder("bert", root / "bert"),
    }


def steps_of_a_start(model: Path, monkeypatch: pytest.MonkeyPatch, **settings: Any) -> set[str]:
    """What the steps that are measured launch."""
    noted: set[str] = set()

    def noting(device: Any, step: Callable[[], None]) -> tuple[int, int]:
        with launches() as launched:
            step()
        noted.update(launched)
        return 0, 0

    monkeypatch.setattr(worker, "measured", noting)
    with LocalEngine(model, **(SMALL | {"device": "cuda"} | settings)):
        return noted


@pytest.mark.parametrize("server", SERVERS)
def test_a_start_measures_all_that_a_step_may_ask_for(
    models: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, server: str
) -> None:
    launched = steps_of_a_start(models["llama"], monkeypatch, **SERVERS[server](tmp_path / "guesses"))
    own = OWN.get(server, set())
    assert own <= launched
    # Log-probabilities and filters are asked for at any time; a server that pools draws nothing.
    assert ({"report_kernel", "scan_kernel"} <= launched) == (server != "pooling")
    assert launched.isdisjoint(set().union(*OWN.values()) - own)


@pytest.mark.parametrize(("name", "own"), [("qwen2_moe", "route_kernel"), ("bert", "layer_norm_kernel")])
def test_it_does_so_of_experts_and_of_an_encoder(
    models: dict[str, Path], monkeypatch: pytest.MonkeyPatch, name: str, own: str
) -> None:
    assert own in steps_of_a_start(models[name], monkeypatch, max_model_len=8)
