"""Command lines that people use: all of them are understood."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from slipway.args import resolve

COMMANDS: list[dict[str, Any]] = json.loads((Path(__file__).parent / "commands.json").read_text())
EXPLAINED = ("not supported yet", "has no effect", "is an old form of", "environment variable", "wins over")


@pytest.mark.parametrize("command", COMMANDS, ids=[command["name"] for command in COMMANDS])
def test_a_worked_command_resolves_and_every_warning_explains_itself(command):
    resolved = resolve([*command["argv"], "--dry-run"], command.get("env", {}))
    json.dumps(resolved.printed(), allow_nan=False)
    for warning in resolved.warnings:
        assert any(phrase in warning for phrase in EXPLAINED), warning


def test_there_are_48_commands_and_two_models():
    assert len(COMMANDS) == 50


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS, ids=[command["name"] for command in COMMANDS])
def test_a_worked_command_exits_0_in_a_dry_run(command, tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "slipway", "serve", *command["argv"], "--dry-run"],
        env={**os.environ, **command.get("env", {})},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    printed = json.loads(done.stdout.splitlines()[-1])
    assert printed["model"] == printed["model_tag"]
