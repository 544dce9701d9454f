"""Which operands last, with all their tensors, longer than the calls that take them."""

from __future__ import annotations

from typing import TypeVar

T = TypeVar("T")

LASTING: set[type] = set()


def lasting(kind: type[T]) -> type[T]:
    """Have operands of a frozen data class, which has a `weakref_slot`, taken apart once: their tensors stay
    where they are."""
    LASTING.add(kind)
    return kind
