"""Prompts that are embeddings: from base64 to rows of fp32, checked before the engine sees them.

Runs in a thread: a long prompt takes tens of milliseconds. Nothing of a client's is unpickled as code, and no
tensor is taken whose shape is more than its bytes.
"""

from __future__ import annotations

import base64
import binascii
import io
import json
import math
import zipfile
from importlib.util import find_spec
from typing import Any

from slipway.api.errors import ApiError

_MAX_TABLE = 64 << 10
"""Bytes of a safetensors file's table, which names one tensor."""
_TYPES = {"F32": 4, "F16": 2, "BF16": 2}


def rows_of(text: str, hidden_size: int, param: str) -> bytes:
    """Embeddings [tokens, hidden_size] in fp32, of a base64 text of a safetensors file or of torch.save.

    Raises ApiError for everything else, naming `param`.
    """
    try:
        file = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise _unfit(param, f"is not base64: {error}") from None
    if file[:4] == b"PK\x03\x04":
        kind, shape, numbers = _of_torch(file, param)
    else:
        kind, shape, numbers = _of_safetensors(file, param)
    if len(shape) != 2 or shape[0] < 1 or shape[1] != hidden_size:
        raise _unfit(param, f"has the shape {shape}, and must be [tokens, {hidden_size}]")
    return _as_fp32(kind, numbers, param)


def _of_safetensors(file: bytes, param: str) -> tuple[str, list[int], bytes]:
    length = int.from_bytes(file[:8], "little")
    if len(file) < 8 or length > min(len(file) - 8, _MAX_TABLE):
        raise _unfit(param, "is neither a safetensors file of one tensor nor one of torch.save")
    try:
        table: dict[str, Any] = json.loads(file[8 : 8 + length])
        ((name, entry),) = [item for item in table.items() if item[0] != "__metadata__"]
        kind, shape, (begin, end) = entry["dtype"], entry["shape"], entry["data_offsets"]
        sizes = all(type(size) is int and 0 <= size < 1 << 31 for size in (*shape, begin, end))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise _unfit(param, "is no safetensors file of one tensor") from None
    if kind not in _TYPES:
        raise _unfit(param, f"holds {str(kind)[:20]}, and must hold {', '.join(_TYPES)}")
    numbers = file[8 + length :]
    if not sizes or begin != 0 or end != len(numbers) or math.prod(shape) * _TYPES[kind] != end:
        raise _unfit(param, f"has a tensor {name[:40]!r} whose shape is not that of its bytes")
    return kind, shape, numbers


def _of_torch(file: bytes, param: str) -> tuple[str, list[int], bytes]:
    if find_spec("torch") is None:
        message = (
            f"{param} is a file of torch.save, and torch is not installed on this server. Send a safetensors "
            "file of one tensor, or have the operator install the extra: pip install 'slipway[torch]'."
        )
        raise ApiError(message, param=param, code="not_supported")
    import torch

    try:
        with zipfile.ZipFile(io.BytesIO(file)) as archive:  # what is compressed may be of any size
            stored = all(entry.compress_type == zipfile.ZIP_STORED for entry in archive.infolist())
        loaded = torch.load(io.BytesIO(file), map_location="cpu", weights_only=True) if stored else None
    except Exception as error:  # its reader raises what comes
        raise _unfit(param, f"cannot be read by torch: {str(error).splitlines()[0][:120]}") from None
    if type(loaded) is not torch.Tensor or loaded.layout != torch.strided or loaded.device.type != "cpu":
        raise _unfit(param, "is no dense tensor")
    kinds = {torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16"}
    if loaded.dtype not in kinds:
        raise _unfit(param, f"holds {loaded.dtype}, and must hold {', '.join(_TYPES)}")
    size = loaded.numel() * loaded.element_size()
    if not loaded.is_contiguous() or loaded.untyped_storage().nbytes() != size or size > len(file):
        raise _unfit(param, "is a view of other numbers; send it as tensor.contiguous().clone()")
    octets = loaded.detach().reshape(-1).view(torch.uint8).numpy().tobytes()
    return kinds[loaded.dtype], list(loaded.shape), octets


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
