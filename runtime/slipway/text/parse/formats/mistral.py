"""Mistral: a list behind the mark, or since tokenizer v11 a mark before each name.

[TOOL_CALLS] [{"name": "f", "arguments": {}, "id": "a1b2c3d4e"}]
[TOOL_CALLS]f[ARGS]{}[TOOL_CALLS]g[CALL_ID]a1b2c3d4e[ARGS]{}
"""

from __future__ import annotations

import re

from slipway.text.parse.calls import CallFormat, Section
from slipway.text.parse.shapes import JsonCall, NamedJson
from slipway.text.parse.written import NAME, Written

FORMATS = {
    "mistral": CallFormat(
        ("[TOOL_CALLS]",),
        (
            Section(JsonCall(), enters="[", between=(",",), leaves="]"),
            Section(NamedJson(separators=("[ARGS]",), before_id="[CALL_ID]")),
        ),
        loose=True,
        tokens=("[ARGS]", "[CALL_ID]"),
        written=(
            Written(("[TOOL_CALLS]", re.compile(r" ?\[")), between=", ", closes=("]",)),
            Written(("[TOOL_CALLS]",), (NAME, "[ARGS]"), ()),
        ),
    )
}
