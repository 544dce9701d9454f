"""Why a model cannot be loaded, as a sentence for the one who must act."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

Code = Literal[
    "ModelNotFound",
    "ModelGated",
    "NoNetwork",
    "NoSpace",
    "Interrupted",
    "BadCheckpoint",
    "UnsupportedFormat",
    "UnsupportedModel",
    "MissingPackage",
    "BadArguments",
]


class LoadError(Exception):
    """A model's files are missing, unreadable or of a kind that is not supported.

    code      stable name for exit codes and tests
    message   what is wrong, with the value, and why
    hint      what to do
    argument  the server argument to change, as in the configuration (`load_format`)
    """

    def __init__(self, code: Code, message: str, *, hint: str = "", argument: str = "model") -> None:
        super().__init__(f"{message} {hint}".rstrip())
        self.code = code
        self.message = message
        self.hint = hint
        self.argument = argument


def no_model(path: Path) -> LoadError:
    """The error for one file that is to be a model, and is not of the one form that has a model in a file."""
    hint = "Name a model's folder, a .gguf file, or a model on the hub."
    return LoadError("UnsupportedFormat", f"{path} is a file but not a .gguf file.", hint=hint)


def malformed(kind: str, path: Path, why: str) -> LoadError:
    """The error for a file whose bytes make no sense."""
    text = f"{path} is not a valid {kind} file: {why}."
    return LoadError("BadCheckpoint", text, hint="It may be truncated; fetch it again.")
