"""Chat templates in the styles of well-known model families, and chats to render with them."""

from __future__ import annotations

from typing import Any

CHATML = """\
{%- if messages[0].role != 'system' -%}
{{ '<|im_start|>system\\nBe brief.<|im_end|>\\n' }}
{%- endif -%}
{%- for message in messages %}
{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}
{%- endfor -%}
{%- if add_generation_prompt %}
{{ '<|im_start|>assistant\\n' }}
{%- endif -%}
"""

LLAMA3 = """\
{{- bos_token }}
{%- set rest = messages %}
{%- if messages[0]['role'] == 'system' %}
    {%- set rest = messages[1:] %}
    {{- "<|start_header_id|>system<|end_header_id|>\\n\\n" + messages[0]['content'] | trim + "<|eot_id|>" }}
{%- endif %}
{%- if tools is not none %}
    {%- for tool in tools %}
        {{- tool | tojson(indent=4) }}
        {{- "\\n\\n" }}
    {%- endfor %}
{%- endif %}
{%- for message in rest %}
    {%- if message.tool_calls is defined %}
        {%- set call = message.tool_calls[0].function %}
        {{- '{"name": "' ~ call.name ~ '", "parameters": ' ~ (call.arguments | tojson) ~ "}<|eot_id|>" }}
    {%- else %}
        {{- "<|start_header_id|>" ~ message.role ~ "<|end_header_id|>\\n\\n" }}
        {%- generation %}{{ message.content | trim }}{% endgeneration %}
        {{- "<|eot_id|>" }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}
"""

MISTRAL = """\
{{ bos_token }}{% set state = namespace(turns=0) %}
{% for message in messages %}
    {% if (message['role'] == 'user') != (state.turns % 2 == 0) %}
        {{- raise_exception('Roles must alternate: user, assistant, user, …') }}
    {% endif %}
    {% set state.turns = state.turns + 1 %}
    {% if message['role'] == 'user' %}
        {{- ' [INST] ' + message['content'] + ' [/INST]' }}
    {% else %}
        {{- ' ' + message['content'] + eos_token }}
    {% endif %}
{% endfor %}
"""

QWEN = """\
{%- if tools %}
    {{- '<|im_start|>system\\n# Tools\\n<tools>' }}
    {%- for tool in tools %}
        {{- "\\n" }}{{- tool | tojson }}
    {%- endfor %}
    {{- "\\n</tools><|im_end|>\\n" }}
{%- endif %}
{%- for message in messages %}
    {%- if message.role == "tool" %}
        {%- if loop.previtem is not defined or loop.previtem.role != "tool" %}
            {{- '<|im_start|>user' }}
        {%- endif %}
        {{- '\\n<tool_response>\\n' + message.content + '\\n</tool_response>' }}
        {%- if loop.last or loop.nextitem.role != "tool" %}{{- '<|im_end|>\\n' }}{%- endif %}
        {%- continue %}
    {%- endif %}
    {{- '<|im_start|>' + message.role + '\\n' }}
    {%- if message.reasoning_content and enable_thinking %}
        {{- '<think>' + message.reasoning_content.strip() + '</think>' }}
    {%- endif %}
    {{- message.content or '' }}
    {%- for call in message.tool_calls or [] %}
        {{- '\\n<tool_call>\\n{"name": "' + call.function.name + '", "arguments": ' }}
        {{- call.function.arguments | tojson(sort_keys=true) }}
        {{- '}\\n</tool_call>' }}
    {%- endfor %}
    {{- '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}
"""

GEMMA = """\
{{ bos_token }}
{%- macro body(content) -%}
    {%- if content is string -%}
        {{ content | trim }}
    {%- else -%}
        {%- for part in content -%}
            {%- if part['type'] == 'text' -%}{{ part['text'] | trim }}{%- endif -%}
        {%- endfor -%}
    {%- endif -%}
{%- endmacro -%}
{%- for message in messages -%}
    {%- set role = 'model' if message['role'] == 'assistant' else message['role'] -%}
    {{ '<start_of_turn>' + role + '\\n' + body(message['content']) + '<end_of_turn>\\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<start_of_turn>model\\n' }}{%- endif -%}
"""

PARTS_ONLY = """\
{% for m in messages %}[{{ m.role }}]
{% for part in m.get('content') %}
{{ part.text if part.type == 'text' else '<image>' }}
{% endfor %}
{% endfor %}
"""

FAMILIES = {"chatml": CHATML, "llama3": LLAMA3, "mistral": MISTRAL, "qwen": QWEN, "gemma": GEMMA}

TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": "météo",
            "description": 'Weather <now> & "later"',
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
        },
    }
]
PLAIN = [
    {"role": "user", "content": "  Is 3 < 4 & 'é' > \"e\"?  "},
    {"role": "assistant", "content": "Yes.\n\n- because"},
    {"role": "user", "content": "为什么？ 😀"},
]
CALLING: list[dict[str, Any]] = [
    {"role": "user", "content": "Weather in Łódź?"},
    {
        "role": "assistant",
        "content": "",
        "reasoning_content": " look it up ",
        "tool_calls": [
            {"id": "1", "type": "function", "function": {"name": "météo", "arguments": {"city": "Łódź"}}}
        ],
    },
    {"role": "tool", "content": "rain", "tool_call_id": "1"},
    {"role": "tool", "content": "wind", "tool_call_id": "1"},
]
