from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipway.service.quantity import amount, same, stored, written


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


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("1000m", "1"),
        ("1Gi", "1024Mi"),
        ("1e3", "1k"),
        ("1E3", "1k"),
        ("0.5", "500m"),
        (".5", "500m"),
        (2, "2"),
        (1.5, "1500m"),
        ("1E", "1000P"),
        ("0", "0Ki"),
        ("+1", "1"),
        ("1500u", "1.5m"),
        ("0.1n", "1n"),
    ],
)
def test_two_spellings_of_one_amount_are_the_same(one, other):
    assert same(one, other)


@pytest.mark.parametrize(("one", "other"), [("1G", "1Gi"), ("1", "1m"), ("1M", "1m"), ("8", "4"), ("x", "x")])
def test_other_amounts_and_other_texts_are_not_the_same(one, other):
    assert not same(one, other)


@pytest.mark.parametrize("text", ["", "Gi", "1 Gi", "1Zi", "--1", "1e", True, None, [1], "1.2.3"])
def test_what_is_no_quantity_has_no_amount(text):
    assert stored(text) is None


@given(st.integers(0, 10**12), st.sampled_from(["", "m", "k", "Ki", "M", "Mi", "G", "Gi"]))
def test_a_number_and_its_thousandfold_milli_are_the_same(number: int, suffix: str):
    whole = stored(f"{number}{suffix}")
    assert whole is not None
    assert stored(f"{whole * 1000}m") == whole
    assert same(f"{number}{suffix}", f"{number}.000{suffix}")
    assert whole / (number or 1) in (stored(f"1{suffix}"), Fraction(0))
