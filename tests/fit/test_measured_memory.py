"""Servers on a CPU take the memory that the estimate says, to 5 %: anonymous and shared, no page cache."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from planned_needs import needs_of

from live_server import LiveServer, live_server
from slipway.fit import Device, Estimate, estimate
from slipway.footprint import footprint
from slipway.machine import whole_memory
from small_shapes import LLAMA, MOE, write_shape

WITHIN = 0.05
SMALL = ("--kv-cache-memory-bytes", "128M", "--max-model-len", "1024", "--max-num-seqs", "64")
"""A pool that is touched whole, and steps that a few requests make as large as they get."""


def estimated(model: Path, *arguments: str) -> Estimate:
    return estimate(needs_of(model, *arguments, device="cpu"), Device("here", whole_memory()))


def settled(server: LiveServer) -> int:
    """What is taken once an idle engine has touched what it will."""
    before, now = -1, footprint(server.process.pid)
    while now > before:
        server.wait(0.5)
        before, now = now, footprint(server.process.pid)
    return now


def ask(server: LiveServer, fields: Mapping[str, object]) -> None:
    server.post("/v1/completions", json.dumps({"model": "", "temperature": 0, **fields}).encode())


def fill(server: LiveServer) -> None:
    """Have a step with as many tokens as there can be, the longest context, and one with as many draws."""
    ask(server, {"prompt": [7] * 1000, "max_tokens": 2})
    ask(server, {"prompt": [[number, 8, 9, 10] for number in range(64)], "max_tokens": 2})


def test_the_demo_at_rest(demo_model: Path) -> None:
    with live_server(demo_model, forked=False) as server:
        assert settled(server) == pytest.approx(estimated(demo_model).at_rest, rel=WITHIN)


@pytest.mark.slow
def test_the_demo_in_full(demo_model: Path) -> None:
    with live_server(demo_model, *SMALL, forked=False) as server:
        fill(server)
        assert settled(server) == pytest.approx(estimated(demo_model, *SMALL).total, rel=WITHIN)


@pytest.mark.parametrize(
    "config",
    [
        pytest.param(MOE, id="experts", marks=pytest.mark.slow),
        pytest.param(LLAMA, id="1.2 billion", marks=pytest.mark.slow),
    ],
)
def test_a_shape_at_rest_and_in_full(config: dict[str, Any], tmp_path: Path) -> None:
    model = write_shape(tmp_path / "model", config)
    found = estimated(model, *SMALL)
    with live_server(model, *SMALL, forked=False) as server:
        assert settled(server) == pytest.approx(found.at_rest, rel=WITHIN)
        fill(server)
        assert settled(server) == pytest.approx(found.total, rel=WITHIN)


@pytest.mark.slow
def test_two_ranks_of_one_model(tmp_path: Path) -> None:
    arguments = (*SMALL, "--tensor-parallel-size", "2")
    model = write_shape(tmp_path / "moe", MOE)
    found = estimated(model, *arguments)
    with live_server(model, *arguments, forked=False) as server:
        fill(server)
        assert settled(server) == pytest.approx(found.total, rel=WITHIN)
