"""Kubernetes' quantities as numbers: 500m is a half, 1Gi is 1,073,741,824."""

from __future__ import annotations

from fractions import Fraction

SCALES = {
    "m": Fraction(1, 1000),
    "": Fraction(1),
    **{unit: Fraction(1000**power) for power, unit in enumerate(("k", "M", "G", "T", "P"), 1)},
    **{unit: Fraction(1024**power) for power, unit in enumerate(("Ki", "Mi", "Gi", "Ti", "Pi"), 1)},
}


def amount(quantity: str) -> Fraction:
    """The exact number, in cores or bytes, of a quantity that has the form of `spec.Quantity`."""
    number = quantity.rstrip("mkKMGTPi")
    return Fraction(number) * SCALES[quantity[len(number) :]]


def written(number: Fraction) -> str:
    """The shortest exact spelling with a binary unit, or without one where none fits."""
    for unit in ("Pi", "Ti", "Gi", "Mi", "Ki"):
        if number >= SCALES[unit] and (number / SCALES[unit]).denominator == 1:
            return f"{number / SCALES[unit]}{unit}"
    return str(number) if number.denominator == 1 else f"{-(-number * 1000 // 1)}m"
