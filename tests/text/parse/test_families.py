"""Which parser a chat template is read by: one template for each family, by its published structure."""

from __future__ import annotations

import pytest

from slipway.args.schema import ARGUMENTS
from slipway.text.parse.families import CALLS, REASONING, calls_parser, reasoning_parser

SHOWN = "{% if tools %}{{ tools | tojson }}{% endif %}"
"""How a template shows tools to its model."""
HERMES = (
    SHOWN
    + """{{- '<tool_call>\\n{"name": <function-name>, "arguments": <args-json-object>}\\n</tool_call>' }}
{%- for call in message.tool_calls %}
    {{- '<tool_call>\\n{"name": "' + call.name + '", "arguments": ' + (call.arguments | tojson) }}
    {{- '}\\n</tool_call>' }}
{%- endfor %}"""
)
THINKS = "{% if '</think>' in content %}{% endif %}{{ '<|im_start|>assistant\\n<think>\\n' }}"
CODER = SHOWN + "{{ '<tool_call>\\n<function=' + name + '>\\n<parameter=' + key + '>' }}"
DEEPSEEK = SHOWN + "{{ '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>' + type + '<｜tool▁sep｜>' + name"
LLAMA = (
    "{% if not tools is defined %}{% set tools = none %}{% endif %}{% if tools %}"
    '{{ \'Respond in the format {"name": function name, "parameters": dictionary of argument name and its '
    "value}.' }}{% endif %}"
)
PYTHONIC = (
    SHOWN + "{{ 'Put it in the format of [func_name1(params_name1=params_value1), func_name2(params)]' }}"
)
LISTS = SHOWN + "{{ '<tool_calls>' + calls + '</tool_calls>' }}"
KNOWN: dict[str, list[tuple[str, str | None]]] = {
    "deepseek_v3": [
        (DEEPSEEK + " + '\\n```json\\n' + arguments + '\\n```<｜tool▁call▁end｜>' }}", "deepseek_v3")
    ],
    "deepseek_v31": [(DEEPSEEK + " + arguments + '<｜tool▁call▁end｜>' }}", "deepseek_v3")],
    "deepseek_v32": [(SHOWN + "{{ '<｜DSML｜function_calls><｜DSML｜invoke name=' }}", "deepseek_v32")],
    "ernie45": [(HERMES, "ernie4_5_moe")],
    "functiongemma": [(SHOWN + "{{ '<start_function_call>call:' + name + '<escape>' }}", "gemma3_text")],
    "gigachat3": [(SHOWN + "{{ 'function call<|role_sep|>\\n' }}", "deepseek_v3")],
    "glm45": [
        (SHOWN + "{{ '<tool_call>' + name + '\\n<arg_key>' + k + '</arg_key><arg_value>' }}", "glm4_moe")
    ],
    "granite": [(SHOWN + "{{ '<|start_of_role|>assistant<|end_of_role|><|tool_call|>[' }}", "granite")],
    "granite-20b-fc": [(SHOWN + "{{ '<function_call> ' + call }}", "gpt_bigcode")],
    "granite4": [("{{ '<|start_of_role|>' }}" + HERMES, "granitemoehybrid")],
    "hermes": [
        (HERMES, "qwen2"),
        (HERMES, "llama"),
        (HERMES, None),
        (HERMES.replace('"', '\\"').replace("'", '"'), "qwen3"),
        (HERMES + THINKS, "qwen3"),
    ],
    "hunyuan_a13b": [(LISTS, "hunyuan_v1_moe")],
    "internlm": [(SHOWN + "{{ '<|action_start|><|plugin|>\\n' + call + '<|action_end|>' }}", "internlm2")],
    "jamba": [(LISTS, "jamba")],
    "kimi_k2": [
        (
            SHOWN
            + "{{ '<|tool_calls_section_begin|><|tool_call_begin|>' + id + '<|tool_call_argument_begin|>' }}",
            "kimi_k2",
        )
    ],
    "llama3_json": [("{{ '<|start_header_id|>' }}" + LLAMA + "{{ '<|python_tag|>' }}", "llama")],
    "llama4_json": [("{{ '<|header_start|>' }}" + LLAMA, "llama4")],
    "llama4_pythonic": [("{{ '<|header_start|>' }}" + PYTHONIC, "llama4")],
    "longcat": [(SHOWN + "{{ '<longcat_tool_call>' + call + '</longcat_tool_call>' }}", "longcat_flash")],
    "minimax_m1": [(LISTS, "minimax_m1")],
    "minimax_m2": [(SHOWN + "{{ '<minimax:tool_call>\\n<invoke name=\"' + name }}", "minimax_m2")],
    "mistral": [(SHOWN + "{{ '[AVAILABLE_TOOLS]' }}{{ '[TOOL_CALLS] [' }}", "mistral")],
    "olmo3": [(SHOWN + "{{ '<function_calls>' + calls + '</function_calls>' }}", "olmo3")],
    "openai": [
        (SHOWN + "{{ '<|start|>assistant to=functions.' + name + '<|channel|>commentary' }}", "gpt_oss")
    ],
    "phi4_mini_json": [(SHOWN + "{{ 'functools[' + calls + ']' }}", "phi3")],
    "pythonic": [("{{ '<|start_header_id|>' }}" + PYTHONIC, "llama")],
    "qwen3_coder": [(CODER, "qwen3_moe"), (CODER + THINKS, "qwen3_next"), (CODER, None)],
    "seed_oss": [(CODER.replace("tool_call>", "seed:tool_call>"), "seed_oss")],
    "step3": [(SHOWN + "{{ '<｜tool_calls_begin｜><steptml:invoke name=' }}", "step3_text")],
    "step3p5": [(CODER + THINKS, "step3p5")],
    "xlam": [(SHOWN + '{{ \'a single JSON array: [{"name": "tool_call_name"\' }}', "qwen2")],
}
REASONS: dict[str, list[tuple[str, str | None]]] = {
    "deepseek_v3": [(THINKS + "{{ '<｜Assistant｜>' }}{% if thinking %}{% endif %}", "deepseek_v3")],
    "ernie45": [(THINKS + "{{ '<response>' }}", "ernie4_5_moe")],
    "glm45": [(THINKS, "glm4_moe")],
    "granite": [("{{ 'Here is my thought process: Here is my response:' }}", "granite")],
    "hunyuan_a13b": [(THINKS + "{{ '<answer>' }}", "hunyuan_v1_moe")],
    "kimi_k2": [(THINKS + "{{ '<|im_middle|>' }}", "kimi_k2")],
    "minimax_m2": [(THINKS + "{{ ']~b]ai' }}", "minimax_m2")],
    "mistral": [("{{ '[THINK]' + thought + '[/THINK]' }}", "mistral3")],
    "openai_gptoss": [("{{ '<|start|>assistant<|channel|>analysis<|message|>' }}", "gpt_oss")],
    "qwen3": [(THINKS, "qwen3"), (THINKS, None), (THINKS + "{{ '<｜Assistant｜>' }}", "deepseek_v3")],
    "seed_oss": [("{{ '<seed:think>' + thought + '</seed:think>' }}", "seed_oss")],
    "step3": [(THINKS + "{{ '<steptml:invoke' }}", "step3_text")],
    "step3p5": [(THINKS, "step3p5")],
}


def test_each_fact_is_tried_and_names_a_parser() -> None:
    assert set(KNOWN) == {fact.parser for fact in CALLS} <= set(ARGUMENTS["tool_call_parser"].choices)
    assert set(REASONS) == {fact.parser for fact in REASONING} <= set(ARGUMENTS["reasoning_parser"].choices)


@pytest.mark.parametrize("name", KNOWN)
def test_a_familys_template_names_the_parser_of_its_calls(name: str) -> None:
    for template, model_type in KNOWN[name]:
        found = calls_parser(template, model_type)
        assert found.parser == name, found.why
        assert "its chat template has" in found.why


@pytest.mark.parametrize("name", REASONS)
def test_a_familys_template_names_the_parser_of_its_reasoning(name: str) -> None:
    for template, model_type in REASONS[name]:
        found = reasoning_parser(template, model_type)
        assert found.parser == name, found.why


@pytest.mark.parametrize(
    ("template", "model_type", "why"),
    [
        (None, "qwen2", "no chat template"),
        ("{{ messages }}", "qwen2", "does not show tools"),
        (HERMES.replace(SHOWN, ""), "qwen2", "does not show tools"),
        (HERMES.replace(SHOWN, "{# tools #}{{ 'You have tools.' }}"), "qwen2", "does not show tools"),
        (SHOWN, "qwen2", "no format that is known"),
        (SHOWN + "{{ '<TOOLCALL>[' }}", "nemotron", "no format that is known"),
        (LISTS, "llama", "<tool_calls>, and its architecture, llama, is none known"),
        (LISTS, None, "its architecture, unknown, is none known"),
        (HERMES + "{{ '[TOOL_CALLS]' }}{{ '<longcat_tool_call>' }}", "qwen2", "hermes and longcat"),
        ("{% broken", "qwen2", "does not show tools"),
    ],
)
def test_a_family_that_is_not_certain_has_no_parser_but_a_reason(
    template: str | None, model_type: str | None, why: str
) -> None:
    found = calls_parser(template, model_type)
    assert found.parser is None
    assert why in found.why


def test_a_template_without_reasoning_has_no_parser_of_it() -> None:
    assert reasoning_parser(HERMES, "qwen2").parser is None
    assert reasoning_parser(None, "qwen3").parser is None
