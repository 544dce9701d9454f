"""Harmony: reasoning, content and calls come out of their channels, however the text is cut."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slipway.text.parse.events import Arguments, CallBegin, Content, Event, Reasoning, joined
from slipway.text.parse.formats import call_format
from slipway.text.parse.harmony import MARKERS
from slipway.text.parse.output import Parser, Plain, Reasoned, parsed
from slipway.text.parse.reasoning import FORMATS

PROMPT = "<|start|>user<|message|>Rain?<|end|><|start|>assistant"
THINK = "<|channel|>analysis<|message|>They want rain.<|end|>"
NEXT = "<|start|>assistant"
FINAL = "<|channel|>final<|message|>It rains.<|return|>"
CALL = '<|channel|>commentary to=functions.f <|constrain|>json<|message|>{"city": "Ulm"}<|call|>'
ULM = Arguments('{"city": "Ulm"}')
CASES: list[tuple[str, list[Event]]] = [
    (FINAL, [Content("It rains.")]),
    (THINK + NEXT + FINAL, [Reasoning("They want rain."), Content("It rains.")]),
    (THINK + NEXT + CALL, [Reasoning("They want rain."), CallBegin("f"), ULM]),
    # The stop token is not part of the text.
    (THINK + NEXT + FINAL.removesuffix("<|return|>"), [Reasoning("They want rain."), Content("It rains.")]),
    (CALL.removesuffix("<|call|>"), [CallBegin("f"), ULM]),
    (CALL + NEXT + CALL, [CallBegin("f"), ULM, CallBegin("f"), ULM]),
    (
        f"{THINK}{NEXT}<|channel|>commentary<|message|>**Plan**:\n1. Look.\n<|end|>{NEXT}{CALL}",
        [Reasoning("They want rain."), Content("**Plan**:\n1. Look.\n"), CallBegin("f"), ULM],
    ),
    (
        f"{THINK}\n{NEXT}{THINK}\n{NEXT}<|channel|>commentary<|message|>So.<|end|>{NEXT}{FINAL}",
        [Reasoning("They want rain.\nThey want rain."), Content("So.\nIt rains.")],
    ),
    ("<|channel|>analysis to=functions.f code<|message|>{}<|call|>", [CallBegin("f"), Arguments("{}")]),
    (
        ' to=functions.f<|channel|>commentary json<|message|> {"a": [1, {"b": 1e3}]} <|call|>',
        [CallBegin("f"), Arguments('{"a": [1, {"b": 1e3}]}')],
    ),
    (
        '<|channel|>commentary to=functions.a.b-c<|message|>{"é\\"\\\\": "日本 \\ud83d\\ude00"}<|end|>',
        [CallBegin("a.b-c"), Arguments('{"é\\"\\\\": "日本 \\ud83d\\ude00"}')],
    ),
    ("<|channel|>commentary to=functions.f<|message|><|call|>", [CallBegin("f"), Arguments("{}")]),
    # Browsing and running Python is what no client does.
    ("<|channel|>analysis to=python code<|message|>1 + 1<|call|>", [Reasoning("1 + 1")]),
    # What the models leave out.
    (f"<|channel|>analysis<|message|>They{NEXT}{FINAL}", [Reasoning("They"), Content("It rains.")]),
    (f"<|channel|>analysis<|message|>They{FINAL}", [Reasoning("They"), Content("It rains.")]),
    ("<|channel|>final <|constrain|>json<|message|>{}<|return|>", [Content("{}")]),
    ("<|message|>It rains.", [Content("It rains.")]),
    ("to be or not", [Content("to be or not")]),
    (" It rains.\n", [Content(" It rains.\n")]),
]
BROKEN = [
    CALL[:12],
    CALL[:40],
    CALL.removesuffix('"}<|call|>'),
    CALL.partition("<|message|>")[0],
    CALL.partition("{")[0],
    CALL.replace('"Ulm"', "Ulm").removesuffix("<|call|>"),
    CALL.replace('{"city": "Ulm"}', "print(1)").removesuffix("<|call|>"),
]


def reader() -> Parser:
    return call_format("openai").parser({}, PROMPT)


def without_calls() -> Parser:
    return Reasoned(FORMATS["openai_gptoss"].parser(PROMPT), Plain())


def streamed(parser: Parser, *parts: str) -> list[Event]:
    return joined([event for part in parts for event in parser.push(part)] + parser.finish())


@pytest.mark.parametrize(("text", "expected"), CASES)
def test_messages_come_out_of_their_channels_at_every_cut(text: str, expected: list[Event]) -> None:
    assert parsed(reader(), text) == expected
    for cut in range(len(text) + 1):
        assert streamed(reader(), text[:cut], text[cut:]) == expected, text[:cut]
    assert streamed(reader(), *text) == expected


@pytest.mark.parametrize("text", BROKEN)
def test_a_broken_call_is_content_when_whole(text: str) -> None:
    assert parsed(reader(), text) == [Content(text)]
    sent = streamed(reader(), *text)
    assert sent == [Content(text)] or sent[0] == CallBegin("f")
    assert parsed(reader(), THINK + NEXT + text)[0] == Reasoning("They want rain.")


def test_arguments_arrive_as_they_are_written() -> None:
    parser = reader()
    begin, _, rest = CALL.partition("Ulm")
    assert parser.push(begin)[0] == CallBegin("f")
    assert parser.push("U") == [Arguments("U")]
    assert parser.push(f"lm{rest}")[0] == Arguments("lm")


def test_without_tools_a_call_is_the_content_of_its_message() -> None:
    text = THINK + NEXT + CALL
    for cut in range(len(text) + 1):
        expected = [Reasoning("They want rain."), Content('{"city": "Ulm"}')]
        assert streamed(without_calls(), text[:cut], text[cut:]) == expected
    assert parsed(without_calls(), THINK + NEXT + FINAL)[1] == Content("It rains.")


@pytest.mark.parametrize(
    ("prompt", "text", "expected"),
    [
        ("<|start|>assistant<|channel|>final<|message|>It", " rains.", [Content(" rains.")]),
        ("<|start|>assistant<|channel|>analysis<|message|>", "So.", [Reasoning("So.")]),
        ("<|start|>assistant<|channel|>analysis", "<|message|>So.", [Reasoning("So.")]),
        ("<|start|>user<|message|>Rain?<|end|>", NEXT + FINAL, [Content("It rains.")]),
        ("Rain?", NEXT + FINAL, [Content("It rains.")]),
        ('<|start|>assistant to=functions.f<|channel|>commentary<|message|>{"a"', ": 1}", [Content(": 1}")]),
    ],
)
def test_the_prompt_has_begun_the_first_message(prompt: str, text: str, expected: list[Event]) -> None:
    for cut in range(len(text) + 1):
        parser = call_format("openai").parser({}, prompt)
        assert streamed(parser, text[:cut], text[cut:]) == expected


PIECES = [*sorted(MARKERS), "assistant", "analysis", "commentary", "final", " to=functions.f", "{}", "x\n"]


@given(st.lists(st.sampled_from(PIECES), max_size=12), st.data())
@settings(max_examples=500)
def test_any_messages_are_read_the_same_at_any_cut(pieces: list[str], data: st.DataObject) -> None:
    text = "".join(pieces)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=4)))
    parts = [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    for make in (reader, without_calls):
        sent = streamed(make(), *parts)
        assert sent == streamed(make(), *text)
        parser = make()
        whole = parsed(parser, text)
        assert parser.broken_off is not None or whole == sent
    arguments = [event.text for event in parsed(reader(), text) if isinstance(event, Arguments)]
    assert all(isinstance(json.loads(text), dict) for text in arguments)
