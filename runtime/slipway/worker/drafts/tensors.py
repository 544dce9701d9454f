"""Reads the tensors of what guesses for a model, each checked against what its configuration promises."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from slipway.load.arrays import FP32, Array, DType, Floats
from slipway.load.checkpoint import Checkpoint, DummyCheckpoint
from slipway.load.cut import WHOLE
from slipway.load.errors import LoadError
from slipway.load.quantized.form import Form
from slipway.load.quantized.tensors import Quantized, in_type
from slipway.schemes.choice import SchemeChoice
from slipway.schemes.fused import FusedLinear, gated, stacked
from slipway.worker.drafts.parted import Cuts
from slipway_kernels.cpu.binding import floats

Shapes = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class Tensors:
    """Tensors by their places; names are places without .weight and .bias.

    forms  of the matrices that are quantized
    """

    arrays: Mapping[str, Array | Quantized]
    forms: Mapping[str, Form]

    @classmethod
    def of(
        cls,
        checkpoint: Checkpoint,
        element: DType,
        place: Callable[[str], str],
        shapes: Shapes,
        optional: Shapes,
        cuts: Cuts | None = None,
    ) -> Tensors:
        """As of `tensors_of`."""
        cuts = cuts or {}
        forms = {place(name): form for name, form in checkpoint.forms().items()}
        forms |= {name: forms[name].cut(cut.columns) for name, cut in cuts.items() if cut and name in forms}
        return cls(dict(tensors_of(checkpoint, element, place, shapes, optional, cuts)), forms)

    def __contains__(self, place: str) -> bool:
        return place in self.arrays

    def plain(self, place: str, dtype: DType) -> Array:
        return in_type(self.arrays[place], dtype)

    def vector(self, name: str) -> Floats:
        return floats(self.plain(f"{name}.weight", FP32))

    def linear(self, names: Sequence[str], schemes: SchemeChoice) -> FusedLinear:
        """Matrices beneath each other, each held as it is stored, with biases where the first one has one."""
        sizes = {name: self._shape(name)[0] for name in names}
        held, row = {}, 0
        for name, size in sizes.items():
            held[name] = schemes.of(self._form(name), row=row)
            row += size
        linear = stacked(self._shape(names[0])[1], sizes, held, bias=f"{names[0]}.bias" in self)
        return self._loaded(linear, schemes)

    def gated(self, gate: str, up: str, schemes: SchemeChoice) -> FusedLinear:
        """Two matrices that alternate, each held as it is stored."""
        held = {name: schemes.of(self._form(name)) for name in (gate, up)}
        sizes = dict.fromkeys((gate, up), self._shape(gate)[0])
        linear = gated(self._shape(gate)[1], sizes, held, bias=f"{gate}.bias" in self)
        return self._loaded(linear, schemes)

    def pieces(self, names: Sequence[str], schemes: SchemeChoice, count: int) -> list[FusedLinear]:
        """As of `linear`, their columns cut into so many pieces, of which the first has the biases. What is
        cut is held plain."""
        if count == 1:
            return [self.linear(names, schemes)]
        width = self._shape(names[0])[1] // count
        pieces: list[dict[str, Array | Quantized]] = [{} for _ in range(count)]
        for place in (f"{name}.weight" for name in names):
            for number, piece in enumerate(pieces):
                columns = slice(number * width, (number + 1) * width)
                piece[place] = self.plain(place, schemes.dtype)[:, columns]
        pieces[0] |= {place: self.arrays[place] for name in names if (place := f"{name}.bias") in self}
        return [Tensors(piece, {}).linear(names, schemes) for piece in pieces]

    def _loaded(self, linear: FusedLinear, schemes: SchemeChoice) -> FusedLinear:
        for name in linear.segments:
            linear.load(name, self.arrays[f"{name}.weight"])
            if linear.bias is not None:
                linear.load(name, floats(self.plain(f"{name}.bias", FP32)))
        linear.finish(schemes.placed)
        return linear

    def _shape(self, name: str) -> tuple[int, ...]:
        return self.arrays[f"{name}.weight"].shape

    def _form(self, name: str) -> Form | None:
        return self.forms.get(f"{name}.weight")


def tensors_of(
    checkpoint: Checkpoint,
    element: DType,
    place: Callable[[str], str],
    shapes: Shapes,
    optional: Shapes | None = None,
    cuts: Cuts | None = None,
) -> Iterator[tuple[str, Array | Quantized]]:
    """Each tensor by its place, one above the caller's in memory. Raises LoadError where one is missing,
    unknown or misshapen.

    place     which of these a tensor of the checkpoint is, by its name; "" of one that is not wanted
    optional  of those that need not be there
    cuts      of a rank, what it reads of them
    """
    missing = dict(shapes)
    possible = missing | dict(optional or {})
    if isinstance(checkpoint, DummyCheckpoint):
        checkpoint.shapes = shapes
    for name, stored in checkpoint.stored(element):
        wanted = place(name)
        if not wanted:
            continue
        shape = possible.pop(wanted, None)
        if shape != stored.shape:
            expected = list(shape) if shape else "no such tensor"
            raise _bad(f"{name} has shape {list(stored.shape)}; expected: {expected}.")
        missing.pop(wanted, None)
        if (cut := (cuts or {}).get(wanted, WHOLE)) is not None:
            yield wanted, stored.read(cut)
    if missing:
        raise _bad(f"There is no {', '.join(sorted(missing))}.")


def _bad(message: str) -> LoadError:
    hint = "Name a checkpoint of this kind of heads, or fetch it again."
    return LoadError("BadCheckpoint", message, hint=hint, argument="speculative_config")
