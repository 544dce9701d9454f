"""What `make test` runs of a matrix, and what is left to `make exhaustive`.

On two cores all cells take hours. Where axes are crossed `make test` has each value of each of them; of one
long axis alone it has the values that are named.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pytest
from _pytest.mark.structures import ParameterSet

Mark = pytest.MarkDecorator
LEFT: tuple[Mark, ...] = (pytest.mark.slow, pytest.mark.exhaustive)
"""Marks of what only `make exhaustive` runs."""


def few(values: Iterable[Any], *kept: Any, marks: Sequence[Mark] = ()) -> list[ParameterSet]:
    """Each value, or tuple of values, of which those that are kept get `marks`; the others are left."""
    every = list(values)
    assert all(value in every for value in kept), f"{kept} of {every}"
    return [_cell(value, marks if value in kept else LEFT) for value in every]


def diagonals(
    rows: Sequence[Any], columns: Sequence[Any], step: int, marks: Sequence[Mark] = ()
) -> list[ParameterSet]:
    """All pairs, of which each `step`-th diagonal is kept and gets `marks`: each value is in one of them."""
    assert step <= min(len(rows), len(columns))
    return [
        _cell((row, column), LEFT if (i + j) % step else marks)
        for i, row in enumerate(rows)
        for j, column in enumerate(columns)
    ]


def _cell(value: Any, marks: Sequence[Mark]) -> ParameterSet:
    return pytest.param(*(value if isinstance(value, tuple) else (value,)), marks=marks)
