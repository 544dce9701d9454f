"""DeepSeek V3, V3.1 and V3.2.

<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f
```json
{}
```<｜tool▁call▁end｜><｜tool▁calls▁end｜>
"""

from __future__ import annotations

from slipway.text.parse.calls import CallFormat, Section
from slipway.text.parse.shapes import NamedJson, TaggedCall
from slipway.text.parse.written import NAME, Written

_OPENS, _LEAVES = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
_BEGIN, _SEPARATOR, _END = "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"

FORMATS = {
    "deepseek_v3": CallFormat(
        (_OPENS,),
        (
            Section(
                NamedJson(separators=("```json",), fence="```"),
                begin=f"{_BEGIN}function{_SEPARATOR}",
                end=_END,
                leaves=_LEAVES,
            ),
        ),
        tokens=(_BEGIN, _SEPARATOR),
        written=(
            Written(
                (_OPENS,),
                (_BEGIN, "function", _SEPARATOR, f"{NAME}\n```json\n"),
                ("\n```", _END),
                between="\n",
                closes=(_LEAVES,),
            ),
        ),
    ),
    # NAME<｜tool▁sep｜>{…}
    "deepseek_v31": CallFormat(
        (_OPENS,),
        (Section(NamedJson(separators=(_SEPARATOR,)), begin=_BEGIN, end=_END, leaves=_LEAVES),),
        tokens=(_SEPARATOR,),
        written=(Written((_OPENS,), (_BEGIN, NAME, _SEPARATOR), (_END,), between="", closes=(_LEAVES,)),),
    ),
    # <｜DSML｜invoke name="f"><｜DSML｜parameter name="city" string="true">Berlin</｜DSML｜parameter>
    "deepseek_v32": CallFormat(
        ("<｜DSML｜function_calls>",),
        (
            Section(
                TaggedCall(
                    opens='<｜DSML｜invoke name="',
                    closes='">',
                    key=('<｜DSML｜parameter name="', '"'),
                    values=(('string="true">', "string"), ('string="false">', "json")),
                    value="</｜DSML｜parameter>",
                    end="</｜DSML｜invoke>",
                ),
                leaves="</｜DSML｜function_calls>",
            ),
        ),
        tokens=("｜DSML｜",),
    ),
}
