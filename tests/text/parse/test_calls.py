"""Tool calls: every format's calls come out as they went in, however the text is cut."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest
from e2e.ground.patience import SLOWNESS
from formats import BARE, KNOWN_ALONE, OTHERS, WRITE, Call, Write
from hypothesis import given, settings
from hypothesis import strategies as st

from slipway.args.schema import ARGUMENTS
from slipway.text.parse.events import Arguments, CallBegin, Content, Event, joined
from slipway.text.parse.formats import NAMES, call_format
from slipway.text.parse.output import parsed
from slipway.text.parse.reasoning import FORMATS

TOOLS: dict[str, dict[str, Any]] = {
    "get_weather": {
        "type": "object",
        "properties": {
            "city": {"type": "string"},
            "days": {"type": "integer"},
            "wind": {"anyOf": [{"type": "number"}, {"type": "null"}]},
            "hourly": {"type": "boolean"},
            "fields": {"type": "array", "items": {"type": "string"}},
            "place": {"type": "object", "properties": {"zip": {"type": "string"}}},
        },
    },
    "now": {"type": "object", "properties": {}},
}
CASES: dict[str, list[Call]] = {
    "one": [("get_weather", {"city": "Berlin"})],
    "parallel": [
        ("get_weather", {"city": "Berlin"}),
        ("get_weather", {"city": "Rome", "days": 2}),
        ("now", {}),
    ],
    "nested": [("get_weather", {"place": {"zip": "10115", "deep": [[1, {"a": []}], {}]}, "fields": ["a"]})],
    "unicode": [("get_weather", {"city": "São Paulo 日本 😀", "fields": ["ü"]})],
    "escapes": [("get_weather", {"city": 'a "b" \\ c/d', "fields": ['"', "it's", "x{}[]<y>"]})],
    "lines": [("get_weather", {"city": "line one\n\tline two", "days": 1})],
    "numbers": [("get_weather", {"days": -3, "wind": 1.5, "hourly": True}), ("get_weather", {"wind": None})],
    "digits": [("get_weather", {"city": "12345"})],
    "no arguments": [("now", {})],
    "no tool of ours": [("get_weather", {"city": "x"}), ("other.tool-2", {"q": "free text", "n": [1]})],
}
WRITERS = [*WRITE.items(), *OTHERS]
IDS = [f"{name} {place}" for place, (name, _) in enumerate(WRITERS)]
EACH_WRITER = pytest.mark.parametrize(("name", "write"), WRITERS, ids=IDS)
SIZES = (1, 7, 41)
"""Of pieces: within a mark, of a mark or an argument, and of a call. See `cut_everywhere`."""


def events_of(name: str, text: str) -> list[Event]:
    return parsed(call_format(name).parser(TOOLS, ""), text)


def streamed(name: str, *parts: str) -> list[Event]:
    parser = call_format(name).parser(TOOLS, "")
    return joined([event for part in parts for event in parser.push(part)] + parser.finish())


def calls_in(events: list[Event]) -> list[Call]:
    """Each call's name and arguments. Raises where the arguments are no JSON."""
    found: list[tuple[str, str]] = []
    for event in events:
        if isinstance(event, CallBegin):
            found.append((event.name, ""))
        elif isinstance(event, Arguments):
            found[-1] = (found[-1][0], found[-1][1] + event.text)
    return [(name, json.loads(arguments)) for name, arguments in found]


def content_in(events: list[Event]) -> str:
    return "".join(event.text for event in events if isinstance(event, Content))


def halves(text: str) -> Iterator[list[str]]:
    """The text in two parts, cut at each place."""
    return ([text[:cut], text[cut:]] for cut in range(len(text) + 1))


def cut_everywhere(text: str) -> Iterator[list[str]]:
    """The text in pieces of each of the sizes, which begin at each place once.

    So each size has a cut at each place of the text, in as many readings as the size says. In halves they
    would be as many as the text is long.
    """
    for size in SIZES:
        for first in range(min(size, len(text))):
            ends = [*range(first, len(text), size), len(text)]
            yield [text[begin:end] for begin, end in zip([0, *ends], ends, strict=False)]


def test_a_text_is_cut_at_each_place_by_each_size() -> None:
    text = "".join(map(chr, range(100)))
    cuts = [[len("".join(parts[:end])) for end in range(1, len(parts))] for parts in cut_everywhere(text)]
    assert {"".join(parts) for parts in cut_everywhere(text)} == {text}
    assert sorted(cut for places in cuts for cut in places) == sorted([*range(100)] * len(SIZES))


def test_each_name_is_tried() -> None:
    assert set(WRITE) == set(NAMES) == set(ARGUMENTS["tool_call_parser"].choices)
    assert set(FORMATS) == set(ARGUMENTS["reasoning_parser"].choices)


@EACH_WRITER
def test_calls_come_out_as_they_went_in_at_every_cut(name: str, write: Write) -> None:
    """In all cases by pieces of several sizes, in that of one call also in halves."""
    wrong = []
    for case, calls in CASES.items():
        if write(calls).startswith(KNOWN_ALONE):
            calls = [call for call in calls if call[0] in TOOLS]
        text = write(calls)
        whole = events_of(name, text)
        if calls_in(whole) != calls or content_in(whole):
            wrong.append(f"{case}: {text!r} is read as {whole}")
            continue
        cuts = [*cut_everywhere(text), *(halves(text) if case == "one" else ())]
        wrong += [f"{case}: {parts}" for parts in cuts if streamed(name, *parts) != whole]
    assert not wrong, "\n".join(wrong)


@EACH_WRITER
def test_text_round_a_call_is_content_with_the_space_in_front_of_it(name: str, write: Write) -> None:
    calls = CASES["one"]
    lone = write(calls)
    if lone[0] not in "[{":  # those have to begin the output
        text = f"  I will look.\n\n{lone}\n"
        whole = events_of(name, text)
        assert calls_in(whole) == calls
        assert content_in(whole) == ("  I will look." if call_format(name).trims else "  I will look.\n\n")
        assert [parts for parts in halves(text) if streamed(name, *parts) != whole] == []
    text = f"\n{lone}\nThat was it."
    whole = events_of(name, text)
    assert calls_in(whole) == calls
    assert content_in(whole).strip() == "That was it."
    assert streamed(name, *text) == whole


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Hello",
        " \n a < b [1] {x} <tool",
        "<｜",
        "1 [2](3)\n",
        '{"a": 1}',
        "[1, 2]",
        "[see] above",
        "\n\n",
    ],
)
def test_what_holds_no_call_is_content_letter_by_letter(text: str) -> None:
    content = [Content(text)] if text else []
    assert [name for name in NAMES if events_of(name, text) != content] == []
    assert [name for name in NAMES if streamed(name, *text) != content] == []


@pytest.mark.slow
@EACH_WRITER
def test_a_call_that_breaks_off_is_content_when_whole_and_nothing_more_when_streamed(
    name: str, write: Write
) -> None:
    calls = CASES["parallel"]
    text = write(calls)
    for cut in range(len(text)):
        begun = text[:cut]
        whole = events_of(name, begun)
        done = calls_in(whole)  # all of them are complete
        assert done == calls[: len(done)]
        sent = streamed(name, *begun)
        names = [event.name for event in sent if isinstance(event, CallBegin)]
        assert names == [name for name, _ in calls[: len(names)]]
        assert len(done) <= len(names) <= len(done) + 1
        if len(names) == len(done):
            assert sent == whole
        if not done:
            assert content_in(whole) == begun


@pytest.mark.slow
@EACH_WRITER
def test_nonsense_within_a_call_invents_none(name: str, write: Write) -> None:
    text = write(CASES["nested"])
    for place in range(0, len(text), 3):
        for wrong in ("\x00", "}", "<", '"'):
            broken = text[:place] + wrong + text[place + 1 :]
            events = events_of(name, broken)
            assert len(calls_in(events)) <= 1
            streamed(name, *broken)


@given(
    st.sampled_from(NAMES), st.text(alphabet='<>[]{}"\\:,=()|/_ \nabfun｜tool▁call', max_size=80), st.data()
)
@settings(max_examples=400)
def test_any_text_is_read_without_an_exception_and_the_same_at_any_cut(
    name: str, text: str, data: st.DataObject
) -> None:
    marks = sorted(call_format(name).markers)
    if marks:
        text = data.draw(st.sampled_from(marks)) + text + data.draw(st.sampled_from(marks))
    whole = events_of(name, text)
    sent = streamed(name, *text)
    assert streamed(name, text) == sent
    if not any(isinstance(event, CallBegin) for event in sent):
        assert whole == sent
        assert content_in(whole) == text or call_format(name).channels  # whose marks are left out


def test_a_call_whose_mark_was_left_out_is_of_a_known_tool_alone() -> None:
    call = WRITE["qwen3_coder"]([("get_whether", {"city": "x"})]).removeprefix("<tool_call>\n")
    text = f"Let me see.\n\n{call}\nSo."
    assert events_of("qwen3_coder", text) == streamed("qwen3_coder", *text) == [Content(text)]
    known = text.replace("get_whether", "now").replace("city", "zone")
    assert calls_in(events_of("qwen3_coder", known)) == [("now", {"zone": "x"})]
    assert streamed("qwen3_coder", *known) == events_of("qwen3_coder", known)
    assert content_in(events_of("qwen3_coder", known)) == "Let me see.\n\n\nSo."


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("qwen3_coder", "In the docs, <function=now> begins a call and the rest is parameters."),
        ("qwen3_xml", "Write <tool_call>\n<function=now>\nas the first line of a call."),
        ("step3p5", "Write <function=now>a word</function> in your file."),
        ("seed_oss", "<seed:tool_call><function=now> begins a call."),
        ("minimax_m2", '<minimax:tool_call>\n<invoke name="now"> begins a call.'),
        (
            "step3",
            '<｜tool_calls_begin｜><｜tool_call_begin｜>function<｜tool_sep｜><steptml:invoke name="now">.',
        ),
        ("deepseek_v32", '<｜DSML｜function_calls>\n<｜DSML｜invoke name="now"> begins a call.'),
        ("glm45", "<tool_call>now\nis how a call begins."),
        ("glm47", "<tool_call>now\n"),
    ],
)
def test_a_tag_with_a_tools_name_begins_a_call_only_before_an_argument_or_its_end(
    name: str, text: str
) -> None:
    assert events_of(name, text) == [Content(text)]
    for parts in cut_everywhere(text):
        assert streamed(name, *parts) == [Content(text)]


def test_bare_calls_are_of_known_tools_alone() -> None:
    for name in BARE:
        text = WRITE[name]([("get_whether", {"city": "x"})])
        if text[0] in "[{":
            assert events_of(name, text) == [Content(text)]


def test_a_string_argument_arrives_as_it_is_written() -> None:
    """A file that a coding model writes is not held back until its end."""
    begin = "<tool_call>\n<function=get_weather>\n<parameter=city>\n"
    parser = call_format("qwen3_coder").parser(TOOLS, "")
    parser.push(begin)
    news = [parser.push(word) for word in ("first ", "second ", "\n", "third")]
    assert joined([event for events in news for event in events]) == [
        Arguments('{"city": "first second \\nthird')
    ] or all(news[i] for i in (0, 1, 3))
    parser = call_format("hermes").parser(TOOLS, "")
    parser.push('<tool_call>{"name": "get_weather", "arguments": {"city": "')
    assert parser.push("Ber") == [Arguments("Ber")]


def test_a_call_has_the_id_that_the_model_writes() -> None:
    (begin, *_) = events_of("kimi_k2", WRITE["kimi_k2"](CASES["one"]))
    assert begin == CallBegin("get_weather", "functions.get_weather:0")
    begin, *_ = events_of("mistral", "[TOOL_CALLS]now[CALL_ID]a1b2c3d4e[ARGS]{}")
    assert begin == CallBegin("now", "a1b2c3d4e")
    text = '[TOOL_CALLS] [{"id": "a1b2c3d4e", "name": "now", "arguments": {}}]'
    assert events_of("mistral", text)[0] == CallBegin("now", "a1b2c3d4e")


def test_a_number_too_long_for_python_is_no_exception() -> None:
    text = '<tool_call>{"x": ' + "9" * 5000 + ', "name": "now", "arguments": {}}</tool_call>'
    assert events_of("hermes", text) == [Content(text)]
    assert streamed("hermes", text) == [Content(text)]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("xlam", 'So:\n```json\n{"name": "Alice", "age": 5}\n```'),
        ("xlam", 'So:\n```json\n[{"name": "Alice", "arguments": {}}]\n```'),
        ("gigachat3", 'A function call {"name": "x"} is JSON.'),
        ("glm45", "The tag <tool_call>opens\na call, and </tool_call> ends it."),
        ("pythonic", "[now(a=" + "-" * 3000 + "1)]"),
        ("pythonic", "[now(a=1+1)]"),
        ("hermes", '<tool_call>{"name": "\\ud83d", "arguments": {}}</tool_call>'),
        ("hermes", '<tool_call>{"id": "\\ud83d", "name": "now", "arguments": {}}</tool_call>'),
        ("pythonic", '[now(a="\\ud83d!")]'),
        ("pythonic", '[now(a="\\ude00")]'),
        ("pythonic", '[now(a="\\U0000d83d")]'),
        ("mistral", "[TOOL_CALLS]" + "a" * 5000 + "{}"),
    ],
    ids=lambda case: str(case)[:40],
)
def test_what_is_no_call_of_a_tool_is_content(name: str, text: str) -> None:
    assert calls_in(events_of(name, text)) == []
    assert content_in(events_of(name, text)) == text
    for event in streamed(name, *text):
        event.text.encode() if isinstance(event, Content | Arguments) else event.name.encode()  # type: ignore[union-attr]


def test_halves_of_a_character_are_joined() -> None:
    (call,) = calls_in(events_of("pythonic", r'[now(a="\ud83d\ude00")]'))
    assert call == ("now", {"a": "\U0001f600"})


@pytest.mark.parametrize("size", [1, 4, 7, 200])
def test_all_text_behind_a_call_that_breaks_is_kept_for_a_whole_answer(size: int) -> None:
    text = 'Sure. <tool_call>{"name": "now", "arguments": {"a": 1,}}</tool_call>\nThat is all.'
    parser = call_format("hermes").parser(TOOLS, "")
    for at in range(0, len(text), size):
        parser.push(text[at : at + size])
    parser.finish()
    assert parser.broken_off == text.removeprefix("Sure. ")


def test_a_number_without_end_costs_what_it_is_long() -> None:
    parser = call_format("hermes").parser(TOOLS, "")
    parser.push('<tool_call>{"name": "now", "arguments": {"a": 0.')
    begun = time.process_time()
    for _ in range(50_000):
        parser.push("3333")
    assert time.process_time() - begun < 2 * SLOWNESS


@pytest.mark.parametrize("begins", ["\n\n", " ", ""])
def test_white_space_alone_in_front_of_a_call_is_no_content(begins: str) -> None:
    text = begins + WRITE["hermes"](CASES["parallel"]) + "\n"
    whole = events_of("hermes", text)
    assert content_in(whole) == ""
    assert all(streamed("hermes", *parts) == whole for parts in halves(text))


THOUGHTS = "<think>\nI might call {}.\n</think>"


@EACH_WRITER
def test_a_call_behind_reasoning_that_nothing_else_reads_is_one(name: str, write: Write) -> None:
    lone = write(CASES["one"])
    for thoughts in ("<think>I need it.</think>", "I need it.</think>"):
        if thoughts[0] == "I" and lone[0] == "{" and not call_format(name).loose:
            continue
        text = f"{thoughts}\n\n{lone}"
        whole = events_of(name, text)
        assert calls_in(whole) == CASES["one"]
        assert content_in(whole).strip() == thoughts
        assert [parts for parts in halves(text) if streamed(name, *parts) != whole] == []


@pytest.mark.parametrize(("name", "write"), [(n, w) for n, w in WRITERS if n in ("minimax_m1", "xlam")])
def test_a_call_within_reasoning_is_left_alone(name: str, write: Write) -> None:
    thoughts = THOUGHTS.format(write([("now", {})]))
    for before in ("", "Let me see. "):
        text = f"{before}{thoughts}\n\n{write(CASES['one'])}"
        whole = events_of(name, text)
        assert calls_in(whole) == CASES["one"]
        assert content_in(whole).strip() == before + thoughts
        assert [parts for parts in halves(text) if streamed(name, *parts) != whole] == []
    for text in (thoughts, thoughts.removesuffix("</think>"), f"{thoughts} So no."):
        assert events_of(name, text) == streamed(name, *text) == [Content(text)]


@pytest.mark.parametrize("name", ["minimax_m1", "xlam"])
def test_reasoning_that_the_prompt_has_begun_is_left_alone(name: str) -> None:
    text = f"I might {WRITE[name]([('now', {})])}</think>\n{WRITE[name](CASES['one'])}"
    parser = call_format(name).parser(TOOLS, "<assistant>\n<think>\n")
    assert calls_in(parsed(parser, text)) == CASES["one"]


@pytest.mark.parametrize("name", ["hermes", "llama3_json", "granite"])
def test_within_reasoning_only_a_mark_makes_a_call(name: str) -> None:
    bare = '{"name": "now", "arguments": {}}'
    text = f"<think>I might say {bare}</think>Hello."
    assert events_of(name, text) == streamed(name, *text) == [Content(text)]
    text = f"<think>I call now.\n{WRITE['hermes'](CASES['one'])}"
    assert calls_in(events_of("hermes", text)) == CASES["one"]
