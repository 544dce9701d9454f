"""A device's worker sleeps: pages and weights give their memory back, and hold the same again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from device_runs import SMALL, assert_same
from factory import model_folders
from local_engine import LocalEngine
from repeated_graphs import Repeated
from slipway.engine.messages import Ready
from slipway.engine.params import SamplingParams

WORK = [
    (list(range(20, 26)), SamplingParams(2, temperature=0.0, num_logprobs=2)),
    (list(range(50, 52)), SamplingParams(2, temperature=0.8, seed=5, num_logprobs=2)),
]
Models = Callable[[str], Path]
FALLBACK: dict[str, object] = {"model_impl": "transformers"}
BOTH = ("weights", "kv_cache")
SERVERS: dict[str, tuple[str, dict[str, object]]] = {
    "llama": ("llama", {}),
    "experts": ("mixtral", {}),
    "streamed": ("deep", {"offload_bytes": 1 << 30}),
    "int8": ("llama", {"quantization": "int8"}),
    "fallback": ("llama", FALLBACK),
    "quantized fallback": ("llama", FALLBACK | {"quantization": "int8"}),
    "found scales": ("llama", {"kv_cache_dtype": "fp8", "calculate_kv_scales": True}),
}
"""A model, and how it is served."""


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Models:
    sizes = {"llama": ("llama", {"num_hidden_layers": 2}), "mixtral": ("mixtral", {"num_hidden_layers": 1})}
    sizes["deep"] = ("llama", {"num_hidden_layers": 4})
    return model_folders(tmp_path_factory.mktemp("sleepers"), sizes)


def matrices(engine: LocalEngine) -> list[torch.UntypedStorage]:
    """Where the decoder's weights lie, those that are no views of arrays of the host."""
    found: list[torch.Tensor] = []
    engine.worker._decoder.move(lambda tensor: found.append(tensor) or tensor)  # type: ignore[attr-defined]
    storages = {one.untyped_storage().data_ptr(): one.untyped_storage() for one in found}
    return [storage for storage in storages.values() if storage.resizable()]


@pytest.mark.parametrize("level", ["1", "2"])
@pytest.mark.parametrize("server", SERVERS)
def test_it_wakes_to_the_same_answers(models: Models, server: str, level: str) -> None:
    model, settings = SERVERS[server]
    with LocalEngine(models(model), **SMALL | {"device": "cuda"} | settings) as engine:
        before = engine.run(WORK)  # scales are found
        weights = matrices(engine)
        sizes = [storage.nbytes() for storage in weights]
        assert engine.call("sleep", level) == "ok"
        assert engine.worker._pages.pool.untyped_storage().nbytes() == 0  # type: ignore[attr-defined]
        assert hasattr(engine.worker, "_decoder") == (level == "1")
        if level == "1":
            assert [storage.nbytes() for storage in weights] == [0] * len(sizes)
        assert engine.call("wake_up", "kv_cache") == "ok"
        assert engine.call("wake_up", "weights") == "ok"
        assert [storage.nbytes() for storage in matrices(engine)] == sizes
        assert_same(engine.run(WORK), before)


def test_weights_that_the_host_has_no_room_for_keep_it_awake(
    models: Models, monkeypatch: pytest.MonkeyPatch
) -> None:
    with LocalEngine(models("llama"), **SMALL, device="cuda") as engine:
        before = engine.run(WORK)
        monkeypatch.setattr("slipway.worker.device.pinned.available_memory", lambda: 10)
        assert engine.call("sleep", "1").startswith(
            "failed: fall asleep: the host has no room for 0.00 GiB of weights"
        )
        assert not isinstance(engine.hub.told, Ready)
        assert_same(engine.run(WORK), before)
        assert engine.call("sleep", "2") == "ok"


def test_a_sleep_goes_deeper_where_that_is_asked_for(models: Models) -> None:
    with LocalEngine(models("llama"), **SMALL, device="cuda") as engine:
        before = engine.run(WORK)
        assert engine.call("sleep", "1") == engine.call("sleep", "1") == engine.call("sleep", "2") == "ok"
        assert engine.call("sleep", "1") == engine.call("wake_up", *BOTH) == "ok"
        assert_same(engine.run(WORK), before)


def test_graphs_know_addresses_and_are_not_replayed_behind_sleep(models: Models) -> None:
    with LocalEngine(models("llama"), **SMALL, device="cuda", skip_warmup=True) as engine:
        before = engine.run(WORK)
        graphs = Repeated.into(engine.worker, [1, 2, 4], 64)  # type: ignore[arg-type]
        assert graphs.steps
        assert engine.call("sleep", "1") == "ok"
        assert not any(key in engine.worker.graphs for key in graphs.steps)  # type: ignore[attr-defined]
        assert not engine.core._sleeper.idle()  # type: ignore[union-attr]
        assert engine.call("wake_up", *BOTH) == "ok"
        replayed = graphs.replayed
        assert_same(engine.run(WORK), before)
        assert graphs.replayed == replayed
