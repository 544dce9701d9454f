"""Kimi K2: the call's id has the name in it.

<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{}<|tool_call_end|>
<|tool_calls_section_end|>
"""

from __future__ import annotations

from slipway.text.parse.calls import CallFormat, Section
from slipway.text.parse.shapes import NamedJson

_ARGUMENTS = "<|tool_call_argument_begin|>"

FORMATS = {
    "kimi_k2": CallFormat(
        ("<|tool_calls_section_begin|>",),
        (
            Section(
                NamedJson(separators=(_ARGUMENTS,), with_id=True),
                begin="<|tool_call_begin|>",
                end="<|tool_call_end|>",
                leaves="<|tool_calls_section_end|>",
            ),
        ),
        tokens=(_ARGUMENTS,),
    )
}
