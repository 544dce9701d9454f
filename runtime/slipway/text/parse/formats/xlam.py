"""xLAM: a JSON list, by itself or in one of several wrappings.

[{"name": "f", "arguments": {}}]
"""

from __future__ import annotations

from slipway.text.parse.calls import CallFormat, Section
from slipway.text.parse.shapes import JsonCall

_CALL = JsonCall(needs_arguments=True)
_BEHIND = ("```", "</tool_call>", "[/TOOL_CALLS]")

FORMATS = {
    "xlam": CallFormat(
        ("```json", "[TOOL_CALLS]", "<tool_call>"),
        (
            Section(_CALL, enters="[", between=(",",), leaves="]", trails=_BEHIND),
            Section(_CALL, trails=_BEHIND),
        ),
        bare=("[",),
        common=("```json",),
        loose=True,
        thinks=True,
        trims=True,
    )
}
