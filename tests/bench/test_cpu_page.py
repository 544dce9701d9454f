"""The page of CPU benchmarks."""

from __future__ import annotations

import json
from pathlib import Path

from cpu_page import page

BENCH = Path(__file__).parents[2] / "bench"


def test_the_page_has_what_the_results_have() -> None:
    results = [json.loads(path.read_text()) for path in sorted((BENCH / "results" / "cpu").glob("*.json"))]
    assert results
    assert (BENCH / "cpu.md").read_text() == page(results), "python bench/cpu.py --page writes it"
