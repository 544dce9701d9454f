"""Reasoning: every format's parts come apart, however the text is cut."""

from __future__ import annotations

import pytest

from slipway.text.parse.calls import CallParser
from slipway.text.parse.events import Arguments, CallBegin, Content, Event, Reasoning, joined
from slipway.text.parse.formats import call_format
from slipway.text.parse.output import NamedCall, Plain, Reasoned, parsed
from slipway.text.parse.reasoning import FORMATS, ReasoningParser

THINK = "<think>First.\n\nThen 1 < 2 </thi.</think>\n\nIt is 2."
TWO = [Reasoning("First.\n\nThen 1 < 2 </thi."), Content("\n\nIt is 2.")]
ANSWER: list[Event] = [Content("It is 2.")]
CASES: list[tuple[str, str, list[Event]]] = [
    *((name, THINK, TWO) for name in ("qwen3", "glm45", "deepseek_r1", "minimax_m2", "olmo3", "step3")),
    *((name, "No thought.", [Content("No thought.")]) for name in ("qwen3", "glm45", "mistral", "granite")),
    *((name, "a</think>b", [Reasoning("a"), Content("b")]) for name in ("deepseek_r1", "step3", "holo2")),
    ("deepseek_r1", "cut short", [Reasoning("cut short")]),
    ("qwen3", "<think>cut short", [Reasoning("cut short")]),
    ("qwen3", "<think></think>b", [Content("b")]),
    ("qwen3", "\n<think>a</think>", [Reasoning("a")]),
    ("qwen3", "See <think>a</think>", [Content("See <think>a</think>")]),
    ("mistral", "[THINK]a[/THINK]b", [Reasoning("a"), Content("b")]),
    ("seed_oss", "<seed:think>a</seed:think>b", [Reasoning("a"), Content("b")]),
    ("granite", "Here's my thought process: a. Here is my response: b", [Reasoning(" a. "), Content(" b")]),
    ("granite", "Here is my answer", [Content("Here is my answer")]),
    ("hunyuan_a13b", "<think>\na\n</think>\n<answer>\nb\n</answer>", [Reasoning("a"), Content("b")]),
    ("hunyuan_a13b", "<think>\n\n</think>\n<answer>\nb\n</answer>", [Content("b")]),
    ("hunyuan_a13b", "<think>\na\nb\n</think>\n<answer>\nb\nc", [Reasoning("a\nb"), Content("b\nc")]),
    (
        "hunyuan_a13b",
        "So <think>\na\n</think>\n<answer>\nb\n</answer>",
        [Content("So "), Reasoning("a"), Content("b")],
    ),
    ("hunyuan_a13b", "See <think>, a</think>b", [Content("See <think>, a</think>b")]),
    ("hunyuan_a13b", "<answer>\nb\n</answer>", [Content("b")]),
    ("mistral", "So [THINK]a[/THINK]b", [Content("So "), Reasoning("a"), Content("b")]),
    ("mistral", "So [THINK]a", [Content("So "), Reasoning("a")]),
    ("mistral", "a[/THINK]b", [Content("ab")]),
    ("mistral", "[THINK]a[/THINK]b[THINK]c", [Reasoning("a"), Content("b[THINK]c")]),
    ("step3p5", "<think>a\n</think>\nb", [Reasoning("a"), Content("b")]),
    ("step3p5", "a\n\n</think>\n\nb\n", [Reasoning("a\n"), Content("\nb\n")]),
    ("step3p5", "</think>b", [Content("b")]),
    ("step3", "cut short", [Reasoning("cut short")]),
    ("hunyuan_a13b", "<think>a</think>b", [Reasoning("a"), Content("b")]),
    ("minimax_m2_append_think", "a</think>b", [Content("<think>a</think>b")]),
    ("minimax_m2_append_think", "<think>a</think>\nb", [Content("<think>a</think>\nb")]),
    ("minimax_m2_append_think", "cut short", [Content("<think>cut short")]),
    ("ernie45", "a\n</think>\n\n<response>\nb\n</response>\n", [Reasoning("a\n"), Content("b")]),
]


def reader(name: str) -> Reasoned:
    return Reasoned(FORMATS[name].parser(""), Plain(), kept=FORMATS[name].kept)


def whole(name: str, text: str) -> list[Event]:
    return parsed(reader(name), text)


def streamed(name: str, *parts: str) -> list[Event]:
    parser = reader(name)
    return joined([event for part in parts for event in parser.push(part)] + parser.finish())


@pytest.mark.parametrize(("name", "text", "expected"), CASES, ids=str)
def test_reasoning_and_answer_come_apart_at_every_cut(name: str, text: str, expected: list[Event]) -> None:
    assert whole(name, text) == expected
    for cut in range(len(text) + 1):
        assert streamed(name, text[:cut], text[cut:]) == expected
    assert streamed(name, *text) == expected


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize(
    "text", ["", "x", "<", "<think", "</think></think>", "<think><think>a</think>", "[THINK"]
)
def test_any_text_is_read_whole(name: str, text: str) -> None:
    found = whole(name, text)
    assert streamed(name, *text) == found
    kept = "".join(event.text for event in found if not isinstance(event, CallBegin))
    assert len(kept) >= len(text.replace("<think>", "").replace("</think>", ""))


def test_it_goes_on_with_what_the_prompt_has_begun() -> None:
    assert FORMATS["qwen3"].begins_inside("<|im_start|>assistant\n<think>\n")
    assert not FORMATS["qwen3"].begins_inside("<|im_start|>assistant\n")
    assert not FORMATS["deepseek_r1"].begins_inside("<|im_start|>assistant\n<think>\n\n</think>\n\n")
    assert FORMATS["deepseek_r1"].begins_inside("<|im_start|>assistant\n")


def test_a_template_may_turn_it_off() -> None:
    assert FORMATS["qwen3"].is_on({})
    assert not FORMATS["deepseek_v3"].is_on({})
    assert FORMATS["deepseek_v3"].is_on({"thinking": True})
    assert FORMATS["holo2"].is_on({})
    assert not FORMATS["holo2"].is_on({"thinking": False})


def test_calls_are_read_behind_it_and_not_within() -> None:
    call = '<tool_call>{"name": "f", "arguments": {}}</tool_call>'
    text = f"<think>I might {call}</think>\n{call}"
    expected = [Reasoning(f"I might {call}"), CallBegin("f"), Arguments("{}")]
    for cut in range(len(text) + 1):
        reasoning = ReasoningParser(FORMATS["qwen3"], inside=False)
        parser = Reasoned(reasoning, CallParser(call_format("hermes"), {}))
        events = parser.push(text[:cut]) + parser.push(text[cut:]) + parser.finish()
        assert joined(events) == expected
    kimi = ReasoningParser(FORMATS["kimi_k2"], inside=True)
    parser = Reasoned(kimi, CallParser(call_format("kimi_k2"), {}))
    section = (
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{}"
        "<|tool_call_end|><|tool_calls_section_end|>"
    )
    expected = [Reasoning("So I call."), CallBegin("f", "functions.f:0"), Arguments("{}")]
    assert parsed(parser, f"So I call.{section}") == expected


def test_reasoning_that_is_kept_is_content_in_which_no_call_is_read() -> None:
    call = '<minimax:tool_call><invoke name="f"></invoke></minimax:tool_call>'
    form, calls = FORMATS["minimax_m2_append_think"], call_format("minimax_m2")
    text = f"I might {call}</think>\n\n{call}"
    for cut in range(len(text) + 1):
        parser = Reasoned(form.parser("<think>\n"), calls.parser({}, ""), kept=form.kept)
        events = parser.push(text[:cut]) + parser.push(text[cut:]) + parser.finish()
        assert joined(events) == [
            Content(f"<think>I might {call}</think>"), CallBegin("f"), Arguments("{}")
        ]  # fmt: skip
    parser = Reasoned(form.parser("<think>\n\n</think>\n\n"), Plain(), kept=form.kept)
    assert parsed(parser, "b") == [Content("b")]


def test_a_named_call_is_all_of_the_answer() -> None:
    parser = Reasoned(ReasoningParser(FORMATS["qwen3"], inside=True), NamedCall("f"))
    assert parsed(parser, 'a</think>{"x": 1}') == [Reasoning("a"), CallBegin("f"), Arguments('{"x": 1}')]
    assert parsed(NamedCall("f"), "") == [CallBegin("f")]
