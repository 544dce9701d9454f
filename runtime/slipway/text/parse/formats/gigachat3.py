"""GigaChat 3: a JSON object behind two words.

function call<|role_sep|>
{"name": "f", "arguments": {}}

Since 3.1 a token stands there: <|function_call|>{"name": "f", "arguments": {}}
"""

from __future__ import annotations

from slipway.text.parse.calls import CallFormat, Section
from slipway.text.parse.shapes import JsonCall

FORMATS = {
    "gigachat3": CallFormat(
        ("function call<|role_sep|>", "function call", "<|function_call|>"),
        (Section(JsonCall()),),
        common=("function call",),
        loose=True,
    )
}
