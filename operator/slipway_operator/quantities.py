"""Quantities as the API server stores and compares them: 1000m is 1, 1Gi is 1024Mi, 1e3 is 1k."""

from __future__ import annotations

from fractions import Fraction

from slipway.service.quantity import parse

_NANO = Fraction(1, 10**9)


def amount(value: object) -> Fraction | None:
    """What a quantity amounts to, rounded up to the API server's nano; None where it is not one."""
    number = parse(value)
    return None if number is None else -((-number // _NANO) * _NANO)


def same(one: object, other: object) -> bool:
    """Whether two quantities amount to the same."""
    left, right = amount(one), amount(other)
    return left is not None and left == right
