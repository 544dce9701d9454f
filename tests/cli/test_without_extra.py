"""Every command where only PyYAML is installed beside it, as `pip install slipway` leaves it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import tomllib
import venv
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from speaking_server import SpeakingServer

import slipway
import slipway_kernels
from slipway import exits
from slipway.extras import SERVING

ROOT = Path(__file__).parents[2]
DOCUMENT = str(ROOT / "examples" / "demo.yaml")
Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of an environment with Slipway and PyYAML."""
    place = tmp_path_factory.mktemp("bare")
    venv.create(place, symlinks=True)
    (site,) = place.glob("lib/python*/site-packages")
    for package in (slipway, slipway_kernels, yaml):
        folder = Path(str(package.__file__)).parent
        (site / folder.name).symlink_to(folder)
    return place / "bin" / "python"


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    """Cache and termination log of `slipway` are in `tmp_path`."""
    kept = {name: text for name, text in os.environ.items() if not name.startswith(("PYTHON", "SLIPWAY_"))}
    own = {"SLIPWAY_CACHE": str(tmp_path / "cache"), "SLIPWAY_TERMINATION_LOG": str(tmp_path / "log")}
    return kept | own


@pytest.fixture
def run(bare: Path, environ: dict[str, str]) -> Run:
    """Runs `slipway` there."""

    def run(*words: str, **variables: str) -> subprocess.CompletedProcess[str]:
        command = [bare, "-m", "slipway", *words]
        return subprocess.run(command, env=environ | variables, capture_output=True, text=True)

    return run


COMPUTE_NOTHING = [
    ["--help"],
    ["--print-schema"],
    ["args", "--status"],
    ["render", "-f", DOCUMENT],
    ["serve", "--help"],
    ["serve", "some-model", "--dry-run"],
    ["demo", "--dry-run"],
    ["run-batch", "-i", "in", "-o", "out", "--model", "some-model", "--dry-run"],
    ["bench", "serve", "--dry-run"],
    ["collect-env"],
    ["fetch", "--help"],  # the last: argparse ends the process
]
ONE_AFTER_THE_OTHER = """
import sys
from slipway.cli.main import main

for words in %r:
    print(f"begins {words}", file=sys.stderr)
    status = main(words)
    assert status == 0, status
"""


def test_what_computes_nothing_needs_no_extra(bare: Path, environ: dict[str, str]):
    """One process runs all commands: none of them can have imported a package that is not installed."""
    code = ONE_AFTER_THE_OTHER % COMPUTE_NOTHING
    done = subprocess.run([bare, "-c", code], env=environ, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("begins ") == len(COMPUTE_NOTHING)


def test_the_command_itself_needs_no_extra(run: Run):
    done = run("run", "-f", DOCUMENT, "--dry-run")  # by a process that becomes another
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("command", ["chat", "complete"])
def test_talking_to_a_server_needs_no_extra(run: Run, command: str):
    with SpeakingServer().running() as server:
        done = run(command, "--url", server.url, "-q", "The capital of France?")
    assert done.returncode == 0, done.stderr


def test_measuring_a_server_needs_no_extra(run: Run):
    with SpeakingServer().running() as server:
        done = run("bench", "serve", "--base-url", server.url, "--num-prompts", "3", "--input-len", "5")
    assert done.returncode == 0, done.stderr
    assert "Successful requests:                     3" in done.stdout


@pytest.mark.parametrize(
    "words",
    [
        ["serve", "some-model"],
        ["bench", "latency"],
        ["bench", "throughput", "--model", "some-model"],
        ["demo"],
        ["run-batch", "-i", "in", "-o", "out", "--model", "some-model"],
        ["run", "-f", DOCUMENT],
        ["fetch", "s3://models/demo", "/nowhere"],
    ],
    ids=" ".join,
)
def test_what_serves_names_the_package_and_the_extra_before_anything_is_fetched(
    run: Run, tmp_path: Path, words: list[str]
):
    done = run(*words)
    assert done.returncode == exits.MISSING_PACKAGE.code, done.stderr
    (said,) = (line for line in done.stderr.splitlines() if "error" in line)
    pattern = r"The Python package (\w+), .* '\.\[cpu\]' in a clone of Slipway\."
    named = re.fullmatch(f"slipway {words[0]}: error: {pattern}", said)
    assert named is not None, done.stderr
    assert named[1] in SERVING
    assert "Traceback" not in done.stderr
    assert json.loads((tmp_path / "log").read_bytes())["reason"] == "MissingPackage"
    assert not (tmp_path / "cache").exists()


def test_a_package_that_is_there_and_broken_ends_with_its_own_words(run: Run, tmp_path: Path):
    (tmp_path / "msgspec.py").write_text("import part_of_msgspec")
    done = run("serve", "some-model", PYTHONPATH=str(tmp_path))
    assert done.returncode == exits.INTERNAL_ERROR.code
    assert "No module named 'part_of_msgspec'" in done.stderr.splitlines()[-1]
    assert "pip install" not in done.stderr


def test_the_extra_is_that_of_the_package():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    named = (re.match(r"[\w-]+", wanted) for wanted in project["optional-dependencies"]["cpu"])
    assert {name[0].replace("-", "_") for name in named if name} == SERVING
