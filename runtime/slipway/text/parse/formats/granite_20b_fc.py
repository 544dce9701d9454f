"""Granite 20B function calling: a mark before each JSON object.

<function_call> {"name": "f", "arguments": {}}<function_call> {"name": "g", "arguments": {}}
"""

from __future__ import annotations

from slipway.text.parse.calls import CallFormat, Section
from slipway.text.parse.shapes import JsonCall
from slipway.text.parse.written import Written

FORMATS = {
    "granite-20b-fc": CallFormat(
        ("<function_call>",),
        (Section(JsonCall()),),
        loose=True,
        written=(Written(("<function_call>", " ")),),
    )
}
