"""What is known of a quantized matrix before it is read: enough to choose its scheme."""

from __future__ import annotations

from dataclasses import dataclass

from slipway.load.arrays import FP16, DType


@dataclass(frozen=True, slots=True)
class GroupedForm:
    """Of a `Grouped`.

    bits, group  as there; a scale for the whole row has the row's length as its group
    minimums     whether there are any
    scales       their type
    ordered      whether the columns stand in an order of their own (act-order)
    """

    bits: int
    group: int
    minimums: bool = False
    scales: DType = FP16
    ordered: bool = False


@dataclass(frozen=True, slots=True)
class ScaledForm:
    """Of a `Scaled`: type of the values, and rows and columns that share a scale.

    block   None where a scale is for a row or for the whole matrix
    static  whether one scale of all activations was measured beforehand
    """

    values: DType
    block: tuple[int, int] | None = None
    static: bool = False


Form = GroupedForm | ScaledForm
