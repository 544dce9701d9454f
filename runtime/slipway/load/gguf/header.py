"""Reads what a GGUF file says of itself: metadata and the tensor table, never the weights.

The API process imports this module for the tokenizer, so it needs the standard library only. The
file is not trusted: every count, length and offset is compared with the file's size before use.
Layout: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md, versions 2 and 3, little-endian.
"""

from __future__ import annotations

import math
import mmap
import re
import struct
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import pairwise
from pathlib import Path
from typing import Any

from slipway.load.errors import LoadError, malformed
from slipway.load.gguf.types import TYPES, GgmlType

MAGIC = b"GGUF"
_MAX_DIMENSIONS = 4
_MAX_NESTING = 4
_MAX_PARTS = 1000
_malformed = partial(malformed, "GGUF")
_PART = re.compile(r"(.+)-(?:\d{5})-of-(\d{5})\.gguf")

_BOOL, _STRING, _ARRAY = 7, 8, 9
_SCALARS = {**dict(enumerate("BbHhIifB")), 10: "Q", 11: "q", 12: "d"}
"""Value type → struct format, which is also the typecode of `array`."""
_u64 = struct.Struct("<Q").unpack_from


class StringArray(Sequence[str]):
    """An array of strings, decoded when first read: a vocabulary costs nothing until it is used."""

    def __init__(self, raw: bytes, count: int) -> None:
        self._raw = raw
        self._count = count

    @cached_property
    def _strings(self) -> list[str]:
        raw, start, strings = self._raw, 0, []
        for _ in range(self._count):
            end = start + 8 + _u64(raw, start)[0]
            strings.append(raw[start + 8 : end].decode("utf-8", "replace"))
            start = end
        return strings

    def __getitem__(self, index: Any) -> Any:
        return self._strings[index]

    def __iter__(self) -> Iterator[str]:
        return iter(self._strings)

    def __len__(self) -> int:
        return self._count


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """Where a tensor lies in its file."""

    name: str
    shape: tuple[int, ...]
    """Outermost dimension first, as torch counts; rows are contiguous."""
    type: GgmlType
    offset: int
    """Bytes from the start of the file."""
    nbytes: int
    path: Path


@dataclass(frozen=True, slots=True)
class Header:
    """A file's metadata (int, float, bool, str, or a sequence of them) and tensors by name."""

    path: Path
    metadata: Mapping[str, object]
    tensors: Mapping[str, TensorEntry]

    @property
    def architecture(self) -> str:
        """`general.architecture`, the prefix of the model's own keys."""
        return str(self.metadata.get("general.architecture", ""))

    def get(self, key: str, default: object = None) -> object:
        """The architecture's own value: `get("block_count")` reads `llama.block_count`."""
        return self.metadata.get(f"{self.architecture}.{key}", default)


def read(path: Path) -> Header:
    """Read the header of a file or, by any part of one that is split, of the whole model.

    Raises LoadError where a file is missing or malformed.
    """
    first = _read_file(path)
    count = first.metadata.get("split.count", 1)
    if not isinstance(count, int) or count <= 1:
        return first
    match = _PART.fullmatch(path.name)
    if match is None or int(match[2]) != count:
        raise _malformed(path, f"it is one of {count} parts and not named NAME-0000I-of-{count:05}")
    if count > _MAX_PARTS:
        raise _malformed(path, f"it claims to be one of {count} parts")
    paths = [path.with_name(f"{match[1]}-{part:05}-of-{count:05}.gguf") for part in range(1, count + 1)]
    parts = [first if part == path else _read_file(part) for part in paths]
    tensors: dict[str, TensorEntry] = {}
    for number, part in enumerate(parts):
        if part.metadata.get("split.no") != number:
            raise _malformed(part.path, f"it is not part {number + 1} of {count}")
        if both := tensors.keys() & part.tensors.keys():
            raise _malformed(part.path, f"the tensor {min(both)} is in an earlier part too")
        tensors.update(part.tensors)
    expected = parts[0].metadata.get("split.tensors.count", len(tensors))
    if expected != len(tensors):
        raise _malformed(path, f"its parts hold {len(tensors)} tensors instead of {expected}")
    return Header(paths[0], parts[0].metadata, tensors)


def _read_file(path: Path) -> Header:
    try:
        with (
            path.open("rb") as file,
            mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as memory,
        ):
            return _Reader(memory, path).header()
    except FileNotFoundError:
        raise LoadError("ModelNotFound", f"There is no file {path}.", hint="Check the path.") from None
    except OSError as error:
        raise LoadError("BadCheckpoint", f"{path} cannot be read: {error.strerror}.") from None
    except ValueError as error:  # an empty file cannot be mapped; strings that are not UTF-8
        raise _malformed(path, f"it is empty or holds invalid text ({error})") from None
    except (struct.error, OverflowError, IndexError):
        raise _malformed(path, "it ends before its header does") from None


class _Reader:
    """A cursor over the mapped file; `position` never passes `size` unnoticed."""

    def __init__(self, memory: mmap.mmap, path: Path) -> None:
        self.memory = memory
        self.path = path
        self.size = len(memory)
        self.position = 0

    def header(self) -> Header:
        if self.take(4) != MAGIC:
            raise _malformed(self.path, "it does not begin with 'GGUF'")
        version = self.u32()
        if version & 0xFFFF == 0:
            raise _malformed(self.path, "it is big-endian; only little-endian files are supported")
        if version not in (2, 3):
            raise _malformed(self.path, f"its version is {version}; 2 and 3 are supported")
        num_tensors = self.count(self.u64(), 24, "tensors")
        num_keys = self.count(self.u64(), 13, "metadata keys")
        metadata: dict[str, object] = {}
        for _ in range(num_keys):
            key = self.string()
            if key in metadata:
                raise _malformed(self.path, f"the metadata key {key!r} occurs twice")
            metadata[key] = self.value(self.u32(), _MAX_NESTING)
        return Header(self.path, metadata, self.tensors(num_tensors, metadata))

    def tensors(self, count: int, metadata: dict[str, object]) -> dict[str, TensorEntry]:
        alignment = metadata.get("general.alignment", 32)
        if not isinstance(alignment, int) or alignment < 1 or alignment & (alignment - 1):
            raise _malformed(self.path, f"general.alignment is {alignment!r} and not a power of two")
        rows = [(self.string(), self.dimensions(), self.u32(), self.u64()) for _ in range(count)]
        start = -(-self.position // alignment) * alignment
        entries: dict[str, TensorEntry] = {}
        for name, dimensions, number, offset in rows:
            if name in entries:
                raise _malformed(self.path, f"the tensor {name!r} occurs twice")
            if offset % alignment:
                raise _malformed(self.path, f"{name} is not aligned to {alignment} bytes")
            entries[name] = self.entry(name, dimensions, number, start + offset)
        self.refuse_overlaps(entries)
        return entries

    def dimensions(self) -> tuple[int, ...]:
        rank = self.u32()
        if not 1 <= rank <= _MAX_DIMENSIONS:
            raise _malformed(self.path, f"a tensor has {rank} dimensions")
        return tuple(self.u64() for _ in range(rank))

    def entry(self, name: str, dimensions: tuple[int, ...], number: int, offset: int) -> TensorEntry:
        kind = TYPES.get(number)
        if kind is None:
            raise LoadError(
                "UnsupportedFormat",
                f"{self.path}: the tensor {name} has the unknown type number {number}.",
                hint="Quantize the model to a type such as Q4_K or Q8_0.",
            )
        if 0 in dimensions or dimensions[0] % kind.block_size:
            raise _malformed(self.path, f"{name} has the shape {dimensions}, impossible for {kind.name}")
        nbytes = math.prod(dimensions) // kind.block_size * kind.block_bytes
        if offset + nbytes > self.size:
            raise _malformed(self.path, f"{name} ends at byte {offset + nbytes} of a file of {self.size}")
        return TensorEntry(name, dimensions[::-1], kind, offset, nbytes, self.path)

    def refuse_overlaps(self, entries: dict[str, TensorEntry]) -> None:
        for before, entry in pairwise(sorted(entries.values(), key=lambda entry: entry.offset)):
            if before.offset + before.nbytes > entry.offset:
                raise _malformed(self.path, f"the tensors {before.name} and {entry.name} overlap")

    def value(self, kind: int, nesting: int) -> object:
        if kind == _STRING:
            return self.take(self.u64()).decode("utf-8", "replace")
        if kind == _ARRAY:
            return self.array(nesting)
        code = self.scalar(kind)
        (value,) = struct.unpack("<" + code, self.take(struct.calcsize("<" + code)))
        return bool(value) if kind == _BOOL else value

    def array(self, nesting: int) -> Sequence[object]:
        kind, count = self.u32(), self.u64()
        if kind == _STRING:
            return self.strings(self.count(count, 8, "strings"))
        if kind == _ARRAY:
            if nesting == 0:
                raise _malformed(self.path, f"arrays are nested more than {_MAX_NESTING} deep")
            return [self.array(nesting - 1) for _ in range(self.count(count, 12, "arrays"))]
        values = array(self.scalar(kind))
        values.frombytes(self.take(count * values.itemsize))
        return [bool(value) for value in values] if kind == _BOOL else values

    def strings(self, count: int) -> StringArray:
        memory, start = self.memory, self.position
        end = start
        for _ in range(count):
            end += 8 + _u64(memory, end)[0]
        return StringArray(self.take(end - start), count)

    def string(self) -> str:
        return self.take(self.u64()).decode("utf-8")

    def scalar(self, kind: int) -> str:
        if kind not in _SCALARS:
            raise _malformed(self.path, f"a metadata value has the unknown type {kind}")
        return _SCALARS[kind]

    def count(self, count: int, least_bytes: int, what: str) -> int:
        """`count`, if that many items of at least `least_bytes` can still follow."""
        if count * least_bytes > self.size - self.position:
            raise _malformed(self.path, f"it claims {count} {what}, more than fit in it")
        return count

    def u32(self) -> int:
        return int.from_bytes(self.take(4), "little")

    def u64(self) -> int:
        return int.from_bytes(self.take(8), "little")

    def take(self, length: int) -> bytes:
        end = self.position + length
        if end > self.size:
            raise _malformed(self.path, f"it ends at byte {self.size}, its header goes on")
        taken = self.memory[self.position : end]
        self.position = end
        return taken
