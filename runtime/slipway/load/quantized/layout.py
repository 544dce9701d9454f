"""How the tensors of one linear layer make its matrix: what each format implements, and how it complains."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from slipway.load.arrays import Array, DType, is_float
from slipway.load.cut import WHOLE, Cut
from slipway.load.errors import LoadError
from slipway.load.quantized.form import Form
from slipway.load.quantized.tensors import Grouped, Scaled

Pieces = Mapping[str, Array]
"""The tensors of one layer by the last part of their names: `qweight`, `scales`, …"""


class Layout(Protocol):
    """One way of storing a linear layer. Equal layouts read alike."""

    @property
    def wanted(self) -> Mapping[str, bool]:
        """Pieces by name: True for those that must be there, False for those that may."""

    def form(self, name: str, pieces: Pieces) -> Form:
        """What `read` will give, by the pieces' shapes and types: their numbers are not read, except for
        the order of columns. Raises LoadError where the pieces of the layer `name` do not fit each other."""

    def promised(self, name: str, k: int) -> Form:
        """The same of a matrix of k columns whose pieces are not here, as the configuration has it.

        Raises LoadError where its groups do not divide them.
        """

    def shape(self, name: str, pieces: Pieces) -> tuple[int, int]:
        """Of the matrix that `read` gives whole. Raises LoadError where the pieces make none."""

    def read(self, name: str, pieces: Pieces, cut: Cut = WHOLE) -> Grouped | Scaled:
        """These rows and columns of the layer `name`, cut before they are unpacked, checked as by `form`.

        Raises LoadError where the layer is wrong.
        """


def unfit(name: str, why: str, hint: str = "Fetch the checkpoint again.") -> LoadError:
    """The error for a layer whose pieces make no matrix: `why` follows its name."""
    return LoadError("BadCheckpoint", f"The quantized layer {name} {why}.", hint=hint)


def unsupported(
    what: str, hint: str = "Use an unquantized checkpoint, or one of another format."
) -> LoadError:
    """The error for a format, or a part of it, that we lack."""
    return LoadError(
        "UnsupportedFormat", f"{what}, which is not supported.", hint=hint, argument="quantization"
    )


def check_piece(
    name: str, piece: str, pieces: Pieces, shape: Sequence[int], types: Sequence[DType] = ()
) -> None:
    """Raise LoadError unless a piece has this shape, and one of these types or any float."""
    tensor = pieces[piece]
    if tuple(tensor.shape) != tuple(shape):
        raise unfit(
            name,
            f"has {piece} of shape {list(tensor.shape)}, and its other tensors ask for {list(shape)}",
            "config.json and weights are of different models or versions: fetch both again.",
        )
    if tensor.dtype not in types if types else not is_float(tensor.dtype):
        wanted = " or ".join(map(str, types)) or "a float type"
        raise unfit(name, f"has {piece} stored as {tensor.dtype}, and not as {wanted}")


def matrix(name: str, piece: str, pieces: Pieces, types: Sequence[DType]) -> Array:
    """The piece that the others are measured by. Raises LoadError unless it is a matrix of these types."""
    tensor = pieces[piece]
    if tensor.ndim != 2:
        raise unfit(name, f"has {piece} of {tensor.ndim} dimensions, which is no matrix")
    check_piece(name, piece, pieces, tensor.shape, types)
    return tensor


def group_of(name: str, k: int, group: int) -> int:
    """Columns that share a scale: `group`, or all k for -1. Raises LoadError unless it divides k."""
    size = k if group == -1 else group
    if k % size:
        raise unfit(name, f"has {k} columns, which groups of {size} do not divide")
    return size
