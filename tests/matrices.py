"""What `make test` runs of a matrix, and what is left to `make exhaustive`.

A cell is worth its seconds once: in `make test` each value of each axis has one at least, on two cores all of
them take hours.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pytest
from _pytest.mark.structures import ParameterSet


def few(values: Iterable[Any], *kept: Any) -> list[ParameterSet]:
    """Each value, or tuple of values; all but those that are kept are for `make exhaustive`."""
    every = list(values)
    assert all(value in every for value in kept), f"{kept} of {every}"
    return [_cell(value, value in kept) for value in every]


def diagonals(
    rows: Sequence[Any], columns: Sequence[Any], step: int, *marks: pytest.MarkDecorator
) -> list[ParameterSet]:
    """All pairs, of which each `step`-th diagonal is kept, with these marks: each value is in one of them."""
    assert step <= min(len(rows), len(columns))
    return [
        _cell((row, column), (i + j) % step == 0, *marks)
        for i, row in enumerate(rows)
        for j, column in enumerate(columns)
    ]


def _cell(value: Any, kept: bool, *marks: pytest.MarkDecorator) -> ParameterSet:
    values = value if isinstance(value, tuple) else (value,)
    return pytest.param(*values, marks=marks if kept else (pytest.mark.slow, pytest.mark.exhaustive))
