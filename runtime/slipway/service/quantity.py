"""Kubernetes' quantities as numbers: 500m is a half, 1Gi is 1,073,741,824, 1e3 is 1k."""

from __future__ import annotations

import re
from fractions import Fraction

_FORM = re.compile(r"([+-]?(?:\d+\.?\d*|\.\d+))(?:([numkMGTPE]|[KMGTPE]i)|[eE]([+-]?\d{1,3}))?")
_SCALES = {
    **{
        unit: Fraction(1000) ** power
        for power, unit in enumerate(("n", "u", "m", "", "k", "M", "G", "T", "P", "E"), -3)
    },
    **{unit: Fraction(1024) ** power for power, unit in enumerate(("Ki", "Mi", "Gi", "Ti", "Pi", "Ei"), 1)},
}
_NANO = Fraction(1, 10**9)


def parse(value: object) -> Fraction | None:
    """The exact number, in cores or bytes; None where it is no quantity."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return None
    match = _FORM.fullmatch(str(value).strip())
    if match is None:
        return None
    digits, suffix, exponent = match.groups()
    return Fraction(digits) * _SCALES[suffix or ""] * Fraction(10) ** int(exponent or 0)


def stored(value: object) -> Fraction | None:
    """The number that the API server makes of it: rounded up to its nano."""
    number = parse(value)
    return None if number is None else -((-number // _NANO) * _NANO)


def same(one: object, other: object) -> bool:
    """Whether two quantities are one number to the API server, as 1000m and 1 are, or 1Gi and 1024Mi."""
    left, right = stored(one), stored(other)
    return left is not None and left == right


def amount(quantity: str) -> Fraction:
    """The same of a quantity that has been checked, as one of the document has."""
    number = parse(quantity)
    assert number is not None
    return number


def written(number: Fraction) -> str:
    """The shortest exact spelling with a binary unit, or without one where none fits."""
    for unit in ("Pi", "Ti", "Gi", "Mi", "Ki"):
        if number >= _SCALES[unit] and (number / _SCALES[unit]).denominator == 1:
            return f"{number / _SCALES[unit]}{unit}"
    return str(number) if number.denominator == 1 else f"{-(-number * 1000 // 1)}m"
