"""GLM 4.5 to 4.7: a name, then keys and values between tags.

<tool_call>f
<arg_key>city</arg_key>
<arg_value>Berlin</arg_value>
</tool_call>
"""

from __future__ import annotations

from slipway.text.parse.calls import CallFormat, Section
from slipway.text.parse.shapes import TaggedCall

GLM = CallFormat(
    ("<tool_call>",),
    (
        Section(
            TaggedCall(
                key=("<arg_key>", "</arg_key>"),
                values=(("<arg_value>", ""),),
                value="</arg_value>",
                end="</tool_call>",
            )
        ),
    ),
    tokens=("<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"),
)

FORMATS = {"glm45": GLM, "glm47": GLM}
