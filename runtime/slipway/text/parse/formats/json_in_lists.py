"""JSON objects in one list behind a mark.

<tool_calls>[{"name": "f", "arguments": {}}, {"name": "g", "arguments": {}}]</tool_calls>
"""

from __future__ import annotations

from slipway.text.parse.calls import CallFormat, Section
from slipway.text.parse.shapes import JsonCall
from slipway.text.parse.written import Written


def listed(*opens: str, closes: str = "", bare: bool = False) -> CallFormat:
    trails = (closes,) if closes else ()
    section = Section(JsonCall(needs_arguments=bare), enters="[", between=(",",), leaves="]", trails=trails)
    written = Written((opens[0], "["), between=", ", closes=("]", *trails))
    return CallFormat(
        opens, (section,), bare=("[",) if bare else (), loose=True, written=() if bare else (written,)
    )


FORMATS = {
    "granite": listed("<|tool_call|>", "<tool_call>", bare=True),
    "hunyuan_a13b": listed("<tool_calls>", closes="</tool_calls>"),
    "jamba": listed("<tool_calls>", closes="</tool_calls>"),
    "phi4_mini_json": listed("functools"),
}
