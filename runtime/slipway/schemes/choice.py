"""Which scheme holds a matrix, told before the matrix is read."""

from __future__ import annotations

from functools import partial
from typing import Any, Protocol

from slipway.load.arrays import FP32, Array, DType, Floats
from slipway.load.dummy import drawn_on_host
from slipway.load.quantized.form import Form
from slipway.schemes.left_out import left_out
from slipway.schemes.packed import CpuScheme
from slipway.schemes.scheme import NewScheme
from slipway_kernels.cpu import Threads


class SchemeChoice(Protocol):
    """Says how matrices are held on one device: one function for each form, so that neighbours fuse.

    What is quantized stays as it is where products can read it, else it is dequantized as it is read. With
    float32, which asks for all the precision there is, everything is dequantized.
    """

    dtype: DType
    """Of what is not quantized, and of activations."""
    gates_alternate: bool
    """Whether gate and up alternate in runs of rows, or stand one above the other."""

    def placed(self, bias: Floats) -> Any:
        """What is added to products, where and in the type in which it is added."""

    def drawn(self, shape: tuple[int, ...], seed: int) -> Any:
        """A random matrix N(0, 0.02²), drawn where that is fast."""

    def in_layer(self, number: int) -> SchemeChoice:
        """For the matrices of that layer; -1: of what is in none."""

    def of(self, form: Form | None, *, row: int = 0, expert: bool = False) -> NewScheme:
        """The scheme of a matrix.

        form    None for plain numbers
        row     where it begins among the neighbours with which it may be fused, or the second of two in one
        expert  whether it is one of many
        """


class Schemes:
    """The schemes of one model on CPU."""

    def __init__(self, dtype: DType, threads: Threads | None = None) -> None:
        self.dtype = dtype
        self.gates_alternate = True
        self._threads = threads
        self._made: dict[Form | None, NewScheme] = {}

    def placed(self, bias: Floats) -> Floats:
        """Sums are in fp32, biases too."""
        return bias

    def drawn(self, shape: tuple[int, ...], seed: int) -> Array:
        return drawn_on_host(shape, seed)

    def in_layer(self, number: int) -> Schemes:
        """All layers are held alike."""
        return self

    def of(self, form: Form | None, *, row: int = 0, expert: bool = False) -> NewScheme:
        """Experts are held as all others, and no row's place matters."""
        kept = form if form is not None and self.keeps(form) else None
        return self._made.setdefault(kept, partial(CpuScheme, self.dtype, kept, self._threads))

    def keeps(self, form: Form) -> bool:
        """Whether a matrix of this form is multiplied as it is stored."""
        return self.dtype != FP32 and CpuScheme.fits(form) and not left_out(form)
