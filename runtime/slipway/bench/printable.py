"""What a server says, as a terminal may show it."""

from __future__ import annotations

CONTROL = [code for code in (*range(32), *range(127, 160)) if chr(code) not in "\n\t"]
"""Characters that could steer the terminal."""
LONE = range(0xD800, 0xE000)
"""Halves of a character, which JSON can say and no terminal's encoding can."""
DROPPED = dict.fromkeys((*CONTROL, *LONE))


def printable(text: str) -> str:
    """Without what is not shown."""
    return text.translate(DROPPED)
