"""MiniMax M1: one JSON object a line.

<tool_calls>
{"name": "f", "arguments": {}}
{"name": "g", "arguments": {}}
</tool_calls>
"""

from __future__ import annotations

from slipway.text.parse.calls import CallFormat, Section
from slipway.text.parse.shapes import JsonCall

FORMATS = {"minimax_m1": CallFormat(("<tool_calls>",), (Section(JsonCall(), leaves="</tool_calls>"),))}
