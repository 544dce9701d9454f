"""Calls as Python writes them.

[get_weather(city="Berlin", days=3), now()]
"""

from __future__ import annotations

from slipway.text.parse.calls import CallFormat, Section
from slipway.text.parse.shapes import python_call

LIST = Section(python_call, enters="[", between=(",",), leaves="]")

FORMATS = {
    "pythonic": CallFormat((), (LIST,), bare=("[",)),
    "llama4_pythonic": CallFormat(
        ("<|python_start|>",),
        (Section(python_call, enters="[", between=(",",), leaves="]", trails=("<|python_end|>",)),),
        bare=("[",),
    ),
    # One a line.
    "olmo3": CallFormat(
        ("<function_calls>",), (Section(python_call, between=(",",), leaves="</function_calls>"),)
    ),
}
