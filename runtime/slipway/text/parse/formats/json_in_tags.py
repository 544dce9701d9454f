"""JSON objects, each between tags of its own.

<tool_call>
{"name": "get_weather", "arguments": {"city": "Berlin"}}
</tool_call>
"""

from __future__ import annotations

from slipway.text.parse.calls import CallFormat, Section
from slipway.text.parse.shapes import JsonCall
from slipway.text.parse.written import LINE_END, NAME, Written


def tagged(opens: str, closes: str) -> CallFormat:
    written = Written((opens, LINE_END), closes=(LINE_END, closes))
    return CallFormat((opens,), (Section(JsonCall(), end=closes),), loose=True, written=(written,))


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
        loose=True,
        tokens=("<|action_start|>", "<|plugin|>"),
        written=(
            Written(
                ("<|action_start|>", "<|plugin|>", LINE_END),
                (f'{{"name": "{NAME}", "parameters": ',),
                closes=(LINE_END, "<|action_end|>"),
            ),
        ),
    ),
}
