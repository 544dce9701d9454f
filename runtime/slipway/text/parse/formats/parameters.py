"""Functions and parameters between tags that carry their names.

<tool_call>
<function=f>
<parameter=city>
Berlin
</parameter>
</function>
</tool_call>
"""

from __future__ import annotations

from slipway.text.parse.calls import CallFormat, Section
from slipway.text.parse.shapes import TaggedCall

EQUALS = TaggedCall(
    opens="<function=",
    closes=">",
    key=("<parameter=", ">"),
    value="</parameter>",
    end="</function>",
    trimmed=True,
)
"""Of Qwen 3 Coder, Step 3.5 and Seed OSS."""


def named(prefix: str) -> TaggedCall:
    """`<invoke name="f"><parameter name="city">Berlin</parameter></invoke>`, its tags with a prefix."""
    return TaggedCall(
        opens=f'<{prefix}invoke name="',
        closes='">',
        key=(f'<{prefix}parameter name="', '">'),
        value=f"</{prefix}parameter>",
        end=f"</{prefix}invoke>",
    )


CODER = CallFormat(("<tool_call>",), (Section(EQUALS, leaves="</tool_call>"),), implies=(EQUALS.opens,))
"""Of models that leave out the first tag now and then, behind some words above all."""

FORMATS = {
    "qwen3_coder": CODER,
    "qwen3_xml": CODER,
    "step3p5": CODER,
    "seed_oss": CallFormat(("<seed:tool_call>",), (Section(EQUALS, leaves="</seed:tool_call>"),)),
    "minimax_m2": CallFormat(("<minimax:tool_call>",), (Section(named(""), leaves="</minimax:tool_call>"),)),
    "step3": CallFormat(
        ("<｜tool_calls_begin｜>",),
        (
            Section(
                named("steptml:"),
                begin="<｜tool_call_begin｜>function<｜tool_sep｜>",
                end="<｜tool_call_end｜>",
                leaves="<｜tool_calls_end｜>",
            ),
        ),
        tokens=("<｜tool_call_begin｜>", "<｜tool_sep｜>"),
    ),
}
