"""Reads the tensors of what guesses for a model, each checked against what its configuration promises."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from slipway.load.arrays import Array, DType
from slipway.load.checkpoint import Checkpoint, DummyCheckpoint
from slipway.load.errors import LoadError
from slipway.load.quantized.tensors import Quantized

Shapes = Mapping[str, tuple[int, ...]]


def tensors_of(
    checkpoint: Checkpoint,
    element: DType,
    place: Callable[[str], str],
    shapes: Shapes,
    optional: Shapes | None = None,
) -> Iterator[tuple[str, Array]]:
    """Each tensor by its place, one above the caller's in memory. Raises LoadError where one is missing,
    unknown, misshapen or quantized.

    place     which of these a tensor of the checkpoint is, by its name; "" of one that is not wanted
    optional  of those that need not be there
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
        numbers = stored.read()
        if isinstance(numbers, Quantized):
            raise _bad(f"{name} is quantized, and heads are read from plain weights alone.")
        yield wanted, numbers
    if missing:
        raise _bad(f"There is no {', '.join(sorted(missing))}.")


def _bad(message: str) -> LoadError:
    hint = "Name a checkpoint of this kind of heads, or fetch it again."
    return LoadError("BadCheckpoint", message, hint=hint, argument="speculative_config")
