"""JSON objects, each between tags of its own.

<tool_call>
{"name": "get_weather", "arguments": {"city": "Berlin"}}
</tool_call>
"""

from __future__ import annotations

from slipway.text.parse.calls import CallFormat, Section
from slipway.text.parse.shapes import JsonCall


def tagged(opens: str, closes: str) -> CallFormat:
    return CallFormat((opens,), (Section(JsonCall(), end=closes),))


HERMES = tagged("<tool_call>", "</tool_call>")
"""Of Hermes 2 Pro, Qwen 2.5 and 3, Granite 4 and ERNIE 4.5."""

FORMATS = {
    "hermes": HERMES,
    "qwen": HERMES,
    "granite4": HERMES,
    "ernie45": HERMES,
    "longcat": tagged("<longcat_tool_call>", "</longcat_tool_call>"),
    "internlm": CallFormat(
        ("<|action_start|><|plugin|>", "<|action_start|> <|plugin|>"),
        (Section(JsonCall(), end="<|action_end|>"),),
        tokens=("<|action_start|>", "<|plugin|>"),
    ),
}
