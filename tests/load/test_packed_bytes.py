"""However a checkpoint stores its weights, what the kernels multiply by is the same to the byte for good."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from packed_forms import CASES, digest

KNOWN: dict[str, str] = json.loads((Path(__file__).parent / "packed_bytes.json").read_text())


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("case", CASES)
def test_packed_bytes_are_those_that_were_written_down(case: str, tmp_path: Path) -> None:
    make, settings = CASES[case]
    assert digest(make(tmp_path), settings) == KNOWN[case]


def test_no_form_is_missing_from_what_was_written_down() -> None:
    assert KNOWN.keys() == CASES.keys()
