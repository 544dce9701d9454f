"""Llama 3 and 4: JSON objects without a mark, or behind a token.

<|python_tag|>{"name": "f", "parameters": {}}; {"name": "g", "parameters": {}}
"""

from __future__ import annotations

from slipway.text.parse.calls import CallFormat, Section
from slipway.text.parse.shapes import JsonCall
from slipway.text.parse.written import NAME, Written

LLAMA = CallFormat(
    ("<|python_tag|>",),
    (Section(JsonCall(needs_arguments=True), between=(";", ",")),),
    bare=("{",),
    loose=True,
    written=(Written(("<|python_tag|>",), (f'{{"name": "{NAME}", "parameters": ',), between="; ", bare="{"),),
)

FORMATS = {"llama3_json": LLAMA, "llama4_json": LLAMA}
