"""Tool calls and reasoning, from what the engine writes to what clients get."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import jsonschema
import openai
import pytest
import scripted
import tokenizers
from serving import MODEL, Served, texts_of

from factory import write_tokenizer
from grammars import accepts, compiled
from live_server import live_server
from slipway.api.configure import api_settings
from slipway.api.formats import formats
from slipway.args import resolve
from slipway.engine.messages import ReasoningBounds
from slipway.envs import read
from slipway.exits import Exit
from slipway.text.open import load
from slipway.text.parse.harmony import MARKERS
from slipway.text.parse.reasoning import FORMATS, ReasoningFormat

SAY = [{"role": "user", "content": "Weather?"}]
WEATHER = {
    "type": "object",
    "properties": {
        "city": {"enum": ["Rome", "Bern"]},
        "days": {"type": "integer", "minimum": 1, "maximum": 9},
    },
    "required": ["city", "days"],
    "additionalProperties": False,
}
NOW = {"type": "object", "properties": {}, "additionalProperties": False}
TOOLS: Any = [
    {"type": "function", "function": {"name": "weather", "parameters": WEATHER}},
    {"type": "function", "function": {"name": "now", "parameters": NOW}},
]
CALL = '{"name": "weather", "arguments": {"city": "Rome", "days": 2}}'
TAGGED = f"<tool_call>\n{CALL}\n</tool_call>"
AUTO = ("--enable-auto-tool-choice", "--tool-call-parser", "hermes")


def whole(served: Served, **fields: Any) -> Any:
    answer = served.openai().chat.completions.create(model=MODEL, messages=SAY, max_tokens=300, **fields)  # type: ignore[arg-type]
    return answer.choices[0]


def streamed(served: Served, **fields: Any) -> dict[str, Any]:
    """The deltas of a stream, put together as clients do."""
    found: dict[str, Any] = {"content": "", "reasoning_content": "", "tool_calls": [], "finish_reason": None}
    stream = served.openai().chat.completions.create(
        model=MODEL, messages=SAY, max_tokens=300, stream=True, **fields
    )  # type: ignore[call-overload]
    for chunk in stream:
        assert found["finish_reason"] is None, "nothing follows the end"
        (choice,) = chunk.choices
        delta = choice.delta
        found["content"] += delta.content or ""
        found["reasoning_content"] += getattr(delta, "reasoning_content", None) or ""
        assert getattr(delta, "reasoning_content", None) == getattr(delta, "reasoning", None)
        for call in delta.tool_calls or ():
            if call.id is not None:
                assert (call.index, call.type) == (len(found["tool_calls"]), "function")
                found["tool_calls"].append([call.function.name, ""])
            found["tool_calls"][call.index][1] += call.function.arguments
        found["finish_reason"] = choice.finish_reason
    return found


def both(served: Served, **fields: Any) -> dict[str, Any]:
    """An answer, which is the same whole and streamed."""
    choice = whole(served, **fields)
    message = choice.message
    calls = [[call.function.name, call.function.arguments] for call in message.tool_calls or ()]
    found = {
        "content": message.content or "",
        "reasoning_content": getattr(message, "reasoning_content", None) or "",
        "tool_calls": calls,
        "finish_reason": choice.finish_reason,
    }
    assert streamed(served, **fields) == found
    assert len({call.id for call in message.tool_calls or ()}) == len(calls)
    return found


def says(served: Served, *parts: str) -> None:
    answer = texts_of(served.tokenizer, *parts)
    served.engine.answer = lambda request: [*answer(request), 2]


def test_a_second_call_that_breaks_off_leaves_the_only_one_that_is_told(start: Callable[..., Served]) -> None:
    served = start(*AUTO)
    says(served, TAGGED, '\n<tool_call>{"name": "now", "argum')
    found = both(served, tools=TOOLS, parallel_tool_calls=False)
    assert found["tool_calls"] == [["weather", '{"city": "Rome", "days": 2}']]


def test_calls_that_the_model_decides_on(start: Callable[..., Served]) -> None:
    served = start(*AUTO)
    says(served, "Let me see.\n", TAGGED, "\n<tool_call>", '{"name": "now", "arguments": {}}</tool_call>')
    found = both(served, tools=TOOLS)
    assert found == {
        "content": "Let me see.\n",
        "reasoning_content": "",
        "tool_calls": [["weather", '{"city": "Rome", "days": 2}'], ["now", "{}"]],
        "finish_reason": "tool_calls",
    }
    assert both(served, tools=TOOLS, tool_choice="auto") == found
    one = both(served, tools=TOOLS, parallel_tool_calls=False)
    assert one == found | {"tool_calls": found["tool_calls"][:1]}
    # Nobody reads what no tools may be called in.
    as_text = both(served, tools=TOOLS, tool_choice="none")
    assert "<tool_call>" in as_text["content"]
    assert as_text["finish_reason"] == "stop"
    assert both(served)["content"] == as_text["content"]
    says(served, "It is sunny.")
    assert both(served, tools=TOOLS) == {
        "content": "It is sunny.", "reasoning_content": "", "tool_calls": [], "finish_reason": "stop"
    }  # fmt: skip
    assert whole(served, tools=TOOLS).message.tool_calls is None


def test_a_message_of_calls_alone_has_no_content(start: Callable[..., Served]) -> None:
    served = start(*AUTO)
    says(served, TAGGED)
    assert whole(served, tools=TOOLS).message.content is None
    assert whole(served, tools=TOOLS, n=3).message.tool_calls[0].function.name == "weather"


def test_a_call_that_max_tokens_cuts_is_content_when_whole(start: Callable[..., Served]) -> None:
    served = start(*AUTO)
    says(served, TAGGED[:60])
    choice = whole(served, tools=TOOLS)
    assert (choice.message.content, choice.message.tool_calls) == (TAGGED[:60], None)
    sent = streamed(served, tools=TOOLS)
    assert [name for name, _ in sent["tool_calls"]] == ["weather"]


def test_logprobs_and_usage_of_a_stream_count_every_token_once(start: Callable[..., Served]) -> None:
    served = start(*AUTO)
    says(served, "So: ", TAGGED)
    plain = whole(served, tools=TOOLS, logprobs=True)
    stream: Any = served.openai().chat.completions.create(
        model=MODEL, messages=SAY, max_tokens=300, stream=True, tools=TOOLS, logprobs=True,
        stream_options={"include_usage": True, "continuous_usage_stats": True},
    )  # type: ignore[call-overload]  # fmt: skip
    *chunks, last = list(stream)
    told = [one for c in chunks if c.choices[0].logprobs for one in c.choices[0].logprobs.content]
    assert [one.token for one in told] == [one.token for one in plain.logprobs.content]
    assert last.usage.completion_tokens == len(told)


def test_reasoning_is_told_apart_under_both_names(start: Callable[..., Served]) -> None:
    served = start("--reasoning-parser", "deepseek_r1", *AUTO)
    says(served, "I think </thi", "</think>", "\n\nSo it is.")
    found = both(served)
    assert (found["reasoning_content"], found["content"]) == ("I think </thi", "\n\nSo it is.")
    message = whole(served).message
    assert message.reasoning == message.reasoning_content
    without = both(served, extra_body={"include_reasoning": False})
    assert (without["reasoning_content"], without["content"]) == ("", "\n\nSo it is.")
    says(served, "First I call.</think>", TAGGED)
    found = both(served, tools=TOOLS)
    assert (found["reasoning_content"], found["content"]) == ("First I call.", "")
    assert found["tool_calls"] == [["weather", '{"city": "Rome", "days": 2}']]
    assert found["finish_reason"] == "tool_calls"


def test_where_the_end_of_reasoning_is_no_token_a_form_holds_from_the_first(
    start: Callable[..., Served],
) -> None:
    served = start("--reasoning-parser", "deepseek_r1")
    assert served.tokenizer.token_id("</think>") is None
    refused = served.post(
        "/v1/chat/completions", {"model": MODEL, "messages": SAY, "thinking_token_budget": 5}
    )
    assert refused.status_code == 400
    assert "--reasoning-parser" in refused.json()["error"]["message"]
    says(served, '{"a": 1}')
    found = both(served, response_format={"type": "json_object"})
    assert (found["reasoning_content"], found["content"]) == ("", '{"a": 1}')
    says(served, '[{"name": "now", "parameters": {}}]')
    assert both(served, tools=TOOLS, tool_choice="required")["tool_calls"] == [["now", "{}"]]


def test_a_form_holds_behind_the_reasoning_where_a_token_ends_it(
    start: Callable[..., Served], monkeypatch: pytest.MonkeyPatch
) -> None:
    begin, end = "<|endoftext|>", "<|im_start|>"
    monkeypatch.setitem(FORMATS, "qwen3", ReasoningFormat((begin,), (end,)))
    served = start("--reasoning-parser", "qwen3")
    ids = [served.tokenizer.token_id(text) for text in (begin, end)]
    says(served, f"{begin}I think", end, '{"a": 1}')
    found = both(served, response_format={"type": "json_object"})
    assert (found["reasoning_content"], found["content"]) == ("I think", '{"a": 1}')
    assert served.engine.requests[-1].reasoning == ReasoningBounds(*ids, False)  # type: ignore[arg-type]
    both(served, extra_body={"thinking_token_budget": 7})
    request = served.engine.requests[-1]
    assert (request.reasoning, request.grammar) == (ReasoningBounds(*ids, False, 7), "")  # type: ignore[arg-type]
    both(served)
    assert served.engine.requests[-1].reasoning is None


def test_a_stream_that_breaks_off_within_a_call_asks_for_none(start: Callable[..., Served]) -> None:
    served = start("--enable-auto-tool-choice", "--tool-call-parser", "hermes")
    says(served, TAGGED[:50])
    stream = served.openai().chat.completions.create(
        model=MODEL,
        messages=SAY,  # type: ignore[arg-type]
        tools=TOOLS,  # type: ignore[arg-type]
        stream=True,
    )
    assert [chunk.choices[0].finish_reason for chunk in stream][-1] == "stop"


def test_a_required_call_is_read_from_a_list(served: Served) -> None:
    says(
        served,
        '[{"name": "weather", "parameters": {"city": "Bern", "days": 1}}, ',
        '{"name": "now", "parameters": {}}]',
    )
    found = both(served, tools=TOOLS, tool_choice="required")
    assert found["tool_calls"] == [["weather", '{"city": "Bern", "days": 1}'], ["now", "{}"]]
    assert (found["content"], found["finish_reason"]) == ("", "tool_calls")
    grammar = served.engine.requests[-1].grammar
    assert "weather" in grammar
    assert "now" in grammar
    whole(served, tools=TOOLS, tool_choice="required", parallel_tool_calls=False)
    assert served.engine.requests[-1].grammar != grammar


def test_a_named_call_is_the_output(served: Served) -> None:
    says(served, '{"city": "Bern", ', '"days": 1}')
    choice = {"type": "function", "function": {"name": "weather"}}
    found = both(served, tools=TOOLS, tool_choice=choice)
    assert found["tool_calls"] == [["weather", '{"city": "Bern", "days": 1}']]
    assert (found["content"], found["finish_reason"]) == ("", "stop")


def test_a_strict_tool_holds_the_calls_that_the_model_decides_on(start: Callable[..., Served]) -> None:
    served = start(*AUTO)
    says(served, TAGGED)
    strict: Any = [{"type": "function", "function": TOOLS[0]["function"] | {"strict": True}}, TOOLS[1]]
    assert both(served, tools=strict)["tool_calls"] == [["weather", '{"city": "Rome", "days": 2}']]
    grammar = served.engine.requests[-1].grammar
    assert "<tool_call>" in grammar
    assert "Bern" in grammar
    whole(served, tools=[*strict, {"type": "function", "function": {"name": "f", "parameters": {"not": {}}}}])
    whole(served, tools=strict, parallel_tool_calls=False)
    assert served.engine.requests[-1].grammar not in ("", grammar)
    # A call outside the marks is held to no schema, so it is none where a tool is strict.
    says(served, f"```json\n{CALL}\n```")
    assert both(served, tools=strict)["tool_calls"] == []
    assert both(served, tools=TOOLS)["tool_calls"] == [["weather", '{"city": "Rome", "days": 2}']]
    # Nothing else is held by it, nor where no tool is strict, or none may be called.
    for fields in ({"tools": TOOLS}, {"tools": strict, "tool_choice": "none"}):
        whole(served, **fields)
        assert served.engine.requests[-1].grammar == ""
    whole(served, tools=strict, response_format={"type": "json_object"})
    assert "<tool_call>" not in served.engine.requests[-1].grammar
    wrong: Any = {"name": "f", "strict": True, "parameters": {"not": {}}}
    with pytest.raises(openai.BadRequestError, match=r"tools cannot be followed: .*not"):
        whole(served, tools=[{"type": "function", "function": wrong}])


def test_a_strict_tool_holds_behind_the_reasoning(
    start: Callable[..., Served], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(FORMATS, "qwen3", ReasoningFormat(("<|endoftext|>",), ("<|im_start|>",)))
    served = start("--reasoning-parser", "qwen3", *AUTO)
    ids = [served.tokenizer.token_id(text) for text in ("<|endoftext|>", "<|im_start|>")]
    says(served, "<|endoftext|>I might ", TAGGED, "<|im_start|>", TAGGED)
    strict: Any = [{"type": "function", "function": TOOLS[0]["function"] | {"strict": True}}]
    found = both(served, tools=strict)
    assert (found["reasoning_content"], len(found["tool_calls"])) == (f"I might {TAGGED}", 1)
    assert served.engine.requests[-1].reasoning == ReasoningBounds(*ids, False)  # type: ignore[arg-type]


def test_the_engine_knows_that_a_call_ends_the_reasoning(
    start: Callable[..., Served], monkeypatch: pytest.MonkeyPatch
) -> None:
    begin, end, stop = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
    form = ReasoningFormat((begin,), (end,), inside=True, stops=(stop, "<|no_token|>"))
    monkeypatch.setitem(FORMATS, "kimi_k2", form)
    served = start("--reasoning-parser", "kimi_k2")
    ids = [served.tokenizer.token_id(text) for text in (begin, end, stop)]
    both(served, extra_body={"thinking_token_budget": 7})
    expected = ReasoningBounds(ids[0], ids[1], True, 7, (ids[2],))  # type: ignore[arg-type]
    assert served.engine.requests[-1].reasoning == expected


def test_tools_whose_arguments_cannot_be_held_to_are_refused_where_they_have_to_be_called(
    served: Served,
) -> None:
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"not": {}}}}]
    for choice in ("required", {"type": "function", "function": {"name": "f"}}):
        with pytest.raises(openai.BadRequestError, match=r"tools cannot be followed: .*not"):
            whole(served, tools=tools, tool_choice=choice)


CLOCK = {"name": "clock", "description": "The time."}
CLOCKS: list[dict[str, Any]] = [
    CLOCK,
    *(
        CLOCK | {"parameters": parameters}
        for parameters in (None, {}, {"type": "object"}, {"type": "object", "properties": {}})
    ),
]


def forced(clock: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """A tool that has to be called, in each API and way to say so."""
    chat = {"messages": SAY, "max_tokens": 9, "tools": [{"type": "function", "function": clock}]}
    function = {"type": "function", "function": {"name": "clock"}}
    responses = {"input": "Time?", "tools": [{"type": "function", **clock}]}
    found = [
        ("/v1/chat/completions", chat | {"tool_choice": "required"}),
        ("/v1/chat/completions", chat | {"tool_choice": function}),
        ("/v1/responses", responses | {"tool_choice": "required"}),
        ("/v1/responses", responses | {"tool_choice": {"type": "function", "name": "clock"}}),
    ]
    if schema := clock.get("parameters"):  # Anthropic's tools have one
        tools = [{"name": "clock", "input_schema": schema}]
        found += [
            ("/v1/messages", {"messages": SAY, "max_tokens": 9, "tools": tools, "tool_choice": choice})
            for choice in ({"type": "any"}, {"type": "tool", "name": "clock"})
        ]
    return found


@pytest.mark.parametrize("clock", CLOCKS, ids=lambda clock: json.dumps(clock.get("parameters", "none")))
def test_a_forced_call_of_a_tool_without_parameters_has_no_arguments(
    served: Served, clock: dict[str, Any]
) -> None:
    for path, body in forced(clock):
        answer = served.post(path, body)
        assert answer.status_code == 200, answer.text
        matcher = compiled(served.engine.requests[-1].grammar)
        begin, end = "", ""
        if body["tool_choice"] in ("required", {"type": "any"}):
            begin, end = '[{"name": "clock", "parameters": ', "}]"
        assert accepts(matcher, f"{begin}{{}}{end}")
        assert not accepts(matcher, f'{begin}{{"type": "time"}}{end}')


PLUGIN = """
from slipway.text.parse.calls import CallFormat, Section
from slipway.text.parse.shapes import NamedJson

FORMATS = {"mine": CallFormat(("<|im_start|>",), (Section(NamedJson(), end="!"),))}
"""


def test_a_plugin_brings_a_format_whose_mark_is_a_special_token(
    start: Callable[..., Served], tmp_path: Path, scripted_model: Path
) -> None:
    plugin = tmp_path / "plugin.py"
    plugin.write_text(PLUGIN)
    served = start(
        "--enable-auto-tool-choice", "--tool-call-parser", "mine", "--tool-parser-plugin", str(plugin)
    )
    mark = served.tokenizer.token_id("<|im_start|>")
    assert mark in served.tokenizer.special_ids
    says(served, "Hi ", "<|im_start|>", 'now {"x": 1}', "!")
    assert both(served, tools=TOOLS)["tool_calls"] == [["now", '{"x": 1}']]
    # Where nobody reads calls the token is left out as ever.
    assert whole(served).message.content == 'Hi now {"x": 1}!'
    for text, said in (
        ("FORMATS = {}", "there is no tool call parser 'mine'"),
        ("1 / 0", "division by zero"),
    ):
        plugin.write_text(text)
        arguments = [str(scripted_model), "--tool-call-parser", "mine", "--tool-parser-plugin", str(plugin)]
        with pytest.raises(Exit, match=said):
            formats(api_settings(resolve(arguments, {}), read({})), load(scripted_model))


def test_marks_of_calls_stay_in_no_text_where_nobody_reads_calls(
    start: Callable[..., Served], tmp_path: Path
) -> None:
    plugin = tmp_path / "plugin.py"
    plugin.write_text(PLUGIN)
    mine = ("--enable-auto-tool-choice", "--tool-call-parser", "mine", "--tool-parser-plugin", str(plugin))
    served = start("--reasoning-parser", "qwen3", *mine)
    says(served, "<think>Hm.</think>Hi ", "<|im_start|>", 'now {"x": 1}', "!")
    for fields in ({}, {"tools": TOOLS, "tool_choice": "none"}):
        found = both(served, **fields)
        assert (found["reasoning_content"], found["content"]) == ("Hm.", 'Hi now {"x": 1}!')
    assert both(served, tools=TOOLS)["tool_calls"] == [["now", '{"x": 1}']]


def test_a_plugin_brings_a_way_to_reason(
    start: Callable[..., Served], tmp_path: Path, scripted_model: Path
) -> None:
    plugin = tmp_path / "reasons.py"
    plugin.write_text(
        "from slipway.text.parse.reasoning import ReasoningFormat\n"
        "FORMATS = {'mine': ReasoningFormat(begins=('(',), ends=(')',))}"
    )
    arguments = ("--reasoning-parser", "mine", "--reasoning-parser-plugin", str(plugin))
    served = start(*arguments)
    says(served, "(Hm.)", "Hi")
    found = both(served)
    assert (found["reasoning_content"], found["content"]) == ("Hm.", "Hi")
    plugin.write_text("FORMATS = {}")
    with pytest.raises(Exit, match="there is no reasoning parser 'mine'"):
        formats(api_settings(resolve([str(scripted_model), *arguments], {}), read({})), load(scripted_model))


@pytest.mark.parametrize("both_parsers", [True, False])
def test_channels_are_read_with_one_of_their_parsers_or_both(
    start: Callable[..., Served], both_parsers: bool
) -> None:
    reasoning = ("--reasoning-parser", "openai_gptoss") if both_parsers else ()
    served = start(*reasoning, "--enable-auto-tool-choice", "--tool-call-parser", "openai")
    call = '<|channel|>commentary to=functions.now <|constrain|>json<|message|>{"x": 1}'
    says(served, "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant", call)
    found = both(served, tools=TOOLS)
    assert (found["reasoning_content"], found["content"]) == ("Hm.", "")
    assert (found["tool_calls"], found["finish_reason"]) == ([["now", '{"x": 1}']], "tool_calls")
    for fields in ({}, {"tools": TOOLS, "tool_choice": "none"}):
        found = both(served, **fields)
        assert (found["reasoning_content"], found["content"]) == ("Hm.", '{"x": 1}')
        assert (found["tool_calls"], found["finish_reason"]) == ([], "stop")


@pytest.fixture
def channel_model(tmp_path: Path) -> Path:
    """The scripted model's folder, with the tokens of channels and prompts that end before one."""
    folder = tmp_path / "channels"
    folder.mkdir()
    write_tokenizer(folder)
    tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.add_special_tokens(sorted(MARKERS))
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    settings["chat_template"] = "{{ messages[0].content }}<|start|>assistant"
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    (folder / "generation_config.json").write_text('{"eos_token_id": [2]}')
    return folder


def test_forms_and_forced_and_strict_calls_are_held_in_their_channels(
    start: Callable[..., Served], channel_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scripted, "VOCABULARY", scripted.VOCABULARY + len(MARKERS))
    arguments = ("--enable-auto-tool-choice", "--tool-call-parser", "openai")
    served = start(*arguments, other=channel_model)
    thought = "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant"
    says(served, thought + '<|channel|>final<|message|>{"a": 1}')
    found = both(served, response_format={"type": "json_object"})
    assert (found["reasoning_content"], found["content"]) == ("Hm.", '{"a": 1}')
    assert "analysis" in served.engine.requests[-1].grammar
    call = thought + '<|channel|>commentary to=functions.now <|constrain|>json<|message|>{"x": 1}'
    says(served, call)
    named = {"type": "function", "function": {"name": "now"}}
    strict = [{"type": "function", "function": TOOLS[1]["function"] | {"strict": True}}]
    for tools, choice, reason in (
        (TOOLS, "required", "tool_calls"),
        (TOOLS, named, "stop"),
        (strict, "auto", "tool_calls"),
        (TOOLS, "auto", "tool_calls"),
    ):
        found = both(served, tools=tools, tool_choice=choice)
        assert (found["reasoning_content"], found["content"]) == ("Hm.", "")
        assert (found["tool_calls"], found["finish_reason"]) == ([["now", '{"x": 1}']], reason)
        grammar = served.engine.requests[-1].grammar
        assert ("functions.now" in grammar) == (tools is strict or choice != "auto")
        assert ("functions.weather" in grammar) == (choice == "required")
    budget = {"thinking_token_budget": 5}
    for fields in ({}, {"tools": TOOLS}, {"tools": TOOLS, "tool_choice": "required"}):
        says(served, call if fields else thought + "<|channel|>final<|message|>Hi")
        assert both(served, **fields, extra_body=budget)["reasoning_content"] == "Hm."
        grammar = served.engine.requests[-1].grammar
        assert "max_tokens=5" in grammar
        assert ("functions.now" in grammar) == bool(fields)
    both(served)
    assert served.engine.requests[-1].grammar == ""


def test_reasoning_in_a_channel_is_read_without_a_parser_of_calls(start: Callable[..., Served]) -> None:
    served = start("--reasoning-parser", "openai_gptoss")
    says(served, "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>Hi")
    found = both(served)
    assert (found["reasoning_content"], found["content"]) == ("Hm.", "Hi")


def test_parsers_that_cannot_read_one_output_are_refused(scripted_model: Path) -> None:
    for calls, reasoning in (("openai", "qwen3"), ("hermes", "openai_gptoss")):
        arguments = [str(scripted_model), "--tool-call-parser", calls, "--reasoning-parser", reasoning]
        with pytest.raises(Exit, match=f"{calls} and --reasoning-parser {reasoning} are of different models"):
            formats(api_settings(resolve(arguments, {}), read({})), load(scripted_model))


HERMES = """{%- if tools and not messages %}{{ tools | tojson }}
{{ '<tool_call>\\n{"name": <function-name>, "arguments": <args-json-object>}\\n</tool_call>' }}{% endif %}
{%- for message in messages %}{{ message.content }}{% endfor %}"""
THINKS = (
    HERMES + "{% if '</think>' in '' %}{% endif %}{% if add_generation_prompt %}{{ '<think>\\n' }}{% endif %}"
)
REASONED = {"content": "", "reasoning_content": "", "tool_calls": [], "finish_reason": "tool_calls"}


def test_a_template_of_a_known_family_needs_no_arguments(
    start: Callable[..., Served], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("INFO", logger="slipway.api"):
        served = start("--chat-template", HERMES)
    assert "--tool-call-parser hermes: its chat template has <tool_call>" in caplog.text
    says(served, TAGGED)
    found = both(served, tools=TOOLS)
    assert found == REASONED | {"tool_calls": [["weather", '{"city": "Rome", "days": 2}']]}
    says(served, f"```json\n{CALL}\n```")
    assert both(served, tools=TOOLS) == found


def test_a_template_that_begins_reasoning_needs_no_argument_for_it(start: Callable[..., Served]) -> None:
    served = start("--chat-template", THINKS)
    says(served, "I call.</think>", TAGGED)
    found = both(served, tools=TOOLS)
    assert (found["reasoning_content"], len(found["tool_calls"])) == ("I call.", 1)
    served = start("--chat-template", THINKS, "--reasoning-parser", "")
    says(served, "I say.</think>", "Hi")
    assert both(served)["content"] == "I say.</think>Hi"


def test_arguments_go_before_what_the_template_says(start: Callable[..., Served]) -> None:
    served = start("--chat-template", HERMES, "--tool-call-parser", "pythonic")
    says(served, "[now()]")
    assert both(served, tools=TOOLS)["tool_calls"] == [["now", "{}"]]
    says(served, TAGGED)
    assert both(served, tools=TOOLS)["content"] == TAGGED


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ((), "does not show tools"),
        (("--chat-template", HERMES.replace("<tool_call>", "<TOOL>")), "shows no format that is known"),
        (("--chat-template", HERMES, "--tool-call-parser", ""), "--tool-call-parser is empty"),
    ],
)
def test_auto_is_refused_with_its_reason_where_no_parser_is_certain(
    start: Callable[..., Served], arguments: tuple[str, ...], why: str
) -> None:
    served = start(*arguments)
    with pytest.raises(openai.BadRequestError, match=f"needs a server started with .*{why}"):
        whole(served, tools=TOOLS)
    assert served.post("/v1/chat/completions", {"model": MODEL, "messages": SAY}).status_code == 200


@pytest.mark.parametrize("template", ["{{ messages[0].content }}", HERMES])
def test_a_parser_whose_template_shows_no_tools_is_warned_of(
    start: Callable[..., Served], caplog: pytest.LogCaptureFixture, template: str
) -> None:
    start("--chat-template", template, "--tool-call-parser", "hermes")
    warned = "does not show tools to the model: --tool-call-parser hermes reads what it calls" in caplog.text
    assert warned == (template != HERMES)


@pytest.mark.slow
def test_a_real_model_calls_what_it_has_to(demo_model: Path) -> None:
    with live_server(demo_model, "--max-model-len", "1024", "--disable-log-requests") as server:
        client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)
        for seed in range(2):
            choice: Any = client.chat.completions.create(
                model="", messages=SAY, tools=TOOLS, tool_choice="required", seed=seed, max_tokens=400,  # type: ignore[arg-type]
                parallel_tool_calls=False,
            ).choices[0]  # fmt: skip
            assert choice.finish_reason == "tool_calls"
            (call,) = choice.message.tool_calls
            schema = {"weather": WEATHER, "now": NOW}[call.function.name]
            jsonschema.validate(json.loads(call.function.arguments), schema)
        named: Any = {"type": "function", "function": {"name": "weather"}}
        stream = client.chat.completions.create(
            model="", messages=SAY, tools=TOOLS, tool_choice=named, max_tokens=400, stream=True  # type: ignore[arg-type]
        )  # fmt: skip
        parts = [call for chunk in stream for call in chunk.choices[0].delta.tool_calls or ()]
        assert parts[0].function.name == "weather"
        jsonschema.validate(json.loads("".join(part.function.arguments for part in parts)), WEATHER)


@pytest.mark.slow
def test_a_real_model_that_decides_to_call_keeps_to_a_strict_schema(demo_model: Path) -> None:
    with live_server(demo_model, "--max-model-len", "1024", "--disable-log-requests", *AUTO) as server:
        client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)
        mark = {"prompt": "<tool_call>", "add_special_tokens": False}
        likely = {str(token): 9 for token in httpx.post(f"{server.url}/tokenize", json=mark).json()["tokens"]}
        ask: Any = [{"role": "user", "content": "Repeat exactly: <tool_call> <tool_call> <tool_call>"}]
        strict: Any = [{"type": "function", "function": TOOLS[0]["function"] | {"strict": True}}]
        for seed in range(2):
            choice: Any = client.chat.completions.create(
                model="", messages=ask, tools=strict, seed=seed, max_tokens=300, temperature=0.5,
                logit_bias=likely, parallel_tool_calls=False,
            ).choices[0]  # fmt: skip
            assert choice.finish_reason == "tool_calls"
            (call,) = choice.message.tool_calls
            jsonschema.validate(json.loads(call.function.arguments), WEATHER)
