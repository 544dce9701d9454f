"""What an operation does for one layout of its operands, found once: later calls start its kernels alone.

Checking shapes, choosing tiles and naming arguments takes ten times as long as starting the kernels. A step
calls each operation once a layer, and all layers have the same shapes. So a call is looked up by all that it
may depend on: everything but addresses, and the numbers in tensors.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import fields, is_dataclass
from functools import cache, partial, wraps
from operator import attrgetter, itemgetter
from typing import Any, NamedTuple, ParamSpec, TypeVar

import torch
from torch import Tensor
from triton import knobs

from slipway_kernels.cuda.bound import Bound
from slipway_kernels.cuda.lasting import LASTING
from slipway_kernels.cuda.specialization import ALIGNMENT, recorded

P = ParamSpec("P")
R = TypeVar("R")
Step = Callable[[list[Tensor], list[int], int], object]
"""Part of an operation: takes its tensors, their addresses, and the stream."""
Result = Callable[[Sequence[object], Mapping[str, object], Sequence[Tensor]], Any]
"""What an operation returns, from its arguments by place and by name, and its tensors."""

INTERPRETED = bool(knobs.runtime.interpret)
"""Whether Triton's interpreter runs the kernels of this process."""
MOST = 256
"""Layouts that an operation remembers. A step of prompts may have a length that never comes again."""

_PLAIN = frozenset((int, float, bool, str, type(None), torch.dtype, torch.device, range))


def _take(values: Iterable[Any], parts: list[Any], tensors: list[Tensor], addresses: list[int]) -> None:
    """Take operands apart: into what is equal for calls that do the same, and into all of their tensors."""
    for value in values:
        kind: Any = type(value)
        if kind in _PLAIN:
            parts.append(value)
        elif isinstance(value, Tensor):
            address = value.data_ptr()
            parts += (value.shape, value.stride(), value.dtype, value.get_device(), address % ALIGNMENT)
            tensors.append(value)
            addresses.append(address)
        elif kind in LASTING:
            known = _taken.get(id(value)) or _taken_apart(value)
            parts += known.parts
            tensors += known.tensors
            addresses += known.addresses
        else:
            parts.append(kind)
            _take(_members(kind)(value), parts, tensors, addresses)


class _Parts:
    """An operand that lasts, taken apart."""

    def __init__(self, value: Any) -> None:
        kind: Any = type(value)
        number = id(value)
        self.parts: list[object] = [kind]
        self.tensors: list[Tensor] = []
        self.addresses: list[int] = []
        _take(_members(kind)(value), self.parts, self.tensors, self.addresses)
        self.until = weakref.ref(value, lambda gone: _taken.pop(number, None))


_taken: dict[int, _Parts] = {}
"""Operands that last, by their `id`, until they have gone."""


def _taken_apart(value: Any) -> _Parts:
    known = _taken[id(value)] = _Parts(value)
    return known


@cache
def _members(kind: type) -> Callable[[Any], tuple[object, ...]]:
    """How to take an operand apart that is no tensor and no number: a data class by its fields, others by
    what their class names as `operands`. Raises TypeError for what has neither."""
    if is_dataclass(kind):
        names = [field.name for field in fields(kind)]
        first = attrgetter(*names)
        return first if len(names) > 1 else lambda value: (first(value),)
    if hasattr(kind, "operands"):
        return attrgetter("operands")
    if issubclass(kind, tuple):
        return tuple
    raise TypeError(f"an operand is a {kind.__name__}: give its class `operands`, its parts.")


class _Capture:
    """What an operation does, while it does it for a layout for the first time."""

    def __init__(self, tensors: list[Tensor]) -> None:
        self.tensors = tensors
        self.steps: list[Step] | None = []
        """None: a kernel reads or writes what is none of the operands, so that it cannot be repeated."""

    def source(self, tensor: Tensor) -> tuple[int, int] | None:
        """Which operand this is or is a part of, and where in it, in bytes; None where that is not clear."""
        for number, operand in enumerate(self.tensors):
            if operand is tensor:
                return number, 0
        begin, end = _extent(tensor)
        holding: dict[int, int] = {}
        for number, operand in enumerate(self.tensors):
            first, last = _extent(operand)
            if first <= begin and end <= last:
                holding.setdefault(begin - first, number)
        if len(holding) != 1:
            return None
        ((offset, number),) = holding.items()
        return number, offset

    def add(self, bound: Bound) -> None:
        found = [self.source(tensor) for tensor in bound.tensors]
        bound.tensors.clear()
        sources = [one for one in found if one is not None]
        if self.steps is None or len(sources) < len(found):
            self.steps = None
            return
        run = bound.run

        def start(tensors: list[Tensor], addresses: list[int], stream: int) -> None:
            run([addresses[number] + offset for number, offset in sources], stream)

        self.steps.append(start)

    def follow(self, function: Callable[..., object], arguments: Sequence[object]) -> None:
        found = {n: self.again(one) for n, one in enumerate(arguments) if isinstance(one, Tensor)}
        views = [(place, view) for place, view in found.items() if view is not None]
        if self.steps is None or len(views) < len(found):
            self.steps = None
            return
        numbers = [None if place in found else argument for place, argument in enumerate(arguments)]

        def call(tensors: list[Tensor], addresses: list[int], stream: int) -> None:
            full = numbers.copy()
            for place, view in views:
                full[place] = view(tensors)
            function(*full)

        self.steps.append(call)

    def again(self, tensor: Tensor) -> Callable[[Sequence[Tensor]], Tensor] | None:
        """How to have this operand, or part of one, of other tensors; None where it is neither."""
        source = self.source(tensor)
        if source is None:
            return None
        number, offset = source
        if self.tensors[number] is tensor:
            return itemgetter(number)
        size, shape, strides, dtype = tensor.element_size(), tensor.shape, tensor.stride(), tensor.dtype

        def view(tensors: Sequence[Tensor]) -> Tensor:
            whole = tensors[number]
            begin = (whole.storage_offset() * whole.element_size() + offset) // size
            return whole.new_empty(0, dtype=dtype).set_(whole.untyped_storage(), begin, shape, strides)

        return view

    def make(self, make: Callable[[], Tensor]) -> Tensor:
        def again(tensors: list[Tensor], addresses: list[int], stream: int) -> None:
            tensors.append(make())
            addresses.append(tensors[-1].data_ptr())

        self.tensors.append(make())
        if self.steps is not None:
            self.steps.append(again)
        return self.tensors[-1]

    def tape(self, given: Sequence[object], named: Mapping[str, object], result: object) -> _Tape | None:
        """What later calls repeat; None where the operation has to run in full each time."""
        several = type(result) is tuple
        parts = [self._part(given, named, one) for one in (result if type(result) is tuple else (result,))]
        kept = [one for one in parts if one is not None]
        if self.steps is None or len(kept) < len(parts) or not self.tensors:
            return None
        if not several:
            return _Tape(self.steps, kept[0])
        return _Tape(self.steps, lambda *call: tuple(one(*call) for one in kept))

    def _part(self, given: Sequence[object], named: Mapping[str, object], part: object) -> Result | None:
        """How to find what is returned."""
        if part is None:
            return lambda given, named, tensors: None
        for place, argument in enumerate(given):
            if argument is part:
                return lambda given, named, tensors: given[place]
        for name, argument in named.items():
            if argument is part:
                return lambda given, named, tensors: named[name]
        view = self.again(part) if isinstance(part, Tensor) else None
        return None if view is None else lambda given, named, tensors: view(tensors)


class _Tape(NamedTuple):
    steps: list[Step]
    result: Result


UNKNOWN = _Tape([], lambda *call: None)
"""In the place of a layout that has not come yet."""


_capturing: ContextVar[_Capture | None] = ContextVar("capturing", default=None)


def prepared(operation: Callable[P, R]) -> Callable[P, R]:
    """Have an operation remember what it started for each layout of its operands.

    It may depend on shapes, strides, types and all that is no tensor; on which operands are the same; never
    on numbers in tensors. It starts kernels by `launch`, has torch compute by `follow` alone, makes tensors
    by `scratch`, and returns None, arguments, or tensors that are parts of them or made by it.
    """
    tapes: dict[object, _Tape | None] = {}

    @wraps(operation)
    def call(*given: P.args, **named: P.kwargs) -> R:
        if INTERPRETED or _capturing.get() is not None or recorded() is not None:
            return operation(*given, **named)
        parts: list[object] = [*named]
        tensors: list[Tensor] = []
        addresses: list[int] = []
        _take(given, parts, tensors, addresses)
        if named:
            _take(named.values(), parts, tensors, addresses)
        if len(set(addresses)) < len(addresses):  # which of them are one decides what is written where
            parts.append(tuple(map(addresses.index, addresses)))
        layout = tuple(parts)
        tape = tapes.get(layout, UNKNOWN)
        if tape is UNKNOWN:
            capture = _Capture(tensors)
            token = _capturing.set(capture)
            try:
                result = operation(*given, **named)
            finally:
                _capturing.reset(token)
            if len(tapes) == MOST:
                del tapes[next(iter(tapes))]
            tapes[layout] = capture.tape(given, named, result)
            return result
        if tape is None:
            return operation(*given, **named)
        steps, returned = tape
        stream = stream_of(tensors[0])
        for step in steps:
            step(tensors, addresses, stream)
        again: R = returned(given, named, tensors)
        return again

    call.tapes = tapes  # type: ignore[attr-defined]
    return call


def note(bound: Bound) -> None:
    """A launch belongs to the operation that is prepared now, if one is."""
    capture = _capturing.get()
    if capture is not None:
        capture.add(bound)


def follow(function: Callable[..., object], *arguments: object) -> None:
    """Call what has torch compute, as part of the operation that is prepared now, if one is.

    Its tensors are operands, parts of them, or made by `scratch`; its other arguments are numbers.
    """
    function(*arguments)
    capture = _capturing.get()
    if capture is not None:
        capture.follow(function, arguments)


def scratch(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """An uninitialized tensor for the operation's own use. Every call makes another."""
    make: Callable[[], Tensor] = partial(torch.empty, shape, dtype=dtype, device=device)
    capture = _capturing.get()
    return make() if capture is None else capture.make(make)


def stream_of(tensor: Tensor) -> int:
    """The handle of the current stream of a tensor's device."""
    device = tensor.get_device()
    return torch._C._cuda_getCurrentRawStream(device) if device >= 0 else 0


def _extent(tensor: Tensor) -> tuple[int, int]:
    """The addresses from which and to which its numbers lie."""
    begin = tensor.data_ptr()
    if not tensor.numel():
        return begin, begin
    reach = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return begin, begin + (reach + 1) * tensor.element_size()
