"""The one tensor of a file of torch.save, read without torch and without running what the file says.

Such a file is a zip archive whose `data.pkl` is a program. torch's own reader lets that choose functions to
call, with `weights_only` fewer of them: 200 bytes still have it fill the memory, or hash for years. Here a
program has what the pickle of one dense tensor needs, and makes nothing but texts, whole numbers and tuples.
"""

from __future__ import annotations

import math
import pickletools
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

SIGNATURE = b"PK\x03\x04"
"""What the file begins with."""
MAX_PROGRAM = 4 << 10
"""Bytes; that of a tensor has some 200."""
MAX_DIRECTORY = 4 << 10
"""Bytes of the archive's table, in which a tensor has some six entries."""
_TYPES = {"torch FloatStorage": "F32", "torch HalfStorage": "F16", "torch BFloat16Storage": "BF16"}
_BYTES = {"F32": 4, "F16": 2, "BF16": 2}
_VALUES = ("BINUNICODE", "SHORT_BINUNICODE", "BININT", "BININT1", "BININT2", "LONG1")
_TUPLES = {"EMPTY_TUPLE": 0, "TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
_MARK = object()


class _Name(str):
    """Of a module, a space, and what is in it."""


@dataclass(frozen=True, slots=True)
class _Storage:
    """Stands for ("storage", type, key, device, numbers)."""

    said: Any


@dataclass(frozen=True, slots=True)
class _Tensor:
    """Stands for that of (storage, offset, shape, strides, …)."""

    said: Any


class _OtherThing(Exception):
    """The program makes what no dense tensor needs."""


def read(file: bytes) -> tuple[str, list[int], bytes]:
    """Its type as safetensors calls it, its shape and its numbers.

    Raises ValueError with what the file is or holds instead.
    """
    try:
        records = _records(memoryview(file))
        (program,) = (name for name in records if name.endswith("/data.pkl"))
        storage, offset, shape, strides = _run(bytes(records[program])).said[:4]
        _, kind, key, _, count = storage.said
        # Of whatever else the program may have made, not even a hash or a text is asked.
        if type(kind) is not _Name or type(key) is not str:
            raise ValueError
        stored = records[f"{program.removesuffix('data.pkl')}data/{key}"]
        order = records.get(program.removesuffix("data.pkl") + "byteorder", b"little")
        if not all(type(size) is int and 0 <= size < 1 << 31 for size in (offset, count, *shape, *strides)):
            raise ValueError
    except _OtherThing as error:
        raise ValueError(f"holds {error} and not one dense tensor; send a tensor alone") from None
    except (ValueError, KeyError, IndexError, TypeError, AttributeError, struct.error):
        raise ValueError("is no whole file of torch.save with one dense tensor") from None
    if kind not in _TYPES:
        raise ValueError(f"holds a {kind[:40].replace(' ', '.')}, and must hold {', '.join(_BYTES)}")
    name = _TYPES[kind]
    if offset or count != math.prod(shape) or not _contiguous(shape, strides):
        raise ValueError("is a view of other numbers; send it as tensor.contiguous().clone()")
    if bytes(order) != b"little" or len(stored) != count * _BYTES[name]:
        raise ValueError("has a tensor whose shape is not that of its bytes")
    return name, list(shape), bytes(stored)


def _contiguous(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether numbers lie in their order; how far apart the one row of a dimension is says nothing."""
    if len(shape) != len(strides):
        return False
    wanted = [math.prod(shape[place + 1 :]) for place in range(len(shape))]
    return all(size == 1 or one == other for size, one, other in zip(shape, strides, wanted, strict=True))


def _run(program: bytes) -> _Tensor:
    """Follow `data.pkl`. Raises _OtherThing, and ValueError, IndexError and KeyError where it is broken."""
    if len(program) > MAX_PROGRAM:
        raise _OtherThing(f"a pickle of {len(program)} bytes")
    stack: list[Any] = []
    memo: dict[int, Any] = {}
    argument: Any
    for opcode, argument, _ in pickletools.genops(program):
        match opcode.name:
            case "PROTO" | "FRAME" | "STOP":
                pass
            case "GLOBAL":
                stack.append(_Name(argument))
            case "STACK_GLOBAL":
                name, module = stack.pop(), stack.pop()
                if type(name) is not str or type(module) is not str:
                    raise ValueError
                stack.append(_Name(f"{module} {name}"))
            case "BINPUT" | "LONG_BINPUT":
                memo[argument] = stack[-1]
            case "MEMOIZE":
                memo[len(memo)] = stack[-1]
            case "BINGET" | "LONG_BINGET":
                stack.append(memo[argument])
            case "MARK":
                stack.append(_MARK)
            case "TUPLE":
                begin = max(place for place, value in enumerate(stack) if value is _MARK)
                stack[begin:] = [tuple(stack[begin + 1 :])]
            case value if value in _TUPLES:
                begin = len(stack) - _TUPLES[value]
                stack[begin:] = [tuple(stack[begin:])]
            case value if value in _VALUES:
                stack.append(argument)
            case "NEWTRUE" | "NEWFALSE":
                stack.append(opcode.name == "NEWTRUE")
            case "BINPERSID":
                stack.append(_Storage(stack.pop()))
            case "REDUCE":
                arguments, function = stack.pop(), stack.pop()
                stack.append(_called(function, arguments))
            case other:
                raise _OtherThing(f"what needs {other}")
    (made,) = stack
    if type(made) is not _Tensor:
        raise _OtherThing("something else")
    return made


def _called(function: object, arguments: object) -> object:
    if type(function) is _Name and type(arguments) is tuple:
        if function == "torch._utils _rebuild_tensor_v2":
            return _Tensor(arguments)
        if function == "collections OrderedDict" and not arguments:  # of hooks
            return ()
        raise _OtherThing(f"what calls {function[:60].replace(' ', '.')}")
    raise ValueError


def _records(file: memoryview) -> Mapping[str, memoryview]:
    """What the archive holds by name. Raises ValueError and struct.error where it is none, or a packed one.

    Python's own reader would make an object of each of millions of entries.
    """
    end = len(file) - 22  # nobody writes a comment behind it
    if end < 0 or bytes(file[end : end + 4]) != b"PK\x05\x06":
        raise ValueError
    size, begin = struct.unpack_from("<II", file, end + 12)
    if size > MAX_DIRECTORY or begin + size > end:
        raise ValueError
    found: dict[str, memoryview] = {}
    place = begin
    while place < begin + size:
        method, packed, whole, name, extra, comment, header = struct.unpack_from(
            "<10xH8xIIHHH8xI", file, place
        )
        text = bytes(file[place + 46 : place + 46 + name]).decode()
        if method or packed != whole:
            raise _OtherThing("compressed records")
        lengths = struct.unpack_from("<26xHH", file, header)
        first = header + 30 + sum(lengths)
        if first + whole > len(file):
            raise ValueError
        found[text] = file[first : first + whole]
        place += 46 + name + extra + comment
    return found
