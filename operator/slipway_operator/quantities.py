"""Kubernetes quantities as numbers: 1000m is 1, 1Gi is 1024Mi, 1e3 is 1k."""

from __future__ import annotations

import re
from fractions import Fraction

_FORM = re.compile(r"([+-]?(?:\d+\.?\d*|\.\d+))(?:([numkMGTPE]|[KMGTPE]i)|[eE]([+-]?\d{1,3}))?")
_DECIMAL = {"n": -3, "u": -2, "m": -1, "k": 1, "M": 2, "G": 3, "T": 4, "P": 5, "E": 6}
_BINARY = {"Ki": 1, "Mi": 2, "Gi": 3, "Ti": 4, "Pi": 5, "Ei": 6}
_NANO = Fraction(1, 10**9)


def amount(value: object) -> Fraction | None:
    """What a quantity amounts to, rounded up to the API server's nano; None where it is not one."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return None
    match = _FORM.fullmatch(str(value).strip())
    if match is None:
        return None
    digits, suffix, exponent = match.groups()
    number = Fraction(digits)
    if suffix in _BINARY:
        number *= 1024 ** _BINARY[suffix]
    elif suffix is not None:
        number *= Fraction(1000) ** _DECIMAL[suffix]
    elif exponent is not None:
        number *= Fraction(10) ** int(exponent)
    return -((-number // _NANO) * _NANO)


def same(one: object, other: object) -> bool:
    """Whether two quantities amount to the same."""
    left, right = amount(one), amount(other)
    return left is not None and left == right
