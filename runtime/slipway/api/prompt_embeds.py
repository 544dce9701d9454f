"""Prompts that are embeddings: from base64 to rows of fp32, checked before the engine sees them.

Runs in a thread: a long prompt takes tens of milliseconds. Nothing of a client's is unpickled, and no tensor
is taken whose shape is more than its bytes.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
from typing import Any

from slipway.api import torch_save
from slipway.api.errors import ApiError

_MAX_TABLE = 64 << 10
"""Bytes of a safetensors file's table, which names one tensor."""
_MAX_DIMENSIONS = 8
"""That are shown where there are more than two."""
_TYPES = {"F32": 4, "F16": 2, "BF16": 2}
_DECODED_AT_ONCE = 1 << 22
"""Characters, in some 5 ms: the decoder holds the interpreter's lock."""


def rows_of(text: str, hidden_size: int, param: str) -> bytes:
    """Embeddings [tokens, hidden_size] in fp32, of a base64 text of a safetensors file or of torch.save.

    Raises ApiError for everything else, naming `param`.
    """
    try:
        file = _decoded(text)
    except (binascii.Error, ValueError) as error:
        raise _unfit(param, f"is not base64: {error}") from None
    if file.startswith(torch_save.SIGNATURE):
        try:
            kind, shape, numbers = torch_save.read(file)
        except ValueError as error:
            raise _unfit(param, str(error)) from None
    else:
        kind, shape, numbers = _of_safetensors(file, param)
    if len(shape) != 2 or shape[0] < 1 or shape[1] != hidden_size:
        raise _unfit(param, f"has the shape {shape}, and must be [tokens, {hidden_size}]")
    return _as_fp32(kind, numbers, param)


def _decoded(text: str) -> bytes:
    """Raises binascii.Error and ValueError."""
    parts = [
        base64.b64decode(text[begin : begin + _DECODED_AT_ONCE], validate=True)
        for begin in range(0, len(text), _DECODED_AT_ONCE)
    ]
    if any(len(part) != _DECODED_AT_ONCE // 4 * 3 for part in parts[:-1]):
        raise ValueError("its padding is not at its end")
    return b"".join(parts)


def _of_safetensors(file: bytes, param: str) -> tuple[str, list[int], bytes]:
    length = int.from_bytes(file[:8], "little")
    if len(file) < 8 or length > min(len(file) - 8, _MAX_TABLE):
        raise _unfit(param, "is neither a safetensors file of one tensor nor one of torch.save")
    try:
        table: dict[str, Any] = json.loads(file[8 : 8 + length])
        ((name, entry),) = [item for item in table.items() if item[0] != "__metadata__"]
        kind, shape, (begin, end) = entry["dtype"], entry["shape"], entry["data_offsets"]
        sizes = len(shape) <= _MAX_DIMENSIONS and all(
            type(size) is int and 0 <= size < 1 << 31 for size in (*shape, begin, end)
        )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise _unfit(param, "is no safetensors file of one tensor") from None
    if not isinstance(kind, str) or kind not in _TYPES:
        raise _unfit(param, f"holds {str(kind)[:20]}, and must hold {', '.join(_TYPES)}")
    numbers = file[8 + length :]
    if not sizes or begin != 0 or end != len(numbers) or math.prod(shape) * _TYPES[kind] != end:
        raise _unfit(param, f"has a tensor {name[:40]!r} whose shape is not that of its bytes")
    return kind, shape, numbers


def _as_fp32(kind: str, numbers: bytes, param: str) -> bytes:
    """Raises ApiError where one of them is infinite or no number."""
    import numpy as np

    if kind == "BF16":
        values = (np.frombuffer(numbers, "<u2").astype(np.uint32) << 16).view(np.float32)
    else:
        values = np.frombuffer(numbers, "<f4" if kind == "F32" else "<f2").astype(np.float32, copy=False)
    if not np.isfinite(values).all():
        raise _unfit(param, "holds numbers that are infinite, or none")
    return values.tobytes()


def _unfit(param: str, why: str) -> ApiError:
    return ApiError(f"{param} {why}.", param=param, code="invalid_value")
