from __future__ import annotations

from fractions import Fraction

import pytest

from slipway.service.quantity import amount, written


@pytest.mark.parametrize(
    ("quantity", "number"),
    [("500m", Fraction(1, 2)), ("2", 2), ("1.5G", 1_500_000_000), ("1048576Ki", 1 << 30), ("3Pi", 3 << 50)],
)
def test_every_unit_of_the_document_has_its_scale(quantity: str, number: Fraction) -> None:
    assert amount(quantity) == number


@pytest.mark.parametrize(
    ("number", "text"),
    [(1 << 30, "1Gi"), (1536 << 20, "1536Mi"), (1000, "1000"), (Fraction(1, 4), "250m")],
)
def test_an_amount_is_written_in_the_largest_binary_unit_that_fits_exactly(number: int, text: str) -> None:
    assert written(Fraction(number)) == text
