"""The table says what the JSON says, and both say what the estimate has."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from planned_needs import needs_of, write_config

from slipway.fit import Device, Estimate, estimate, named
from slipway.fit.report import PARTS, as_json, as_table
from small_shapes import LLAMA, MOE

GIB = 1 << 30
SIZE = re.compile(r"([\d.]+) GiB")


LITTLE = ("--enforce-eager", "--max-num-seqs", "8")


def found(folder: Path, name: str) -> Estimate:
    model = write_config(folder, {**LLAMA, **(MOE if name == "experts" else {})})
    match name:
        case "short":
            asked = needs_of(model, *LITTLE, "--max-model-len", "8192")
            return estimate(asked, Device("device", 16 * GIB // 5, 90))
        case "reduced":
            return estimate(needs_of(model, *LITTLE), Device("device", 16 * GIB // 5, 90))
        case "experts":
            return estimate(needs_of(model, "--tensor-parallel-size", "2"), named("T4"))
        case "host":
            return estimate(needs_of(model, device="cpu"), Device("this machine", 16 * GIB))
        case "copies":
            return estimate(needs_of(model, "--data-parallel-size", "2"), named("L4"), 4)
    raise AssertionError(name)


CASES = pytest.mark.parametrize("name", ["short", "reduced", "experts", "host", "copies"])


def sizes(text: str) -> list[float]:
    return [float(size) for size in SIZE.findall(text)]


@CASES
def test_each_row_of_the_table_is_a_part_of_the_json(name: str, tmp_path: Path) -> None:
    estimated = found(tmp_path, name)
    printed, table = as_json(estimated), as_table(estimated).splitlines()
    for part, words in {**PARTS, "total": "in all"}.items():
        rows = [line for line in table if line.startswith(f"  {words} ")]
        stated = [round(rank[part] / GIB, 2) for rank in printed["ranks"]]
        assert [sizes(row) for row in rows] == ([stated] if any(stated) else []), words


@CASES
def test_verdict_and_limits_are_the_same(name: str, tmp_path: Path) -> None:
    estimated = found(tmp_path, name)
    printed, table = as_json(estimated), as_table(estimated)
    assert ("It does not fit: " in table) == (not printed["fits"]) == (printed["short"] is not None)
    assert f"which holds {printed['kv_cache_tokens']} tokens" in table
    assert f"The largest --max-model-len is {printed['max_model_len']}; " in table
    requests = printed["max_num_seqs"]
    counted = f"{requests} requests" if requests > 1 else "one request"
    assert f"; {counted} of {printed['serves_model_len']} tokens" in table
    if printed["short"]:
        assert f"{printed['short']['message']}\n{printed['short']['hint']}" in table
    assert all(f"note: {note}" in table for note in printed["notes"])


@CASES
def test_parts_add_up(name: str, tmp_path: Path) -> None:
    printed: dict[str, Any] = as_json(found(tmp_path, name))
    for rank in printed["ranks"]:
        assert sum(rank[part] for part in PARTS) == rank["total"]
    beside = printed["frontend"] if name == "host" else 0
    assert sum(rank["total"] for rank in printed["ranks"]) * printed["engines"] + beside == printed["total"]


def test_the_cases_are_what_they_are_called(tmp_path: Path) -> None:
    short, reduced = found(tmp_path, "short"), found(tmp_path, "reduced")
    assert not short.fits
    assert reduced.fits
    assert reduced.serves_len < LLAMA["max_position_embeddings"]


@pytest.mark.parametrize(
    ("memory", "arguments", "part", "words"),
    [
        (
            2.0,
            (),
            "weights",
            ("Weights of 2.30 GiB", "leave nothing of 2.00 GiB, of which CUDA", "quantize it"),
        ),
        (
            5.1,
            ("--gpu-memory-utilization", "0.8"),
            "activations",
            ("nothing of 80% of 5.10 GiB", "--enforce-eager, or lower --max-num-seqs"),
        ),
        (3.2, (*LITTLE, "--max-model-len", "8192"), "kv_cache", ("takes 0.25 GiB", "less", "fp8")),
        (24, ("--kv-cache-memory-bytes", "40G"), "kv_cache", ("40.00 GiB of KV cache", "has 24.00 GiB")),
    ],
)
def test_the_part_that_is_short_is_named_with_its_sum(
    memory: float, arguments: tuple[str, ...], part: str, words: tuple[str, ...], tmp_path: Path
) -> None:
    needs = needs_of(write_config(tmp_path, LLAMA), *arguments)
    short = estimate(needs, Device("device", int(memory * GIB), 90)).short
    assert short is not None
    assert short.part == part
    assert all(word in f"{short.message} {short.hint}" for word in words)


def test_devices_that_are_too_few_are_counted(tmp_path: Path) -> None:
    needs = needs_of(
        write_config(tmp_path, LLAMA), "--tensor-parallel-size", "4", "--data-parallel-size", "2"
    )
    short = estimate(needs, named("L4"), devices=4).short
    assert short is not None
    assert (short.part, short.message) == (
        "devices",
        "2 engines of 4 ranks take 8 devices, of which there are 4.",
    )
    assert estimate(needs, named("L4"), devices=8).fits
