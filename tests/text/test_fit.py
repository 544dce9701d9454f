"""Chats as clients send them, in the templates of the models that people serve."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

import chat_templates
from slipway.text.template import ChatTemplate, TemplateError

HI: dict[str, Any] = {"role": "user", "content": "Hi"}
SYSTEM: dict[str, Any] = {"role": "system", "content": "Be brief."}
HELLO: dict[str, Any] = {"role": "assistant", "content": "Hello."}
TRAIN: dict[str, Any] = {"role": "system", "content": "On a train."}
STRICT = (
    "{% for m in messages %}{% if m.role == 'system' %}{% if not loop.first %}"
    "{{ raise_exception('A system message may only come first.') }}{% endif %}[s]{{ m.content }}"
    "{% elif m.role in ('user', 'assistant') %}[{{ m.role }}]{{ m.content }}{% endif %}{% endfor %}"
)
VERBATIM = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
PAIRS = (
    "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% for c in m.tool_calls or [] %}"
    "{% for k, v in c.function.arguments|items %}<{{ k }}>{{ v }}{% endfor %}{% endfor %}{% endfor %}"
)
JOINED = (
    "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% for c in m.tool_calls or [] %}"
    "{{ '<call>' + c.function.name + '<args>' + c.function.arguments }}{% endfor %}{% endfor %}"
)


def prompt(source: str, *messages: dict[str, Any], **options: Any) -> str:
    template = ChatTemplate(source, bos_token="<s>", eos_token="</s>")
    return template.render(messages, **options)


def call(arguments: Any, own_id: str = "toolu_01") -> dict[str, Any]:
    return {"id": own_id, "type": "function", "function": {"name": "lookup", "arguments": arguments}}


def calling(*arguments: Any) -> list[dict[str, Any]]:
    """The user asks, the assistant calls, the tool answers each call."""
    calls = [call(one, f"toolu_0{index}") for index, one in enumerate(arguments)]
    results = [
        {"role": "tool", "tool_call_id": one["id"], "content": f"result {index}"}
        for index, one in enumerate(calls)
    ]
    return [HI, {"role": "assistant", "content": None, "tool_calls": calls}, *results]


def test_an_empty_list_of_calls_is_no_calls() -> None:
    source = "{% for m in messages %}{{ '[call]' if 'tool_calls' in m else m.content }}{% endfor %}"
    assert prompt(source, HI, {**HELLO, "tool_calls": []}) == "HiHello."


@pytest.mark.parametrize("family", chat_templates.ALL)
@pytest.mark.parametrize(
    "messages",
    [
        [SYSTEM, HI],
        [{**SYSTEM, "role": "developer"}, HI],
        [SYSTEM, {**TRAIN, "role": "developer"}, HI],
        [SYSTEM, HI, HELLO, TRAIN, HI],
        [HI, HELLO, TRAIN, HI],
        [SYSTEM, HI, TRAIN],
        [SYSTEM, HI, HI],
    ],
)
def test_every_family_shows_all_instructions(family: str, messages: list[dict[str, Any]]) -> None:
    shown = prompt(chat_templates.ALL[family], *messages)
    for message in messages:
        assert shown.count(message["content"]) == messages.count(message)


@pytest.mark.parametrize("family", chat_templates.ALL)
def test_every_family_shows_the_result_of_a_tool(family: str) -> None:
    shown = prompt(chat_templates.ALL[family], SYSTEM, *calling('{"city": "Oslo"}'), HI)
    assert "result 0" in shown
    assert "'type'" not in shown


@pytest.mark.parametrize("family", chat_templates.WITH_TOOLS)
@pytest.mark.parametrize("arguments", ['{"city": "Oslo"}', {"city": "Oslo"}, '"{\\"city\\": \\"Oslo\\"}"'])
def test_every_family_shows_arguments_in_its_own_way(family: str, arguments: Any) -> None:
    shown = prompt(chat_templates.WITH_TOOLS[family], *calling(arguments))
    assert "city" in shown
    assert "Oslo" in shown
    assert "'city'" not in shown
    assert '\\"city' not in shown or isinstance(arguments, str)


@pytest.mark.parametrize("family", chat_templates.WITH_TOOLS)
def test_every_family_shows_several_calls_at_once(family: str) -> None:
    shown = prompt(chat_templates.WITH_TOOLS[family], *calling('{"city": "Oslo"}', '{"city": "Rome"}'), HI)
    for word in ("Oslo", "Rome", "result 0", "result 1"):
        assert shown.count(word) == 1


ONE_CALL = (
    "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% if m.tool_calls %}"
    "{% if m.tool_calls|length > 1 %}{{ raise_exception('One call at once.') }}{% endif %}"
    "{{ m.tool_calls[0].function.arguments.values()|join }}{% endif %}{% endfor %}"
)


@pytest.mark.parametrize(
    ("ids", "results", "shown"),
    [
        ("ab", "ba", "[assistant]0[tool]a1[assistant]1[tool]b0"),
        ("ab", "b", "[assistant]0[assistant]1[tool]b0"),
        ("aa", "aa", "[assistant]0[tool]a0[assistant]1[tool]a1"),
        ("ab", "aab", "[assistant]0[tool]a0[assistant]1[tool]b2[tool]a1"),
        ("--", "--", "[assistant]0[tool]-0[assistant]1[tool]-1"),
        ("--", "xy", "[assistant]0[tool]x0[assistant]1[tool]y1"),
        ("ab", "--", "[assistant]0[tool]-0[assistant]1[tool]-1"),
        ("ab", "-xy", "[assistant]0[tool]-0[assistant]1[tool]x1[tool]y2"),
    ],
)
def test_each_of_several_calls_takes_its_own_result_once(ids: str, results: str, shown: str) -> None:
    calls = [call({"n": index}, own) for index, own in enumerate(ids)]
    answers = [
        {"role": "tool", "tool_call_id": own, "content": f"{own}{index}"} for index, own in enumerate(results)
    ]
    for one in [one for one in calls if one["id"] == "-"]:
        del one["id"]
    for answer in answers:
        if answer["tool_call_id"] == "-":
            del answer["tool_call_id"]
    turn = [HI, {"role": "assistant", "content": "", "tool_calls": calls}, *answers, HI]
    assert prompt(ONE_CALL, answers[0], *turn, *turn) == (
        f"[tool]{answers[0]['content']}" + f"[user]Hi{shown}[user]Hi" * 2
    )


@pytest.mark.parametrize("family", chat_templates.WITH_TOOLS)
@pytest.mark.parametrize(
    "arguments",
    [
        '{"text": "once upo',
        "[1]",
        "null",
        '"x"',
        " ",
        "",
        None,
        '{"a":1}{"b":2}',
        "[" * 5000,
        '{"a": "\\ud800"}',
    ],
)
def test_no_arguments_in_a_history_are_refused(family: str, arguments: Any) -> None:
    shown = prompt(chat_templates.WITH_TOOLS[family], *calling(arguments), HI)
    assert "result 0" in shown
    if arguments and arguments.startswith('{"text'):
        assert "once upo" in shown
    shown.encode()


@pytest.mark.parametrize("family", chat_templates.ALL)
@pytest.mark.parametrize("content", ["I look.", [{"type": "text", "text": "I look."}]])
def test_every_family_shows_text_beside_calls_in_front_of_them(family: str, content: Any) -> None:
    chat = calling('{"city": "Oslo"}', '{"city": "Rome"}')
    chat[1]["content"] = content
    turn = ("I look.", "Oslo", "Rome", "Hello.")
    for messages, said in ((chat, turn[:3]), ([*chat, HELLO, *chat, HELLO, HI], turn * 2)):
        shown = prompt(chat_templates.ALL[family], SYSTEM, *messages)
        assert re.findall("|".join({*turn}), shown) == [*said]


def test_calls_and_results_without_ids_have_them_where_the_template_demands_some() -> None:
    chat = calling('{"city": "Oslo"}', '{"city": "Rome"}')
    for message in chat[1:]:
        message.pop("tool_call_id", None)
        for one in message.get("tool_calls", ()):
            del one["id"]
    shown = prompt(chat_templates.MISTRAL_V3, *chat, HI)
    first, second, *answered = re.findall(r'id": "(\w{9})"', shown)
    assert first != second
    assert answered == [first, second]


def test_text_stays_beside_calls_if_the_template_shows_it_there() -> None:
    shown = prompt(chat_templates.QWEN25, HI, {**HELLO, "tool_calls": [call("{}")]})
    assert "<|im_start|>assistant\nHello.\n<tool_call>" in shown
    source = (
        "{% set final = messages|selectattr('role', 'eq', 'assistant')|rejectattr('tool_calls')|list %}"
        "{% for m in messages %}{% if m.tool_calls %}{{ '' if final else '[think]' ~ m.content }}"
        "[call]{{ m.tool_calls[0].function.arguments|tojson }}"
        "{% else %}[{{ m.role }}]{{ m.content }}{% endif %}{% endfor %}"
    )
    turn = [HI, {**HELLO, "tool_calls": [call("{}")]}, {"role": "tool", "content": "cold"}]
    assert prompt(source, *turn) == "[user]Hi[think]Hello.[call]{}[tool]cold"
    assert prompt(source, *turn, HELLO) == "[user]Hi[assistant]Hello.[call]{}[tool]cold[assistant]Hello."


def test_calls_are_text_where_the_template_has_no_place_for_them() -> None:
    shown = prompt(VERBATIM, *calling('{"city": "Oslo"}', "no object"))
    first, second = (
        '{"name": "lookup", "arguments": {"city": "Oslo"}}',
        '{"name": "lookup", "arguments": "no object"}',
    )
    assert f"[assistant]{first}\n{second}[tool]result 0" in shown


def test_roles_that_a_template_does_not_know_become_those_that_it_does() -> None:
    assert prompt(STRICT, {"role": "developer", "content": "Rhyme."}, HI) == "[s]Rhyme.[user]Hi"
    named = "{% for m in messages %}{{ m.role if m.role == 'developer' else 'other' }}{% endfor %}"
    assert prompt(named, {"role": "developer", "content": "Rhyme."}) == "developer"
    result = {"role": "function", "name": "lookup", "content": "3 degrees"}
    assert "[user]3 degrees" in prompt(STRICT, HI, {"role": "assistant", "content": ""}, result)
    assert "[function]3 degrees" in prompt(VERBATIM, HI, {"role": "assistant", "content": ""}, result)


def test_a_role_that_the_template_does_not_show_is_refused() -> None:
    critic = {"role": "critic", "content": "Too long."}
    assert prompt(VERBATIM, HI, critic) == "[user]Hi[critic]Too long."
    for source in (STRICT, chat_templates.QWEN3):
        with pytest.raises(TemplateError, match="does not show messages of the role 'critic'"):
            prompt(source, HI, critic)


@pytest.mark.parametrize("family", chat_templates.ALL)
@pytest.mark.parametrize("messages", [[SYSTEM], [SYSTEM, TRAIN], [SYSTEM, *calling("{}")[1:]]])
def test_every_family_shows_instructions_without_a_user(family: str, messages: list[dict[str, Any]]) -> None:
    shown = prompt(chat_templates.ALL[family], *messages)
    for message in messages:
        assert shown.count(message["content"] or "Be brief.") == 1


def test_instructions_stay_where_they_were_sent_if_the_template_shows_them_there() -> None:
    chat = [SYSTEM, TRAIN, HI, HELLO, TRAIN, HI]
    assert prompt(VERBATIM, *chat) == "".join(f"[{one['role']}]{one['content']}" for one in chat)


def test_instructions_are_merged_in_front_where_the_template_refuses_or_drops_them() -> None:
    merged = "[s]Be brief.\n\nOn a train.[user]Hi[assistant]Hello.[user]Hi"
    assert prompt(STRICT, SYSTEM, HI, HELLO, TRAIN, HI) == merged
    drops = STRICT.replace("{{ raise_exception('A system message may only come first.') }}", "{% continue %}")
    assert prompt(drops, SYSTEM, HI, HELLO, TRAIN, HI) == merged


def test_instructions_go_to_the_user_where_the_template_has_no_place_for_them() -> None:
    shown = prompt(
        chat_templates.GEMMA2, SYSTEM, {"role": "user", "content": [{"type": "text", "text": "Hi"}]}
    )
    assert "<start_of_turn>user\nBe brief.\n\nHi<end_of_turn>" in shown


def test_text_stays_text_in_every_role() -> None:
    source = (
        "{% for m in messages %}{% if m.role == 'user' %}[u]{% if m.content is string %}{{ m.content }}"
        "{% else %}{% for p in m.content %}{{ p.text }}{% endfor %}{% endif %}{% elif m.role == 'tool' %}"
        "{% if m.content is string %}[t]{{ m.content }}{% else %}{% for p in m.content %}[T]{{ p.output }}"
        "{% endfor %}{% endif %}{% else %}[{{ m.role }}]{{ m.content }}{% endif %}{% endfor %}"
    )
    chat = [SYSTEM, *calling("{}"), HELLO, HI]
    called = '[assistant]{"name": "lookup", "arguments": {}}'
    assert prompt(source, *chat) == f"[system]Be brief.[u]Hi{called}[t]result 0[assistant]Hello.[u]Hi"
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    chat[3] = {**chat[3], "content": parts}
    chat[0] = {**SYSTEM, "content": parts}
    assert "[system]one\ntwo[u]" in prompt(source, *chat)
    assert "[t]one\ntwo[assistant]" in prompt(source, *chat)
    assert "onetwo" in prompt(source, {"role": "user", "content": parts})


def test_a_list_of_which_the_template_reads_the_first_part_is_joined() -> None:
    system = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    assert "one\ntwo\n\nHi" in prompt(chat_templates.GEMMA3, {"role": "system", "content": system}, HI)


@pytest.mark.parametrize("arguments", ['{"city":  "Oslo"}', {"city": "Oslo"}])
def test_a_template_that_joins_the_arguments_gets_their_text(arguments: Any) -> None:
    shown = json.dumps(arguments) if isinstance(arguments, dict) else arguments
    assert f"<call>lookup<args>{shown}[tool]" in prompt(JOINED, *calling(arguments))
    assert "<call>lookup<args>{}[tool]" in prompt(JOINED, *calling(" "))
    assert '<call>lookup<args>{"a[tool]' in prompt(JOINED, *calling('{"a'))


def test_a_template_that_loops_over_the_arguments_gets_an_object() -> None:
    assert "<city>Oslo" in prompt(PAIRS, *calling('{"city": "Oslo"}'))
    for odd in ('{"text": "once upo', "[1]", '"x"', '{"a":1}{"b":2}'):
        assert f"[assistant]<arguments>{odd}[tool]" in prompt(PAIRS, *calling(odd))
    for empty in ("null", " ", "{}"):
        assert "[assistant][tool]" in prompt(PAIRS, *calling(empty))


def test_a_continued_message_is_the_last_one_in_whatever_form_it_is_sent() -> None:
    options = {"add_generation_prompt": False, "continue_final_message": True}
    assert prompt(STRICT, SYSTEM, HI, TRAIN, HELLO, **options).endswith("[assistant]Hello.")


def test_a_message_with_calls_is_not_continued() -> None:
    options = {"add_generation_prompt": False, "continue_final_message": True}
    with pytest.raises(TemplateError, match="ends in calls"):
        prompt(chat_templates.QWEN25, HI, {**HELLO, "tool_calls": [call("{}")]}, **options)


@pytest.mark.parametrize("odd", [["a"], {"a": 1}, 7, True])
def test_ids_may_be_anything(odd: Any) -> None:
    calls = [call("{}") | {"id": odd}, call("{}") | {"id": odd}]
    results = [{"role": "tool", "content": f"result {number}", "tool_call_id": odd} for number in range(2)]
    for template in chat_templates.ALL.values():
        shown = prompt(template, HI, {"role": "assistant", "content": "", "tool_calls": calls}, *results, HI)
        assert shown.count("result 0") == shown.count("result 1") == 1
