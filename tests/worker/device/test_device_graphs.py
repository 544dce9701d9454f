"""When graphs are captured, and which steps run as graphs. What they compute is in test_device_engine.py."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from torch import Tensor

from device_runs import SMALL, assert_same
from factory import make_model
from local_engine import LocalEngine, Output
from repeated_graphs import Repeated
from slipway.engine.params import SamplingParams
from slipway.engine.plan import StepPlan
from slipway.worker.device import worker
from slipway.worker.device.batch import Batch, StepShape
from slipway.worker.device.decoder import Decoder
from slipway.worker.device.graphs import GraphSizes
from slipway.worker.device.low_rank import RowAdapters

GREEDY, SEEDED = SamplingParams(6, temperature=0.0), SamplingParams(4, temperature=0.9, seed=2)
WORK = [([7, 8, 9], GREEDY), ([40, 41], SEEDED)]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model("llama", tmp_path_factory.mktemp("llama"), num_hidden_layers=1)


@pytest.fixture(scope="module")
def expected(model: Path) -> list[Output]:
    with LocalEngine(model, **(SMALL | {"device": "cuda"})) as engine:
        return engine.run(WORK)


@pytest.fixture
def engine(model: Path) -> Iterator[LocalEngine]:
    with LocalEngine(model, **(SMALL | {"device": "cuda"})) as engine:
        yield engine


def test_a_start_captures_where_the_largest_step_left_its_logits(
    engine: LocalEngine, expected: list[Output]
) -> None:
    repeated = Repeated.into(engine.worker, [1, 2], 64, ready=False)
    engine.worker.largest_step()
    engine.worker.warm_up()
    assert sorted(key.size for key in repeated.decodes) == [1, 2]
    assert_same(engine.run(WORK), expected)
    assert repeated.replayed


def test_what_steps_miss_is_captured_first_and_when_nothing_runs(
    engine: LocalEngine, expected: list[Output]
) -> None:
    repeated = Repeated.into(engine.worker, [1, 2, 4], 64, ready=False)
    assert_same(engine.run(WORK), expected)
    assert not repeated.steps
    assert engine.worker.idle()
    assert [key.size for key in repeated.decodes] == [2]  # most steps were of both requests
    while engine.worker.idle():
        pass
    assert sorted(key.size for key in repeated.decodes) == [1, 2, 4]
    repeated.replayed = 0
    assert_same(engine.run(WORK), expected)
    assert repeated.replayed > 4


def test_a_server_that_never_rests_gets_its_graphs_too(
    engine: LocalEngine, expected: list[Output], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "PATIENCE", 2)
    repeated = Repeated.into(engine.worker, [2], 64, ready=False)
    assert_same(engine.run(WORK), expected)
    assert [key.max_length for key in repeated.decodes] == [64]
    assert repeated.replayed


def test_contexts_beyond_the_first_length_have_graphs_as_well(
    engine: LocalEngine, expected: list[Output]
) -> None:
    repeated = Repeated.into(engine.worker, [2], 6, 64)
    assert {key.max_length for key in repeated.decodes} == {6}
    for _ in range(2):
        assert_same(engine.run(WORK), expected)
        while engine.worker.idle():
            pass
    assert {key.max_length for key in repeated.decodes} == {6, 64}


@given(
    decodes=st.integers(0, 40),
    prompts=st.lists(st.integers(2, 400), max_size=9),
    most=st.sampled_from([1, 4, 32]),
    most_rows=st.sampled_from([8, 300, 4096]),
)
def test_a_graph_has_room_for_the_step_and_no_more_than_the_next_size(
    decodes: int, prompts: list[int], most: int, most_rows: int
) -> None:
    assume(decodes or prompts)
    sizes = GraphSizes([most], most, [64], most_rows)
    new = np.array([1] * decodes + prompts, np.int32)
    none = np.zeros(len(new), np.int32)
    rows = int(new.sum())
    shape = StepShape(none, none, new, none, none, none > 0, 1, decodes, rows, int(new.max()), 64)
    key = sizes.key_for(shape)
    if key is None:
        assert len(new) > most // 2 or len(prompts) > 8 or rows > min(1024, most_rows)
        return
    assert key.prompts >= len(prompts)
    assert key.decodes >= decodes
    assert key.rows >= rows
    assert key.rows <= min(most_rows, max(2 * rows, rows + 128, 16))
    assert key.size <= max(2 * (decodes + 2 * len(prompts)), most if not prompts else 0)


def test_prompts_beside_decodes_run_as_graphs_and_give_what_they_give_without(model: Path) -> None:
    """Three requests that decode, in a graph for more of them, while prompts come."""
    with LocalEngine(model, **ROOM) as engine:
        expected = engine.run(CROWD)
        repeated = Repeated.into(engine.worker, [8], 64)
        for _ in range(2):
            assert_same(engine.run(CROWD), expected)
        repeated.replayed = 0
        engine.core.executor.launch = counted = Counted(engine.core.executor.launch)  # type: ignore[method-assign]
        assert_same(engine.run(CROWD), expected)
    assert any(key.decodes > key.prompts for key in repeated.prompts)
    assert repeated.replayed == 2 * counted.steps  # a forward pass and a draw, and nothing else


ROOM = SMALL | {"device": "cuda", "max_num_seqs": 8, "max_num_batched_tokens": 32, "num_blocks": 64}
ROOM |= {"enable_prefix_caching": False}  # prompts that come again are computed again
CROWD = [
    ([5, 6, 7], SamplingParams(4, temperature=0.0, num_logprobs=3)),
    ([8, 9], SamplingParams(4, temperature=0.9, seed=3, num_logprobs=3)),
    ([10] * 4, SamplingParams(3, temperature=0.0, num_logprobs=3)),
    ([11, 12] * 15, SamplingParams(2, temperature=0.0, num_logprobs=3)),
]
"""The last does not fit into one step with the others: it is computed while they decode."""


class Counted:
    """A function, and how often it was called."""

    def __init__(self, function: Callable[..., None]) -> None:
        self._function = function
        self.steps = 0

    def __call__(self, plan: StepPlan) -> None:
        self.steps += bool(plan.slots)
        self._function(plan)


KINDS: dict[str, dict[str, object]] = {
    "fp32": {},
    "fp8": {"quantization": "fp8", "kv_cache_dtype": "fp8", "calculate_kv_scales": True, "dtype": "bfloat16"},
    "int4": {"quantization": "int4", "dtype": "bfloat16"},
    "experts": {"architecture": "mixtral"},
    "drafts": {"num_drafts": 2, "prompt_lookup_max": 2, "prompt_lookup_min": 1},
}


@pytest.mark.parametrize("kind", KINDS)
def test_what_lies_in_padding_reaches_no_request_and_no_page(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NaN in all rows of padding that enter a layer, and in all memory that nothing was written to."""
    settings = dict(KINDS[kind])
    folder = make_model(str(settings.pop("architecture", "llama")), tmp_path, num_hidden_layers=1)
    params = SamplingParams(3, temperature=0.0, num_logprobs=3)
    work = [(prompt, params) for prompt in ([8, 9, 8, 9], [7, 7, 7], [5] * 20)]
    with LocalEngine(folder, **(ROOM | {"max_num_batched_tokens": 16} | settings)) as engine:
        repeated = Repeated.into(engine.worker, [4], 64)
        engine.run(work)
        found = []
        pages = engine.worker._pages
        for filler in (0.0, torch.nan):
            pages.pool.zero_()
            with padded(filler, monkeypatch):
                outputs = engine.run(work)
            found.append((outputs, sorted(page.numpy().tobytes() for page in pages.rows)))
    assert any(key.decodes > key.prompts for key in repeated.prompts)
    assert found[0] == found[1]


@contextmanager
def padded(filler: float, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Whatever no request has is this."""
    entered, empty = Decoder._entered, torch.empty

    def enter(decoder: Decoder, batch: Batch, adapters: RowAdapters | None) -> Tensor:
        return entered(decoder, batch, adapters).masked_fill(batch.row_slots[:, None] < 0, filler)

    def filled(*shape: Any, **named: Any) -> Tensor:
        tensor = empty(*shape, **named)
        return tensor.fill_(filler) if tensor.is_floating_point() else tensor

    with monkeypatch.context() as patch:
        patch.setattr(Decoder, "_entered", enter)
        patch.setattr(torch, "empty", filled)
        yield
