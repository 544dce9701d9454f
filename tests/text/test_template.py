from __future__ import annotations

import copy
import json
import re
import time
from pathlib import Path
from typing import Any

import pytest
import templates
import vocabularies
from e2e.ground.patience import SLOWNESS

from slipway.text.sandbox import Limits
from slipway.text.template import ChatTemplate, TemplateError, load_chat_template

NAMES = {"bos_token": "<s>", "eos_token": "</s>"}
HELLO = [{"role": "user", "content": "Hello"}]


@pytest.fixture(scope="module")
def reference() -> Any:
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast(tokenizer_object=vocabularies.byte_level(), **NAMES)


def _ours(source: str, messages: list[dict[str, Any]], **options: Any) -> str:
    return ChatTemplate(source, **NAMES).render(messages, **options)


@pytest.mark.torch
@pytest.mark.parametrize("family", templates.FAMILIES)
@pytest.mark.parametrize("prompt", [True, False])
def test_a_chat_renders_as_transformers_renders_it(reference: Any, family: str, prompt: bool) -> None:
    source = templates.FAMILIES[family]
    expected = reference.apply_chat_template(
        templates.PLAIN, chat_template=source, tokenize=False, add_generation_prompt=prompt
    )
    assert _ours(source, templates.PLAIN, add_generation_prompt=prompt) == expected


@pytest.mark.torch
@pytest.mark.parametrize("family", ["llama3", "qwen"])
def test_tools_calls_and_variables_render_as_transformers_renders_them(reference: Any, family: str) -> None:
    source = templates.FAMILIES[family]
    expected = reference.apply_chat_template(
        templates.CALLING,
        tools=templates.TOOLS,
        chat_template=source,
        tokenize=False,
        add_generation_prompt=True,
        enable_thinking=True,
    )
    kwargs = {"enable_thinking": True}
    assert _ours(source, templates.CALLING, tools=templates.TOOLS, kwargs=kwargs) == expected


@pytest.mark.torch
@pytest.mark.parametrize("family", templates.FAMILIES)
@pytest.mark.parametrize("ending", ["The answer", "The answer is ", "a\n"])
def test_a_continued_message_ends_as_transformers_ends_it(reference: Any, family: str, ending: str) -> None:
    source = templates.FAMILIES[family]
    messages = [*HELLO, {"role": "assistant", "content": ending}]
    expected = reference.apply_chat_template(
        messages, chat_template=source, tokenize=False, continue_final_message=True
    )
    ours = _ours(source, messages, add_generation_prompt=False, continue_final_message=True)
    assert ours == expected


def test_text_parts_become_lines_for_a_template_that_takes_text() -> None:
    content = [{"type": "text", "text": "one"}, {"type": "input_text", "text": "two"}, "three"]
    source = "{{ messages[0].content }}"
    assert _ours(source, [{"role": "user", "content": content}]) == "one\ntwo\nthree"


def test_a_text_becomes_a_part_for_a_template_that_takes_parts() -> None:
    assert _ours(templates.PARTS_ONLY, HELLO) == "[user]\nHello\n"


def test_every_type_of_text_is_one_for_a_template_that_takes_parts() -> None:
    parts = [
        {"type": "input_text", "text": "one"},
        {"type": "output_text", "text": "two"},
        {"type": "refusal", "refusal": "no"},
        "three",
    ]
    rendered = _ours(templates.PARTS_ONLY, [{"role": "user", "content": parts}])
    assert rendered.split() == ["[user]", "one", "two", "no", "three"]


def test_a_part_that_is_no_text_is_refused_by_name() -> None:
    messages = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]
    with pytest.raises(TemplateError, match=r"type 'image_url'.*Send parts of type 'text'"):
        _ours(templates.CHATML, messages)


def test_arguments_given_as_json_text_reach_the_template_as_an_object() -> None:
    as_text = copy.deepcopy(templates.CALLING)
    function = as_text[1]["tool_calls"][0]["function"]
    function["arguments"] = json.dumps(function["arguments"])
    before = copy.deepcopy(as_text)
    assert _ours(templates.QWEN, as_text) == _ours(templates.QWEN, templates.CALLING)
    assert as_text == before


@pytest.mark.parametrize("depth", [150, 100_000])
def test_a_value_nested_too_deeply_is_refused(depth: int) -> None:
    nested: list[Any] = []
    for _ in range(depth):
        nested = [nested]
    with pytest.raises(TemplateError, match="nested more than 100 deep"):
        _ours(templates.CHATML + "{{ x }}", HELLO, kwargs={"x": nested})


def test_a_template_refuses_a_chat_in_its_own_words() -> None:
    with pytest.raises(TemplateError, match=re.escape("Roles must alternate: user, assistant, user, …")):
        _ours(templates.MISTRAL, [{"role": "assistant", "content": "Hello"}])


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("{% for", "not valid Jinja: line 1"),
        ("{{ a.b }}", "'a' is undefined"),
        ("{{ 1 / 0 }}", "division by zero"),
        ("{{ 'a' + 1 }}", "chat template failed"),
        ("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "without end"),
        ("{{ messages.append(1) }}", "chat template failed"),
        ("{{ namespace(__class__=1) }}", "'__class__' on a namespace"),
    ],
)
def test_a_template_that_fails_says_why(source: str, message: str) -> None:
    with pytest.raises(TemplateError, match=message):
        _ours(source, HELLO)


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__ }}",
        "{{ messages.__class__ }}",
        "{{ raise_exception.__globals__ }}",
        "{{ ''.join.__self__ }}",
        "{{ ''|attr('__class__') }}",
    ],
)
def test_a_template_sees_nothing_of_pythons_own(source: str) -> None:
    try:
        seen = _ours(source, HELLO)
    except TemplateError as error:
        seen = str(error)
    assert seen == "" or "unsafe" in seen


@pytest.mark.parametrize(
    "source",
    [
        "{% set r = range(90000) %}{% for a in r %}{% for b in r %}{% endfor %}{% endfor %}",
        "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(60) }}",
        "{% for a in range(90000) %}{% for b in range(90000) %}x{% endfor %}{% endfor %}",
    ],
)
def test_a_template_that_runs_too_long_is_stopped(source: str) -> None:
    template = ChatTemplate(source, limits=Limits(seconds=0.2))
    start = time.monotonic()
    with pytest.raises(TemplateError, match=r"longer than 0\.2 s"):
        template.render(HELLO)
    assert time.monotonic() - start < 5 * SLOWNESS


@pytest.mark.parametrize(
    "source",
    [
        "{{ 'ab' * 10**9 }}",
        "{{ 10**9 * 'ab' }}",
        "{{ [1] * 10**9 }}",
        "{% set n = namespace(s='ab') %}{% for i in range(99) %}{% set n.s = n.s ~ n.s %}{% endfor %}",
        "{% set n = namespace(s='ab') %}{% for i in range(99) %}{% set n.s = n.s + n.s %}{% endfor %}",
        "{{ 'a'.center(10**9) }}",
        "{% for i in range(5000) %}abc{% endfor %}",
    ],
)
def test_a_text_that_grows_too_long_is_stopped(source: str) -> None:
    with pytest.raises(TemplateError, match="more than 10000 characters"):
        ChatTemplate(source, limits=Limits(characters=10_000)).render(HELLO)


@pytest.mark.parametrize(
    "source", ["{{ 10 ** 10 ** 9 }}", "{{ '%1000000000d' % 1 }}", "{{ '%*d' % (9, 1) }}"]
)
def test_a_number_or_width_that_is_too_large_is_refused(source: str) -> None:
    with pytest.raises(TemplateError, match=r"too (large|wide)"):
        _ours(source, HELLO)


def test_a_model_without_a_template_says_how_to_give_one() -> None:
    with pytest.raises(TemplateError, match="--chat-template"):
        ChatTemplate(None)


def test_variables_with_a_field_of_their_own_are_refused() -> None:
    for name in ("messages", "tools", "documents", "add_generation_prompt", "chat_template"):
        with pytest.raises(TemplateError, match=f"may not hold {name}: the request has its own field"):
            _ours(templates.CHATML, HELLO, kwargs={name: None})


def test_variables_of_the_model_and_the_server_are_refused() -> None:
    for name in ("bos_token", "sep_token", "raise_exception", "range", "strftime_now"):
        with pytest.raises(TemplateError, match=f"may not hold {name}: it belongs to the model"):
            _ours(templates.CHATML, HELLO, kwargs={name: "x"})


@pytest.mark.parametrize(
    "source",
    [
        "{{ mood }}",
        "{% if mood is not defined %}{% set mood = 'sad' %}{% endif %}{{ mood }}",
        "{% set mood = mood | default('sad') %}{{ mood }}",
        "{% macro said() %}{{ mood }}{% endmacro %}{{ said() }}",
        "{% for message in messages %}{% set mood = mood or 'sad' %}{{ mood }}{% endfor %}",
    ],
)
def test_a_template_sees_the_variables_that_it_reads_and_no_others(source: str) -> None:
    assert _ours(source, HELLO, kwargs={"mood": "glad", "enable_thinking": object()}) == "glad"


@pytest.mark.parametrize(
    ("messages", "options", "message"),
    [
        ([], {}, "no messages"),
        (HELLO, {"continue_final_message": True}, "contradict"),
        (
            [{"role": "assistant", "content": ""}],
            {"continue_final_message": True, "add_generation_prompt": False},
            "no text to go on with",
        ),
    ],
)
def test_a_chat_that_cannot_be_rendered_is_refused(
    messages: list[dict[str, Any]], options: dict[str, Any], message: str
) -> None:
    with pytest.raises(TemplateError, match=message):
        _ours(templates.CHATML, messages, **options)


def test_the_option_takes_a_file_or_a_template_of_one_line(tmp_path: Path) -> None:
    file = tmp_path / "own.jinja"
    file.write_text("{{ messages }}é\n", encoding="utf-8")
    assert load_chat_template(str(file)) == "{{ messages }}é\n"
    assert load_chat_template(r"{{ bos_token }}\né") == "{{ bos_token }}\né"


@pytest.mark.parametrize("argument", ["missing.jinja", "x" * 5000, "."])
def test_an_option_that_is_neither_file_nor_template_is_refused(argument: str) -> None:
    with pytest.raises(ValueError, match="--chat-template"):
        load_chat_template(argument)


def test_a_template_file_that_is_not_text_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "own.jinja"
    file.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ValueError, match="UTF-8"):
        load_chat_template(str(file))
