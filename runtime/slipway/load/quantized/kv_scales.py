"""What keys and values are divided by in a KV cache of eight bits."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from slipway.load.config import table
from slipway.load.errors import LoadError
from slipway.load.folder import read_json

KVScales = Mapping[int, tuple[float, float]]
"""Layer → scale of its keys and of its values; 1 where it is missing."""
KVDivisors = tuple[float, float]
"""What the largest key and the largest value of a layer are divided by to be its scales."""


def scales_of_file(path: str) -> KVScales:
    """The scales of `--quantization-param-path`, the same for keys and values.

    path  a JSON file {"kv_cache": {"scaling_factor": {"0": {layer: factor}}}}, by rank
    Raises LoadError where there is none, or a factor is not a number above 0.
    """
    try:
        ranks = table(table(read_json(Path(path).expanduser()), "kv_cache"), "scaling_factor")
    except LoadError as error:
        raise _wrong(path, f"cannot be used: {error.message}") from None
    factors = ranks.get("0")
    if not isinstance(factors, Mapping):
        raise _wrong(path, "has no kv_cache.scaling_factor for rank 0.")
    scales = {}
    for layer, factor in factors.items():
        if not layer.isdecimal() or not isinstance(factor, int | float) or not factor > 0:
            raise _wrong(path, f"gives the layer {layer!r} the factor {factor!r}, which must be above 0.")
        scales[int(layer)] = float(factor), float(factor)
    return scales


def _wrong(path: str, why: str) -> LoadError:
    return LoadError(
        "BadCheckpoint",
        f"The file {path} {why}",
        hint="Correct it, or leave it out: the scales are then the checkpoint's, or 1.",
        argument="quantization_param_path",
    )
