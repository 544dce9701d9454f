"""Command lines that people use: all of them are understood."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest
from e2e.ground.patience import scaled

from worked_commands import COMMANDS, MOST_RANKS, PARALLEL, SIZES, Command

EXPLAINED = ("not supported yet", "has no effect", "is an old form of", "environment variable", "wins over")
REFUSED = {
    "multimodal": {"--limit-mm-per-prompt"},
    "quant-bitsandbytes": {"--quantization", "--load-format"},
}
each = pytest.mark.parametrize("command", COMMANDS, ids=[command.name for command in COMMANDS])


@each
def test_a_worked_command_resolves_and_every_warning_explains_itself(command: Command) -> None:
    resolved = command.resolved("--dry-run")
    json.dumps(resolved.printed(), allow_nan=False)
    for warning in resolved.warnings:
        assert any(phrase in warning for phrase in EXPLAINED), warning


def test_there_are_48_commands_and_two_models() -> None:
    assert len(COMMANDS) == 50


@each
def test_a_worked_command_is_refused_for_a_known_reason_alone(command: Command) -> None:
    assert command.refused.keys() == REFUSED.get(command.name, set())


@pytest.mark.parametrize("command", PARALLEL, ids=[command.name for command in PARALLEL])
def test_a_parallel_command_can_be_cut_to_a_small_machine_and_asks_for_the_same(command: Command) -> None:
    whole, cut = command.resolved(), Command(command.name, command.cut("tiny"), command.env).resolved()
    assert math.prod(cut[size] for size in SIZES) <= MOST_RANKS
    assert cut["model"] == "tiny"
    assert cut.given == whole.given
    for size in SIZES:
        assert (cut[size] > 1) == (whole[size] > 1)


def test_ten_of_them_are_parallel() -> None:
    assert [command.name for command in PARALLEL] == [
        "podman-run",
        "parallel-tp4",
        "parallel-tp8-pp2",
        "parallel-moe",
        "parallel-llama-70b",
        "parallel-llama-405b",
        "parallel-mixtral",
        "pattern-reasoning",
        "pattern-multi-gpu",
        "step-3.5-flash",
    ]


@pytest.mark.slow
@each
def test_a_worked_command_exits_0_in_a_dry_run(command: Command, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "slipway", "serve", *command.argv, "--dry-run"],
        env={**os.environ, **command.env},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=scaled(60),
    )
    assert done.returncode == 0, done.stderr
    printed = json.loads(done.stdout.splitlines()[-1])
    assert printed["model"] == printed["model_tag"]
