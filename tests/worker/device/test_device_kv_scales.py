"""`--calculate-kv-scales` on a device: the first step finds scales that graphs read where they lie."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from factory import make_model
from local_engine import LocalEngine, Output
from outliers import distance, make_outlying
from repeated_graphs import Repeated
from slipway.engine.params import SamplingParams
from slipway.worker.device.batch import Batch
from slipway.worker.device.pages import LayerCache

BOUNDS: dict[str, object] = {
    "dtype": "float32",
    "device": "cuda",
    "max_num_seqs": 4,
    "max_num_batched_tokens": 16,
    "max_model_len": 64,
    "block_size": 8,
    "num_blocks": 32,
}
FOUND: dict[str, object] = {"kv_cache_dtype": "fp8", "calculate_kv_scales": True}
FIRST, SECOND = list(range(20, 32)), list(range(200, 209))


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Plain and outlying."""
    return make_outlying(tmp_path_factory.mktemp("models"), num_hidden_layers=2)


def engine(model: Path, **settings: object) -> LocalEngine:
    return LocalEngine(model, **(BOUNDS | settings))


def answer(served: LocalEngine, tokens: list[int], count: int = 1) -> Output:
    params = SamplingParams(count, temperature=0.0, num_logprobs=0, num_prompt_logprobs=0)
    return served.run([(tokens, params)])[0]


def answers(model: Path, *prompts: list[int], **settings: object) -> list[Output]:
    with engine(model, **settings) as served:
        return [answer(served, tokens) for tokens in prompts]


def scales(served: LocalEngine) -> list[float]:
    caches = served.worker._decoder._caches
    return [float(scale) for cache in caches for scale in (cache.key_scale, cache.value_scale)]


def test_keys_and_values_beyond_the_largest_of_eight_bits_survive(models: tuple[Path, Path]) -> None:
    plain, outlying = models
    (exact,) = answers(plain, FIRST)
    (rounded,) = answers(plain, FIRST, kv_cache_dtype="fp8")
    (saturated,) = answers(outlying, FIRST, kv_cache_dtype="fp8")
    (found,) = answers(outlying, FIRST, **FOUND)
    assert distance(found, exact) < 2 * distance(rounded, exact)
    assert distance(saturated, exact) > 10 * distance(found, exact)


def test_the_first_step_alone_finds_what_the_cpu_finds(models: tuple[Path, Path]) -> None:
    _, outlying = models
    with engine(outlying, **FOUND) as served:
        served.worker.largest_step()
        assert scales(served) == [1.0] * 4
        places = [one.key_scale.data_ptr() for one in served.worker._decoder._caches]
        first = answer(served, FIRST)
        found = scales(served)
        assert min(found) > 1
        second = answer(served, SECOND)
        assert scales(served) == found
        assert places == [one.key_scale.data_ptr() for one in served.worker._decoder._caches]
    again = answers(outlying, FIRST, SECOND, **FOUND)
    assert again == [first, second]
    # Last: it leaves torch one thread, and its sums here depend on how many it has.
    expected = answers(outlying, FIRST, SECOND, device="cpu", **FOUND)
    assert distance(first, expected[0]) < 0.02
    assert distance(second, expected[1]) < 0.02


def test_graphs_are_captured_before_and_find_nothing(models: tuple[Path, Path]) -> None:
    """Also where the first step is a decode by its shape, which a graph would run."""
    _, outlying = models
    with engine(outlying, **FOUND) as served:
        expected = answer(served, [5], 3)
        found = scales(served)
    with engine(outlying, **FOUND) as served:
        repeated = Repeated.into(served.worker, [1], 64, ready=False)
        served.worker.warm_up()
        assert scales(served) == [1.0] * 4
        assert answer(served, [5], 3) == expected
        assert scales(served) == found
        assert repeated.replayed == 2  # two forward passes; there is no graph of draws that are reported


def test_transformers_code_finds_scales_too(tmp_path: Path) -> None:
    model = make_model("opt", tmp_path)
    exact, found = (answers(model, FIRST, **settings)[0] for settings in ({}, FOUND))
    (fixed,) = answers(model, FIRST, kv_cache_dtype="fp8")
    assert 0 < distance(found, exact) < 0.25
    assert distance(found, fixed) > 0


def test_padding_zeros_infinities_and_nan_are_not_looked_at() -> None:
    keys, values = torch.ones(4, 2, 8) * 3, torch.zeros(4, 2, 8)
    keys[0, 1, 2] = -50.0
    keys[1, 0, :2] = torch.tensor([-torch.inf, torch.nan])
    keys[3] = torch.nan
    keys[2] = 1e9
    cache = LayerCache(keys, values, 0, torch.ones(1), torch.full((1,), 7.0))
    nothing = torch.zeros(0, dtype=torch.int32)
    rows = torch.tensor([0, 1, -1, -1], dtype=torch.int32)
    batch = Batch(nothing, nothing, rows, *[nothing] * 8, 0, 4, 4, kv_divisors=(200.0, 100.0))
    cache.find_scales(keys, values, batch)
    assert cache.key_scale.tolist() == [0.25]
    assert cache.value_scale.tolist() == [7.0]
