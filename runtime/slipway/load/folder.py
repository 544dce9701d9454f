"""Which files of a model folder hold its weights."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path

from slipway.load.errors import LoadError

PATTERNS = {
    "safetensors": ("*.safetensors",),
    "pt": ("*.bin", "*.pt"),
    "mistral": ("consolidated*.safetensors",),
    "gguf": ("*.gguf",),
}
"""Weight files by load format, the preferred first."""
SAME_FILES = {"fastsafetensors": "safetensors"}
"""Load formats that name another reader of the same files."""
CONSOLIDATED = "consolidated[.-]*"
"""The original layout, beside Hugging Face's. Written so that no pattern of the user's is the same."""
_FLOATS = {name: float(name) for name in ("Infinity", "-Infinity", "NaN")}
_NOT_WEIGHTS = (
    CONSOLIDATED,
    "adapter_model*",
    "training_args.bin",
    "optimizer.*",
    "scheduler.*",
    "rng_state*",
)
_INDEXES = {
    "safetensors": "*.safetensors.index.json",
    "pt": "*.bin.index.json",
    "mistral": "consolidated*.safetensors.index.json",
}
_DEFAULT_IGNORED = ("original/**/*",)


def ignored(patterns: Sequence[str] | None) -> tuple[str, ...]:
    """What `--ignore-patterns` means, the original Llama layout if it is not given.

    `**` stands for any number of folders, none included, which fnmatch alone does not know.
    """
    given = _DEFAULT_IGNORED if patterns is None else tuple(patterns)
    return (*given, *(pattern.replace("**/", "") for pattern in given if "**/" in pattern))


def skipped_beside(wanted: Sequence[str], skipped: Sequence[str]) -> list[str]:
    """What is left out where files of these patterns are wanted: the original layout, unless they name it."""
    named = any(pattern.startswith("consolidated") for pattern in wanted)
    return [pattern for pattern in skipped if pattern != CONSOLIDATED or not named]


@dataclass(frozen=True, slots=True)
class Weights:
    """The weight files of a folder, and the index of one that is sharded: name → file name."""

    format: str
    files: tuple[Path, ...]
    index: Mapping[str, str] = field(default_factory=dict)


def find_weights(
    folder: Path, load_format: str = "auto", ignore_patterns: Sequence[str] | None = None
) -> Weights:
    """The files that `load_format` asks for. Raises LoadError where there are none or some lack."""
    skipped = (*_NOT_WEIGHTS, *ignored(ignore_patterns))
    wanted_kind = SAME_FILES.get(load_format, load_format)
    searched = PATTERNS if load_format == "auto" else {wanted_kind: PATTERNS[wanted_kind]}
    for kind, patterns in searched.items():
        left_out = skipped_beside(patterns, skipped)
        found = tuple(path for pattern in patterns for path in _found(folder, pattern, left_out))
        if index := _index(folder, kind, left_out):
            return _sharded(folder, kind, found, index)
        if found:
            return Weights(kind, found)
    wanted = [pattern for patterns in searched.values() for pattern in patterns]
    raise LoadError(
        "ModelNotFound",
        f"The folder {folder} holds no weights ({', '.join(wanted)}).",
        hint="Name the folder with the weights, or another --load-format.",
        argument="load_format" if load_format != "auto" else "model",
    )


def stored_bytes(model: str) -> int:
    """Of the weight files where `model` is a path, not looked into; 0 where it has yet to be found."""
    path = Path(model).expanduser()
    found = [path] if path.is_file() else []
    for patterns in PATTERNS.values():
        found = found or [file for pattern in patterns for file in path.glob(pattern)]
    return sum(file.stat().st_size for file in found)


def _found(folder: Path, pattern: str, skipped: Sequence[str]) -> list[Path]:
    paths = sorted(folder.glob(pattern))
    return [path for path in paths if not any(fnmatch(path.name, skip) for skip in skipped)]


def _index(folder: Path, kind: str, skipped: Sequence[str]) -> Mapping[str, str]:
    paths = _found(folder, _INDEXES[kind], skipped) if kind in _INDEXES else []
    if not paths:
        return {}
    weight_map = read_json(paths[0]).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise LoadError(
            "BadCheckpoint",
            f"{paths[0]} has no weight_map from tensor names to files.",
            hint="Fetch the index again.",
        )
    return {str(tensor): str(file) for tensor, file in weight_map.items()}


def _sharded(folder: Path, kind: str, found: tuple[Path, ...], index: Mapping[str, str]) -> Weights:
    present = {path.name: path for path in found}
    names = sorted(set(index.values()))
    if missing := [name for name in names if name not in present]:
        raise LoadError(
            "BadCheckpoint",
            f"{len(missing)} of {len(names)} weight files that the index of {folder} names "
            f"are missing, {missing[0]} among them.",
            hint="Fetch the model again; an interrupted download leaves such a folder.",
        )
    return Weights(kind, tuple(present[name] for name in names), index)


def read_json(path: Path) -> dict[str, object]:
    """A JSON object from a file. Raises LoadError."""
    try:
        value = parsed(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise LoadError(
            "ModelNotFound",
            f"The folder {path.parent} has no {path.name}, so it is not a model's folder.",
            hint="Name the folder that has it.",
        ) from None
    except (OSError, ValueError, RecursionError) as error:
        raise LoadError(
            "BadCheckpoint", f"{path} cannot be read as JSON: {error}.", hint="Fetch it again."
        ) from None
    if not isinstance(value, dict):
        raise LoadError(
            "BadCheckpoint",
            f"{path} holds a JSON {type(value).__name__} instead of an object.",
            hint="Fetch it again.",
        )
    return value


def parsed(text: str | bytes) -> object:
    """JSON as models' files have it: with numbers such as Infinity, by name or as transformers 5 writes them.

    Raises ValueError.
    """
    return json.loads(text, object_hook=_with_floats)


def _with_floats(value: dict[str, object]) -> object:
    return _FLOATS.get(str(value["__float__"]), value) if value.keys() == {"__float__"} else value
