"""Secrets that go out in HTTP headers."""

from __future__ import annotations

from string import whitespace


def trimmed(secret: str) -> str:
    """Without white space round it, such as the line end of the file that it was read from."""
    return secret.strip(whitespace)


def unsendable(secret: str, *, ascii_only: bool = True) -> str | None:
    """Why no HTTP header carries a secret, without showing it; None where one does.

    ascii_only  headers carry other letters as bytes, and few clients send them
    """
    for place, char in enumerate(secret, start=1):
        if char < " " or char == "\x7f":
            what = "ends a line" if char in "\r\n" else f"is the control character U+{ord(char):04X}"
        elif ascii_only and not char.isascii():
            what = "is not ASCII"
        else:
            continue
        return (
            f"cannot be sent in an HTTP header: its character {place} {what}. Copy it once more, as one line."
        )
    return None
