"""The table of goals: each row has tests that exist, and a verdict that follows from them."""

from __future__ import annotations

from pathlib import Path

import pytest
from e2e.goals import GOALS, rows

ROOT = Path(__file__).parents[2]
TESTS = sorted({test for goal in GOALS for test in goal.tests})


def verdicts(ended: dict[str, str]) -> dict[str, str]:
    return {row: verdict for row, verdict, _ in rows(ended)}


def test_the_rows_are_those_of_the_plan():
    assert [goal.row for goal in GOALS] == [
        *(f"P{number}" for number in range(1, 15)),
        *(f"A{number}" for number in range(1, 16)),
    ]


@pytest.mark.parametrize("test", TESTS)
def test_a_test_of_a_row_exists(test):
    path, _, name = test.partition("::")
    assert (ROOT / path).exists()
    assert not name or f"def {name}(" in (ROOT / path).read_text(encoding="utf-8")


def test_a_row_passes_where_all_of_its_tests_do_and_nothing_is_missing():
    ended = {f"{test}::one" if "::" not in test else f"{test}[case]": "passed" for test in TESTS}
    found = verdicts(ended)
    for goal in GOALS:
        assert found[goal.row] == ("fail" if goal.missing else "needs a GPU" if goal.gpu else "pass")


@pytest.mark.parametrize("outcome", ["failed", "skipped"])
def test_a_row_fails_where_one_of_its_tests_does_or_is_left_out(outcome):
    (test, *_) = next(goal for goal in GOALS if goal.row == "A13").tests
    assert verdicts({f"{test}::one": "passed"})["A13"] == "pass"
    assert verdicts({f"{test}::one": "passed", f"{test}::two": outcome})["A13"] == "fail"
    assert set(verdicts({}).values()) == {"fail"}


def test_a_name_that_begins_like_another_is_not_of_it():
    assert verdicts({"e2e/test_surge_and_more.py::one": "passed"})["A13"] == "fail"
