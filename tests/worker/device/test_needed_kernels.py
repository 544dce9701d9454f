"""Kernels that are compiled before a server starts are all that it launches."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from e2e.ground.patience import scaled

import stub_cuda
from factory import make_model
from slipway.engine.params import SamplingParams
from slipway.worker.device.every_step import decodes, draws, prompts, sizes
from slipway.worker.device.sampler import Sampler
from slipway.worker.device.state import SlotState
from slipway_kernels.sampling import Features, RecordLayout

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
SMALL: dict[str, Any] = {
    "max_num_seqs": 4,
    "max_num_batched_tokens": 16,
    "num_blocks": 32,
    "load_format": "dummy",
}
SETTINGS: dict[str, tuple[str, dict[str, Any]]] = {
    "bf16": ("llama", {}),
    "fp8": ("llama", {"quantization": "fp8", "kv_cache_dtype": "fp8"}),
    "int4 and n-grams": ("llama", {"quantization": "int4", "num_drafts": 3}),
    "experts": ("mixtral", {}),
}


def kernels(which: str, model: Path, settings: dict[str, Any], *more: str) -> set[str]:
    return set(map(json.dumps, printed(which, model, settings, *more)))


def printed(which: str, model: Path, settings: dict[str, Any], *more: str) -> list[Any]:
    folders = (ROOT / "tests", *((ROOT / "bench/gpu", ROOT / "bench") if which == "engine" else ()))
    environ = os.environ | {"PYTHONPATH": os.pathsep.join([*map(str, folders), *sys.path])}
    words = which, str(model), json.dumps(SMALL | settings), *more
    done = subprocess.run(
        [sys.executable, HERE / "launched_kernels.py", *words],
        env=environ,
        capture_output=True,
        text=True,
        timeout=scaled(240),
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: list[Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.slow
@pytest.mark.parametrize("name", SETTINGS)
def test_an_engine_launches_nothing_that_was_not_compiled_ahead(name: str, tmp_path: Path) -> None:
    family, settings = SETTINGS[name]
    model = make_model(family, tmp_path / "model", dtype="bfloat16")
    needed, launched = (kernels(which, model, settings) for which in ("needed", "engine"))
    assert len(launched) > 25
    assert launched - needed == set()


@pytest.mark.slow
def test_a_start_under_a_driver_looks_for_what_was_compiled_ahead(tmp_path: Path) -> None:
    model, settings = make_model("llama", tmp_path / "model", dtype="bfloat16"), SETTINGS["fp8"][1]
    library = stub_cuda.build(tmp_path)
    needed, sought = kernels("needed", model, settings), kernels("started", model, settings, str(library))
    assert len(sought) > 15
    assert sought - needed == set()


@pytest.mark.slow
def test_a_step_is_worked_out_in_its_first_layer_and_once(tmp_path: Path) -> None:
    """What follows puts addresses in: the host would take three times as long as the device, else."""
    model = make_model("llama", tmp_path / "model", dtype="bfloat16", num_hidden_layers=8)
    steps = printed("repeated", model, SETTINGS["fp8"][1], str(stub_cuda.build(tmp_path)))
    (launches, _), (again, bound_again), (others, bound_of_others), (last, bound_at_last) = steps
    assert launches == again == others == last > 8 * 8
    assert (bound_again, bound_at_last) == (0, 0)
    assert 0 < bound_of_others < 2 * launches / 8


def test_sizes_are_the_bounds_of_tiles_and_one_more() -> None:
    assert sizes(1) == [1]
    assert sizes(40) == [1, 2, 3, 4, 5, 8, 9, 16, 17, 32, 33, 40]
    assert {256, 257, 384, 511, 512} <= {*sizes(512), 511}


@pytest.mark.parametrize("most", [1, 2, 6])
def test_steps_have_no_more_rows_and_requests_than_there_can_be(most: int) -> None:
    limits = most, 20, 3, 50, 0
    for shape, rows, requests in decodes(*limits):
        assert (requests <= most, rows == 3 * requests <= 20, shape.num_decodes) == (True, True, requests)
    for shape, rows, requests in prompts(*limits):
        assert (requests <= most, rows <= 20, shape.num_decodes) == (True, True, 0)
        assert 3 < shape.max_query <= shape.max_length


def test_draws_are_all_that_batches_ask_for() -> None:
    """Of any requests together, with masks or without."""
    layout = RecordLayout(100)
    state = SlotState(4, 1, 16, layout.words, 16, 0, torch.device("cpu"))
    state.allocate(1)
    sampler = Sampler(state, layout, max_top := 5)
    known, rng, seen = {*draws(max_top)}, random.Random(3), set()
    for _ in range(300):
        for slot in range(4):
            sampler.start(slot, drawn(rng))
        asked = sampler.features(torch.arange(rng.randint(1, 4)).numpy())
        seen |= {asked, asked | Features(edits=True, masked=True)}
    assert seen <= known
    assert len(seen) > 15


def drawn(rng: random.Random) -> SamplingParams:
    return SamplingParams(
        1,
        temperature=rng.choice((0.0, 0.0, 1.0)),
        top_p=rng.choice((1.0, 1.0, 0.5)),
        presence_penalty=rng.choice((0.0, 0.0, 0.0, 0.5)),
        logit_bias=rng.choice(((), (), ((3, 1.0),))),
        num_logprobs=rng.choice((-1, -1, 0, 2)),
    )
