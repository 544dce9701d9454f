"""One life for all workers: native code and transformers', on CPU and on a device."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from device_runs import SMALL
from local_engine import LocalEngine
from slipway.engine.config import EngineConfig
from slipway.engine.executor import Worker
from slipway.engine.params import SamplingParams
from slipway.engine.plan import PageGrant, SlotStart, StepPlan
from slipway.engine.planned import loader
from slipway.exits import BAD_ARGUMENTS, Exit
from slipway.load.checkpoint import open_checkpoint
from slipway.machine import whole_memory
from slipway.model.kv import kv_layout
from slipway.worker.cache_size import CacheMemory
from slipway.worker.cpu import CpuWorker
from slipway.worker.planning import plan_model

TRANSFORMERS = pytest.param("transformers", marks=pytest.mark.torch)
CUDA = pytest.param("cuda", marks=pytest.mark.torch)
ONE_TOKEN = StepPlan(
    [SlotStart(0, [5, 6], 2, 0, SamplingParams(1, temperature=0.0), 1)],
    [PageGrant(0, 0, 0, [0])],
    *([0], [2], [0], [True], [2]),
)


def quiet(phase: str, done: int, total: int) -> None:
    """No progress is shown."""


@pytest.mark.parametrize("skips", [False, True])
def test_a_warm_up_is_skipped_where_that_is_asked_for(
    tiny_models: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch, skips: bool
) -> None:
    warmed: list[CpuWorker] = []
    monkeypatch.setattr(CpuWorker, "warm_up", lambda worker: warmed.append(worker))
    with LocalEngine(tiny_models("llama"), skip_warmup=skips):
        assert len(warmed) == (0 if skips else 1)


def test_the_cache_is_sized_by_what_the_weights_take_and_not_by_their_file(
    tiny_models: Callable[[str], Path],
) -> None:
    taken = {}
    for dtype in ("bfloat16", "float32"):
        config = EngineConfig(model=str(tiny_models("llama")), use_tqdm_on_load=False, dtype=dtype)
        plan = plan_model(open_checkpoint(config, quiet), config)
        worker = CpuWorker(plan, config, quiet)
        taken[dtype] = whole_memory() - 4 * worker.profile().num_bytes
        worker.close()
    # The file is in float32, and has some vectors beside matrices.
    assert 0.95 * plan.stored_bytes < taken["float32"] <= plan.stored_bytes
    assert taken["float32"] == 2 * taken["bfloat16"]


@pytest.mark.parametrize("implementation", ["auto", TRANSFORMERS])
@pytest.mark.parametrize("device", ["cpu", CUDA])
def test_every_worker_is_loaded_measured_filled_warmed_stepped_and_closed(
    tiny_models: Callable[[str], Path], device: str, implementation: str
) -> None:
    config = EngineConfig(
        model=str(tiny_models("llama")),
        use_tqdm_on_load=False,
        device=device,
        model_impl=implementation,
        **SMALL,  # type: ignore[arg-type]
    )
    plan = plan_model(open_checkpoint(config, quiet), config)
    worker: Worker = loader(device)(plan, config, quiet)
    memory = worker.profile()
    assert memory.page_bytes == plan.kv.page_bytes
    assert (memory.position_bytes > 0) == (device == "cuda")
    assert memory.num_pages(plan.kv, plan.max_model_len) > 100
    assert memory.more in ("VLLM_CPU_KVCACHE_SPACE", "--gpu-memory-utilization")
    assert worker.allocate(20) == 20
    assert worker.token_budget == SMALL["max_num_batched_tokens"]
    worker.warm_up()
    worker.launch(ONE_TOKEN)
    worker.draw()
    assert [len(tokens) for tokens in worker.collect().tokens] == [1]
    held = [weakref.ref(one) for one in vars(worker).values() if type(one).__name__ in MODELS]
    assert len(held) == 1
    worker.close()
    del worker
    gc.collect()
    assert [one() for one in held] == [None]


def test_a_step_without_chunks_is_as_large_as_the_context_that_is_served(
    tiny_models: Callable[[str], Path],
) -> None:
    config = unchunked(tiny_models("llama"), max_num_seqs=400)
    plan = plan_model(open_checkpoint(config, quiet), config)
    worker: Worker = loader("cpu")(plan, config, quiet)
    worker.allocate(4)  # pages of sixteen tokens
    assert plan.max_model_len > 64
    assert worker.token_budget == 64 + 399


@pytest.mark.parametrize("device", ["cpu", CUDA])
def test_the_budget_of_a_step_without_chunks_is_the_one_that_was_asked_for_and_takes_every_prompt(
    tiny_models: Callable[[str], Path], device: str
) -> None:
    folder = tiny_models("llama")

    def budget(tokens: int) -> int:
        config = unchunked(folder, device=device, max_model_len=64, max_num_batched_tokens=tokens)
        plan = plan_model(open_checkpoint(config, quiet), config)
        worker: Worker = loader(device)(plan, config, quiet)
        worker.allocate(20)
        return worker.token_budget

    assert budget(64) == 64
    with pytest.raises(Exit) as caught:
        budget(63)
    assert caught.value.exit_code is BAD_ARGUMENTS
    assert caught.value.argument == "max_num_batched_tokens"
    assert caught.value.message == (
        "--max-num-batched-tokens 63 is smaller than the 64 tokens that requests may have, with chunked "
        "prefill off: a prompt longer than 63 tokens could never run"
    )
    assert caught.value.hint == (
        "Set it to 64 or more or leave it out, set --max-model-len 63 or less, or drop "
        "--no-enable-chunked-prefill."
    )


def unchunked(folder: Path, **settings: Any) -> EngineConfig:
    return EngineConfig(
        model=str(folder),
        use_tqdm_on_load=False,
        enable_chunked_prefill=False,
        **{"max_num_seqs": 4, **settings},
    )


MODELS = {"Program", "FallbackModel", "Decoder", "FallbackDecoder"}


@given(
    num_bytes=st.integers(0, 1 << 24),
    position_bytes=st.floats(0, 1 << 10),
    windows=st.lists(st.sampled_from([0, 32]), min_size=1, max_size=5),
    length=st.integers(1, 1 << 14),
)
def test_pages_fit_beside_slots_for_the_context_that_they_allow(
    num_bytes: int, position_bytes: float, windows: list[int], length: int
) -> None:
    kinds = [(window, (2, 16) if window else (4, 32)) for window in windows]
    kv = kv_layout(kinds, 16, lambda heads, size, tokens: 2 * heads * size * tokens)
    pages = CacheMemory(num_bytes, kv.page_bytes, "more", position_bytes).num_pages(kv, length)
    whole = pages >= kv.pages_for(length)
    fits = length if whole else kv.tokens_in(pages)
    assert pages * kv.page_bytes + fits * position_bytes <= num_bytes
    longer = min(length, fits + max(kv.block_sizes))
    assert whole or kv.pages_for(longer) * kv.page_bytes + longer * position_bytes > num_bytes
