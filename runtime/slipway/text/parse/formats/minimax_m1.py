"""MiniMax M1: one JSON object a line.

<tool_calls>
{"name": "f", "arguments": {}}
{"name": "g", "arguments": {}}
</tool_calls>
"""

from __future__ import annotations

from slipway.text.parse.calls import CallFormat, Section
from slipway.text.parse.shapes import JsonCall
from slipway.text.parse.written import Written

FORMATS = {
    "minimax_m1": CallFormat(
        ("<tool_calls>",),
        (Section(JsonCall(), leaves="</tool_calls>"),),
        loose=True,
        thinks=True,
        written=(Written(("<tool_calls>", "\n"), between="\n", closes=("\n", "</tool_calls>")),),
    )
}
