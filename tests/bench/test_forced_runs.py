"""bench/gpu/forced.py: runs over the same tokens, compared in the interpreter."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from e2e.ground.patience import scaled

ROOT = Path(__file__).parents[2]
PROGRAM = """
import json, sys
from pathlib import Path
import torch
from faults import FAULTS
from forced import apart, apart_as_prompt, error_of_roundings, explained, forced
from in_process import INTERPRETED, Engine
from shapes import written
from slipway.engine.params import SamplingParams

work = [([20, 300, 21, 301], SamplingParams(3, temperature=0.9))]
tokens = [[7, 400, 7]]  # none that it would draw
engine = Engine(written("tiny", Path(sys.argv[1])), dtype="float32", processors=True, **INTERPRETED)
base = forced(engine, work, tokens)
matrices = []
engine.worker._move(lambda tensor: matrices.append(tensor) or tensor)
found = {"bound": explained(engine)}
found["prompt"] = apart_as_prompt(engine, work, tokens, base).error
for name, fault in FAULTS.items():
    with fault(engine):
        found[name] = apart(forced(engine, work, tokens), base).error
matrices[0][0, 0] += 0.02  # one number, by a standard deviation
found["fault: a number"] = apart(forced(engine, work, tokens), base).error
found["fp8"] = error_of_roundings(4, 2048, torch.bfloat16, fp8=True)
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def errors(tmp_path_factory: pytest.TempPathFactory) -> dict[str, float]:
    """Of runs in a process of their own: the harness has Triton interpret for good."""
    places = [str(ROOT / "bench" / "gpu"), str(ROOT / "bench"), *sys.path]
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path_factory.mktemp("model"))],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(places)},
        capture_output=True,
        text=True,
        timeout=scaled(120),
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.slow
def test_the_same_tokens_in_a_prompt_have_the_same_logits_but_for_rounding(errors) -> None:
    assert 0.0 < errors["prompt"] < errors["bound"] < 1e-4


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["a matrix", "a page", "a number"])
def test_a_fault_is_further_apart_than_rounding_explains(fault: str, errors) -> None:
    assert errors[f"fault: {fault}"] > 2 * errors["bound"]


@pytest.mark.slow
def test_fp8_is_given_less_than_a_wrong_page_is_apart(errors) -> None:
    assert errors["fault: a page"] > errors["fp8"]
