"""Quantities are equal where they amount to the same."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipway_operator.quantities import amount, same


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
    assert amount(text) is None


@given(st.integers(0, 10**12), st.sampled_from(["", "m", "k", "Ki", "M", "Mi", "G", "Gi"]))
def test_a_number_and_its_thousandfold_milli_are_the_same(number: int, suffix: str):
    whole = amount(f"{number}{suffix}")
    assert whole is not None
    assert amount(f"{whole * 1000}m") == whole
    assert same(f"{number}{suffix}", f"{number}.000{suffix}")
    assert whole / (number or 1) in (amount(f"1{suffix}"), Fraction(0))
