"""The sampler's kernel, built alone: as it is shipped, and for one instruction set throughout."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from slipway_kernels import sampling
from slipway_kernels.build import compiler, flags_of
from slipway_kernels.sampling.op import Sampler

SOURCE = Path(sampling.__file__).parent / "kernel.cpp"
BUILDS = {
    "shipped": [],
    "oldest instructions": ["-DEACH_ISA="],
    "this machine's instructions": ["-DEACH_ISA=", "-march=native"],
}


@pytest.fixture(scope="session", params=BUILDS)
def each_build(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[int], Sampler]:
    """A sampler for a vocabulary size, by every build in turn."""
    return build(BUILDS[request.param], tmp_path_factory.mktemp("sampling"))


@pytest.fixture(scope="session")
def sampler(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], Sampler]:
    """A sampler for a vocabulary size, by the shipped build."""
    return build([], tmp_path_factory.mktemp("sampling"))


def build(flags: list[str], folder: Path) -> Callable[[int], Sampler]:
    library = folder / "sampling.so"
    command = [*compiler(), *flags_of(SOURCE), *flags, "-shared", "-o", str(library), str(SOURCE)]
    subprocess.run(command, check=True)
    return cache(lambda vocab: Sampler(vocab, library))
