"""Kimi K2: the call's id has the name in it.

<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{}<|tool_call_end|>
<|tool_calls_section_end|>
"""

from __future__ import annotations

import re

from slipway.text.parse.calls import CallFormat, Section
from slipway.text.parse.shapes import NamedJson
from slipway.text.parse.written import NAME, Written

_OPENS, _LEAVES = "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"
_BEGIN, _ARGUMENTS, _END = "<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>"

FORMATS = {
    "kimi_k2": CallFormat(
        (_OPENS,),
        (
            Section(
                NamedJson(separators=(_ARGUMENTS,), with_id=True),
                begin=_BEGIN,
                end=_END,
                leaves=_LEAVES,
            ),
        ),
        tokens=(_ARGUMENTS,),
        written=(
            Written(
                (_OPENS,),
                (_BEGIN, f"functions.{NAME}:", re.compile("[0-9]{1,3}"), _ARGUMENTS),
                (_END,),
                between="",
                closes=(_LEAVES,),
            ),
        ),
    )
}
