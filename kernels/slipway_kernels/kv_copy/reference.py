"""What copies of pages do, page by page."""

from __future__ import annotations

from torch import Tensor


def copy_rows(source: Tensor, source_rows: list[int], target: Tensor, target_rows: list[int]) -> None:
    """target[target_rows[i]] = source[source_rows[i]]; a row of -1 on either side is padding."""
    for one, other in zip(source_rows, target_rows, strict=True):
        if one >= 0 and other >= 0:
            target[other] = source[one]
