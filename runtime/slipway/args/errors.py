"""What is raised where an argument cannot be accepted."""

from __future__ import annotations


class ArgumentError(ValueError):
    """A sentence for the one who typed it; `argument` is the name with underscores, or empty."""

    def __init__(self, message: str, argument: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.argument = argument


class NotBuiltError(ArgumentError):
    """What was asked for is understood, and this release does not have it."""
