"""Fields of a `quantization_config` that several formats have."""

from __future__ import annotations

import re

from slipway.load.config import Config, integer, integers
from slipway.load.errors import LoadError


def group_size(settings: Config, default: int, field: str = "group_size") -> int:
    """Weights that share a scale; -1 is the whole row. Raises LoadError for any other number below 1."""
    size = integer(settings, field, default)
    if size < 1 and size != -1:
        raise _wrong(field, size, "a whole number above 0, or -1 for the whole row")
    return size


def block_shape(settings: Config, field: str) -> tuple[int, int] | None:
    """Rows and columns that share a scale, or None where the field is missing. Raises LoadError."""
    block = integers(settings, field)
    if block and (len(block) != 2 or min(block) < 1):
        raise _wrong(field, list(block), "two whole numbers above 0")
    return (block[0], block[1]) if block else None


def pattern(text: str) -> re.Pattern[str]:
    """A regular expression over layers' names. Raises LoadError where it is none."""
    try:
        return re.compile(text)
    except re.error as error:
        raise _wrong("A pattern for layers", text, f"a regular expression ({error})") from None


def _wrong(field: str, value: object, wanted: str) -> LoadError:
    return LoadError(
        "BadCheckpoint",
        f"{field} in the quantization_config of the model's config.json is {value!r}, and must be {wanted}.",
        hint="Correct the file, or lay a right value over it by --hf-overrides.",
        argument="hf_overrides",
    )
