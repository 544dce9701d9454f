"""A kernel's folder offers its operation, and imports Triton no sooner than that is asked for."""

from __future__ import annotations

import subprocess
import sys

import pytest
from e2e.ground.patience import scaled

from slipway_kernels.cuda.ahead import operations

PROGRAM = """
import importlib, sys
for name in sys.argv[1:]:
    importlib.import_module(f"slipway_kernels.{name}")
    importlib.import_module(f"slipway_kernels.{name}.reference")
for part in ("linear_w4a16.layout", "sampling.record", "cpu"):
    importlib.import_module(f"slipway_kernels.{part}")
print(*{"triton"} & set(sys.modules))
"""


@pytest.mark.parametrize("operation", operations())
def test_a_folder_offers_all_that_it_names(operation: str) -> None:
    package = __import__(f"slipway_kernels.{operation}", fromlist=["__all__"])
    assert package.__all__
    for name in package.__all__:
        assert getattr(package, name) is not None


def test_what_a_folder_does_not_have_is_missing_as_elsewhere() -> None:
    with pytest.raises(ImportError, match="cannot import name 'no_such'"):
        from slipway_kernels.rms_norm import no_such  # noqa: F401


@pytest.mark.slow
def test_references_layouts_and_the_cpus_kernels_are_imported_without_triton() -> None:
    found = subprocess.run(
        [sys.executable, "-c", PROGRAM, *operations()],
        capture_output=True,
        text=True,
        timeout=scaled(120),
        check=False,
    )
    assert (found.returncode, found.stdout.strip()) == (0, ""), found.stderr
