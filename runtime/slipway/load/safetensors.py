"""Safetensors files: a JSON table of names, types and offsets, then the weights.

Format: https://github.com/huggingface/safetensors#format.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np

from slipway.load.arrays import BF16, E4M3, E5M2, E8M0, FP16, FP32, INT8, INT32, INT64, UINT8, Array, DType
from slipway.load.errors import LoadError, malformed
from slipway.load.mapped import MappedFile
from slipway.load.progress import Progress
from slipway.load.weight_files import Entry, WeightFiles

DTYPES: dict[str, DType] = {
    "F64": np.dtype(np.float64),
    "F32": FP32,
    "F16": FP16,
    "BF16": BF16,
    "F8_E4M3": E4M3,
    "F8_E5M2": E5M2,
    "F8_E8M0": E8M0,
    "I64": INT64,
    "I32": INT32,
    "I16": np.dtype(np.int16),
    "I8": INT8,
    "U8": UINT8,
    "BOOL": np.dtype(np.bool_),
}
_MAX_TABLE = 100_000_000
_malformed = partial(malformed, "safetensors")


def table(path: Path) -> list[Entry]:
    """The tensors of one file, in the order of their bytes. Raises LoadError where it is malformed."""
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or length > min(size - 8, _MAX_TABLE):
            raise _malformed(path, f"its table of {length} bytes does not fit in {size} bytes")
        text = file.read(length)
    try:
        rows = json.loads(text)
        entries = [
            _entry(path, name, row, 8 + length, size) for name, row in rows.items() if name != "__metadata__"
        ]
    except (ValueError, AttributeError, KeyError, TypeError, RecursionError) as error:
        raise _malformed(path, f"its table cannot be read ({error!r})") from None
    entries.sort(key=lambda entry: entry.offset)
    for before, entry in pairwise(entries):
        if before.offset + before.nbytes > entry.offset:
            raise _malformed(path, f"the tensors {before.name} and {entry.name} overlap")
    return entries


def _entry(path: Path, name: str, row: dict[str, object], start: int, size: int) -> Entry:
    kind, shape, offsets = row["dtype"], row["shape"], row["data_offsets"]
    if not isinstance(shape, list) or not isinstance(offsets, list):
        raise _malformed(path, f"{name} has no shape or place")
    if kind not in DTYPES:
        raise LoadError(
            "UnsupportedFormat",
            f"{path}: the tensor {name} is stored as {kind}, which is not supported.",
            hint="Use a checkpoint in bfloat16, float16 or float32.",
        )
    dtype = DTYPES[str(kind)]
    begin, end = offsets
    nbytes = math.prod(shape) * dtype.itemsize
    if not 0 <= begin <= end <= size - start or end - begin != nbytes or min(shape, default=0) < 0:
        raise _malformed(path, f"{name} of shape {shape} does not lie at bytes {begin} to {end}")
    return Entry(name, tuple(shape), dtype, start + begin)


class SafetensorsWeights(WeightFiles):
    """Safetensors files, mapped."""

    def __init__(self, files: Sequence[Path], progress: Progress) -> None:
        super().__init__({path: table(path) for path in files}, progress)
        self._files = {path: MappedFile(path) for path in files}

    def view(self, name: str) -> Array:
        entry = self.entries[name]
        octets = self._files[self._paths[name]].view(entry.offset, entry.nbytes)
        array = octets.view(entry.dtype).reshape(entry.shape)
        return array if array.flags.aligned else array.copy()

    def release(self, name: str) -> None:
        """Its pages of the file are dropped, too."""
        entry = self.entries[name]
        self._files[self._paths[name]].release(entry.offset, entry.nbytes)
        super().release(name)

    def close(self) -> None:
        for file in self._files.values():
            file.close()
