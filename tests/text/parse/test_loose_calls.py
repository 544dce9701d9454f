"""Calls outside a format's marks: fences, neighbours' tags, missing ends and bare JSON, at every cut."""

from __future__ import annotations

import time

import pytest
from e2e.ground.patience import SLOWNESS
from hypothesis import given, settings
from hypothesis import strategies as st
from test_calls import TOOLS, calls_in, content_in, cut_everywhere, events_of, halves, streamed

from slipway.text.parse.events import CallBegin, Content
from slipway.text.parse.formats import NAMES, call_format
from slipway.text.parse.loose import CLOSES, OPENS
from slipway.text.parse.output import parsed

LOOSE = [name for name in NAMES if call_format(name).loose]
CALL = '{"name": "get_weather", "arguments": {"city": "Berlin"}}'
NOW = '{"name": "now", "arguments": {}}'
WEATHER = ("get_weather", {"city": "Berlin"})
ONE: dict[str, str] = {
    "fence": f"```json\n{CALL}\n```",
    "fence without a language": f"```\n{CALL}\n```",
    "fence of another language": f"```xml\n{CALL}\n```",
    "fence on one line": f"```json {CALL}```",
    "fence that does not end": f"```json\n{CALL}",
    "list in a fence": f"```json\n[{CALL}]\n```",
    "fence in a tag": f"<tool_call>\n```json\n{CALL}\n```\n</tool_call>",
    "tag in a fence": f"```xml\n<tool_call>\n{CALL}\n</tool_call>\n```",
    "list in a tag": f"<tool_call>\n[{CALL}]\n</tool_call>",
    "tools": f"<tools>\n{CALL}\n</tools>",
    "tools without an end": f"<tools>\n{CALL}\n",
    "tool": f"<tool>{CALL}</tool>",
    "response": f"<response>\n{CALL}\n</response>",
    "json tag": f"<json>{CALL}</json>",
    "JSON tag": f"<JSON>{CALL}</JSON>",
    "function call": f"<function_call>{CALL}</function_call>",
    "tool call without an end": f"<tool_call>\n{CALL}\n",
    "tool call with another's end": f"<tool_call>\n{CALL}\n</tools>",
    "tools with another's end": f"<tools>\n{CALL}\n</tool_call>",
    "function with its name": '<function=get_weather>{"city": "Berlin"}</function>',
    "function with its name quoted": '<function name="get_weather">\n{"city": "Berlin"}\n</function>',
    "bare": CALL,
    "bare over lines": '{\n  "name": "get_weather",\n  "arguments": {\n    "city": "Berlin"\n  }\n}',
    "bare list": f"[{CALL}]",
    "parameters": CALL.replace("arguments", "parameters"),
    "arguments as text": '{"name": "get_weather", "arguments": "{\\"city\\": \\"Berlin\\"}"}',
    "arguments first": '{"arguments": {"city": "Berlin"}, "name": "get_weather"}',
    "with a type": '{"type": "function", "name": "get_weather", "parameters": {"city": "Berlin"}}',
    "as in the API": f'{{"type": "function", "function": {CALL}}}',
    "as in the API without a type": f'```json\n{{"function": {CALL}, "id": "a"}}\n```',
}
SEVERAL: dict[str, str] = {
    "objects in a fence": f"```json\n{CALL}\n{NOW}\n```",
    "a list": f"[{CALL}, {NOW}]",
    "a list in a fence": f"```json\n[{CALL},\n {NOW}]\n```",
    "fences": f"```json\n{CALL}\n```\n\n```json\n{NOW}\n```",
    "fences of which the first has no end": f"```json\n{CALL}\n\n```json\n{NOW}\n```",
    "a fence behind a bare one": f"{CALL}\n```json\n{NOW}\n```",
    "bare": f"{CALL}\n{NOW}",
    "bare with a comma": f"{CALL}, {NOW}",
    "objects in one tag": f"<tools>\n{CALL}\n{NOW}\n</tools>",
    "tags without ends": f"<tool_call>\n{CALL}\n<tool_call>\n{NOW}\n",
    "tags, the first without an end": f"<tool_call>\n{CALL}\n<tool_call>\n{NOW}\n</tool_call>",
    "a mark and a tag": f"<tool_call>\n{CALL}\n</tool_call>\n<tools>\n{NOW}\n</tools>",
    "two in one tag": f"<tool_call>\n{CALL}\n{NOW}\n</tool_call>",
}
UNKNOWN = CALL.replace("get_weather", "get_whether")
TEXT: list[str] = [
    *(text.replace("get_weather", "get_whether") for text in ONE.values() if "<tool_call>" not in text),
    "```json\n{}\n```",
    '```json\n{"city": "Berlin"}\n```',
    "```python\nprint({'name': 'now'})\n```",
    'The tool is {"name": "now"}, with "description": {}.',
    '{"name": "now", "description": "the time", "parameters": "none"}',
    '{"name": "now", "parameters": {"zone": "text"}, "description": "the time"}',
    '{"name": "now", "arguments": [1]}',
    '{"name": "now", "arguments": {"a": 1}',
    '```json\n{"name": "now", "arguments": {"a": 1,}}\n```',
    f"[{NOW}, {UNKNOWN}]",
    f"[{NOW}, {UNKNOWN}]"[:40],
    f'{{"plan": [{CALL}, {NOW}]}}',
    f'{{"plan":\n [1, {{"step":\t"\\n{{", "call": {CALL}}}]}}',
    "<tools>There are none.</tools>",
    "<function=now>no object</function>",
    '{"users": [{"name": "Alice", "arguments": {}}]}',
    '{"type": "object", "properties": {"name": {}}}',
    "See [the list](x), `code`, ``two`` and {braces}.",
]
DECLARATIONS = [
    '{"name": "now", "description": "the time", "parameters": {}}',
    '```json\n{"name": "now", "parameters": {"type": "object", "properties": {}}}\n```',
    '{"name": "now", "parameters": {"properties": {"zone": {}}, "type": "object"}}',
    '{"name": "now", "parameters": {"type": "object"}}',
    '[{"type":"function","function":{"name":"now","parameters":{"type":"object","properties":{}}}}]',
    '[{"name": "now"}, {"name": "get_weather"}] are the tools.',
    '{"name": "now", "note": "it is late", "arguments": {}}',
]
"""Of tools, and what else has a tool's name and no arguments."""
EXAMPLES = [
    f"A call is {CALL} in JSON.",
    f"A call looks like `{CALL}` here.",
    f"`{CALL}` is a call, as is `<tools>{CALL}</tools>`.",
    f"See ```{CALL}``` and ``` x``` as code.",
    f"See [{CALL}].",
    f"```python\nx = {CALL}\nprint(x)\n```",
    f"```python\nx = (\n{CALL}\n)\n```",
    f"```js\n{CALL}\ncall(it)\n```",
    f"```\nThis is a call:\n\n{CALL}\n```",
    f"````md\n```json\n{CALL}\n```\n````",
    f"````\n{CALL}\n````",
    f'So: {{"plan": [\n{CALL}\n]}}',
]
"""Of calls, in texts that show them."""
BEHIND_WORDS = [text for name, text in ONE.items() if name != "fence that does not end"]


@pytest.mark.parametrize("name", ["hermes", "llama3_json", "mistral"])
def test_a_call_of_a_known_tool_is_read_without_the_marks_at_every_cut(name: str) -> None:
    wrong = []
    for case, text in ONE.items():
        whole = events_of(name, text)
        if calls_in(whole) != [WEATHER] or content_in(whole):
            if not ("<tool_call>" in text and name != "hermes"):
                wrong.append(f"{case}: {text!r} is read as {whole}")
            continue
        cuts = [*cut_everywhere(text), *halves(text)]
        wrong += [f"{case}: {parts}" for parts in cuts if streamed(name, *parts) != whole]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("case", SEVERAL)
def test_several_calls_are_read_without_the_marks_at_every_cut(case: str) -> None:
    text = SEVERAL[case]
    whole = events_of("hermes", text)
    assert calls_in(whole) == [WEATHER, ("now", {})]
    assert content_in(whole) == ""
    assert [
        parts for parts in (*cut_everywhere(text), *halves(text)) if streamed("hermes", *parts) != whole
    ] == []


@pytest.mark.parametrize("name", LOOSE)
def test_every_format_of_json_reads_a_fence_and_bare_json(name: str) -> None:
    for text in (ONE["fence"], ONE["bare"], ONE["tools"], ONE["fence that does not end"]):
        whole = events_of(name, text)
        assert (calls_in(whole), content_in(whole)) == ([WEATHER], "")
        assert streamed(name, *text) == whole


@pytest.mark.parametrize("text", BEHIND_WORDS)
def test_words_round_it_are_content(text: str) -> None:
    whole = events_of("hermes", f"I will look:\n{text}\nThat was it.")
    assert calls_in(whole) == [WEATHER]
    assert content_in(whole).split() == ["I", "will", "look:", "That", "was", "it."]
    assert streamed("hermes", *f"I will look:\n{text}\nThat was it.") == whole


@pytest.mark.parametrize("text", TEXT)
@pytest.mark.parametrize("name", ["hermes", "mistral", "internlm"])
def test_what_calls_no_tool_of_the_request_is_content_as_it_stands(name: str, text: str) -> None:
    for text_ in (text, f"So: {text}\nDone."):
        assert events_of(name, text_) == [Content(text_)]
        for parts in (*halves(text_), *cut_everywhere(text_)):
            assert streamed(name, *parts) == [Content(text_)]


@pytest.mark.parametrize("text", DECLARATIONS)
@pytest.mark.parametrize("name", LOOSE)
def test_the_declaration_of_a_tool_is_content(name: str, text: str) -> None:
    for text_ in (text, f"{text} are the tools.", f"So:\n{text}\nDone."):
        for parts in ([text_], text_, (text_[at : at + 3] for at in range(0, len(text_), 3))):
            assert streamed(name, *parts) == [Content(text_)]


@pytest.mark.parametrize("text", EXAMPLES)
@pytest.mark.parametrize("name", LOOSE)
def test_an_example_of_a_call_is_content(name: str, text: str) -> None:
    for text_ in (text, f"So:\n{text}"):
        for parts in ([text_], text_, (text_[at : at + 3] for at in range(0, len(text_), 3))):
            assert streamed(name, *parts) == [Content(text_)]


@pytest.mark.parametrize(
    "before",
    [
        "`x` and\n",
        "It's `here\n",
        "```python\nx = 1\n```\n",
        "So: ```python\nx = 1```\nDone.\n",
        "````md\n```\n````\n",
        "See ```x``` and\n",
        "<think>```python\nx = 1\n</think>",
    ],
)
def test_a_call_behind_code_is_read(before: str) -> None:
    for call in (CALL, f"```json\n{CALL}\n```", f"<tools>{CALL}</tools>", f"```python\n{CALL}\n```"):
        whole = events_of("hermes", before + call)
        assert calls_in(whole) == [WEATHER]
        assert content_in(whole) == before
        assert streamed("hermes", *(before + call)) == whole


def test_words_in_front_are_sent_before_the_call_is_known() -> None:
    parser = call_format("hermes").parser(TOOLS, "")
    assert parser.push("I will look:\n```json\n{") == [Content("I will look:")]
    assert parser.push('"name": "now", "arguments": {') == []
    *_, begin, _ = parser.push("}}") + parser.push("\n```") + parser.finish()
    assert begin == CallBegin("now")


def test_an_object_that_is_no_call_is_sent_from_its_first_key_on() -> None:
    parser = call_format("hermes").parser(TOOLS, "")
    sent = parser.push('{"city": ') + parser.push('"Berlin"')
    assert content_in(sent) == '{"city": "Berlin"'
    parser = call_format("hermes").parser(TOOLS, "")
    sent = parser.push('{"name": "Alice"') + parser.push(', "town": "B')
    assert content_in(sent) == '{"name": "Alice", "town": "B'


@pytest.mark.parametrize("begins", ['{"arguments": " x', '{"name": "now", "note": "x', '{"parameters": "'])
def test_an_object_is_sent_as_soon_as_it_cannot_be_a_call(begins: str) -> None:
    for name in ("hermes", "llama3_json"):
        parser = call_format(name).parser(TOOLS, "")
        sent = parser.push(begins) + parser.push("abc") + parser.push("def")
        assert content_in(sent) == f"{begins}abcdef"


def test_a_tool_may_have_arguments_that_are_called_as_those_of_a_schema() -> None:
    arguments = '{"type": "object", "properties": {}}'
    tools = {"define": {"type": "object", "properties": {"type": {}, "properties": {}}}}
    for name in ("hermes", "llama3_json"):
        parser = call_format(name).parser(tools, "")
        (call,) = calls_in(parsed(parser, f'{{"name": "define", "parameters": {arguments}}}'))
        assert call == ("define", {"type": "object", "properties": {}})


@given(
    st.lists(
        st.sampled_from(
            [
                *OPENS,
                *CLOSES,
                "```json\n",
                "```js\n",
                "```\n",
                "````",
                "`",
                "</tool_call>",
                CALL,
                NOW,
                UNKNOWN,
                CALL[:30],
                "}",
                "]",
            ]
        )
        | st.text(alphabet=' \n,a:"', max_size=4),
        max_size=7,
    ),
    st.sampled_from(LOOSE),
    st.integers(1, 9),
)
@settings(max_examples=500)
def test_any_mixture_is_read_alike_at_any_cut(parts: list[str], name: str, size: int) -> None:
    text = "".join(parts)
    sent = streamed(name, text)
    assert streamed(name, *text) == sent
    assert streamed(name, *(text[at : at + size] for at in range(0, len(text), size))) == sent
    if not any(isinstance(event, CallBegin) for event in sent):
        assert content_in(sent) == text


@pytest.mark.parametrize("unit", ["`", "{", "[{", "<tools>", "```json\n", '{"name": ', "<tool_call>"])
def test_text_that_often_looks_like_the_beginning_of_a_call_costs_what_it_is_long(unit: str) -> None:
    text = (unit * 100_000)[:100_000]
    begun = time.process_time()
    assert content_in(events_of("hermes", text)) == text
    assert time.process_time() - begun < 5 * SLOWNESS
    begun = time.process_time()
    assert content_in(streamed("hermes", *(text[at : at + 4] for at in range(0, len(text), 4)))) == text
    assert time.process_time() - begun < 8 * SLOWNESS
