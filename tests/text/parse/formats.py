"""How each format's model writes calls, by what its publisher shows: a function from calls to text."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

Call = tuple[str, dict[str, Any]]
Write = Callable[[list[Call]], str]


def dump(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def objects(calls: list[Call], key: str = "arguments") -> list[str]:
    return [dump({"name": name, key: arguments}) for name, arguments in calls]


def python(calls: list[Call]) -> list[str]:
    return [f"{name}({', '.join(f'{k}={v!r}' for k, v in arguments.items())})" for name, arguments in calls]


def tags(calls: list[Call], begin: str, one: str, end: str, between: str = "\n") -> str:
    """`begin` and `one` are formats of the name, and of key and value."""
    written = []
    for name, arguments in calls:
        parts = [one.format(k, v if isinstance(v, str) else dump(v)) for k, v in arguments.items()]
        written.append(begin.format(name) + "".join(parts) + end)
    return between.join(written)


def gemma(value: Any) -> str:
    match value:
        case str():
            return f"<escape>{value}<escape>"
        case dict():
            return "{" + ",".join(f"{k}:{gemma(v)}" for k, v in value.items()) + "}"
        case list():
            return "[" + ",".join(map(gemma, value)) + "]"
    return dump(value)


def deepseek_v32(calls: list[Call]) -> str:
    written = ""
    for name, arguments in calls:
        written += f'<｜DSML｜invoke name="{name}">\n'
        for key, value in arguments.items():
            plain = isinstance(value, str)
            text = value if plain else dump(value)
            flag = "true" if plain else "false"
            written += f'<｜DSML｜parameter name="{key}" string="{flag}">{text}</｜DSML｜parameter>\n'
        written += "</｜DSML｜invoke>\n"
    return f"<｜DSML｜function_calls>\n{written}</｜DSML｜function_calls>"


def hermes(calls: list[Call]) -> str:
    return "\n".join(f"<tool_call>\n{one}\n</tool_call>" for one in objects(calls))


def coder(calls: list[Call]) -> str:
    written = tags(calls, "<function={}>\n", "<parameter={}>\n{}\n</parameter>\n", "</function>")
    return f"<tool_call>\n{written}\n</tool_call>"


def glm(calls: list[Call]) -> str:
    one = "<arg_key>{}</arg_key>\n<arg_value>{}</arg_value>\n"
    return tags(calls, "<tool_call>{}\n", one, "</tool_call>")


def llama(calls: list[Call]) -> str:
    return "; ".join(objects(calls, "parameters"))


def harmony(calls: list[Call], header: str = "{channel} to=functions.{name} <|constrain|>json") -> str:
    """Behind a prompt that ends in `<|start|>assistant`."""
    return "<|start|>assistant".join(
        header.format(name=name, channel="<|channel|>commentary") + f"<|message|>{dump(arguments)}<|call|>"
        for name, arguments in calls
    )


def jamba(calls: list[Call]) -> str:
    return f"<tool_calls>[{', '.join(objects(calls))}]</tool_calls>"


WRITE: dict[str, Write] = {
    "deepseek_v3": lambda calls: (
        "<｜tool▁calls▁begin｜>"
        + "\n".join(
            f"<｜tool▁call▁begin｜>function<｜tool▁sep｜>{n}\n```json\n{dump(a)}\n```<｜tool▁call▁end｜>"
            for n, a in calls
        )
        + "<｜tool▁calls▁end｜>"
    ),
    "deepseek_v31": lambda calls: (
        "<｜tool▁calls▁begin｜>"
        + "".join(f"<｜tool▁call▁begin｜>{n}<｜tool▁sep｜>{dump(a)}<｜tool▁call▁end｜>" for n, a in calls)
        + "<｜tool▁calls▁end｜>"
    ),
    "deepseek_v32": deepseek_v32,
    "ernie45": hermes,
    "functiongemma": lambda calls: "".join(
        f"<start_function_call>call:{name}{gemma(arguments)}<end_function_call>" for name, arguments in calls
    ),
    "gigachat3": lambda calls: "\n".join(f"function call<|role_sep|>\n{one}" for one in objects(calls)),
    "glm45": glm,
    "glm47": lambda calls: glm(calls).replace(">\n<", "><"),
    "granite": lambda calls: f"<|tool_call|>[{', '.join(objects(calls))}]",
    "granite-20b-fc": lambda calls: "".join(f"<function_call> {one}" for one in objects(calls)),
    "granite4": hermes,
    "hermes": hermes,
    "hunyuan_a13b": jamba,
    "internlm": lambda calls: "".join(
        f"<|action_start|><|plugin|>\n{one}<|action_end|>\n" for one in objects(calls, "parameters")
    ),
    "jamba": jamba,
    "kimi_k2": lambda calls: (
        "<|tool_calls_section_begin|>"
        + "".join(
            f"<|tool_call_begin|>functions.{name}:{place}<|tool_call_argument_begin|>{dump(arguments)}"
            "<|tool_call_end|>"
            for place, (name, arguments) in enumerate(calls)
        )
        + "<|tool_calls_section_end|>"
    ),
    "llama3_json": llama,
    "llama4_json": llama,
    "llama4_pythonic": lambda calls: f"<|python_start|>[{', '.join(python(calls))}]<|python_end|>",
    "longcat": lambda calls: "\n".join(
        f"<longcat_tool_call>{one}</longcat_tool_call>" for one in objects(calls)
    ),
    "minimax_m1": lambda calls: "<tool_calls>\n" + "\n".join(objects(calls)) + "\n</tool_calls>",
    "minimax_m2": lambda calls: (
        "<minimax:tool_call>\n"
        + tags(calls, '<invoke name="{}">\n', '<parameter name="{}">{}</parameter>\n', "</invoke>")
        + "\n</minimax:tool_call>"
    ),
    "mistral": lambda calls: f"[TOOL_CALLS] [{', '.join(objects(calls))}]",
    "olmo3": lambda calls: "<function_calls>\n" + "\n".join(python(calls)) + "\n</function_calls>",
    "openai": harmony,
    "phi4_mini_json": lambda calls: f"functools[{', '.join(objects(calls))}]",
    "pythonic": lambda calls: f"[{', '.join(python(calls))}]",
    "qwen": hermes,
    "qwen3_coder": coder,
    "qwen3_xml": coder,
    "seed_oss": lambda calls: coder(calls).replace("tool_call>", "seed:tool_call>"),
    "step3": lambda calls: (
        "<｜tool_calls_begin｜>"
        + tags(
            calls,
            '<｜tool_call_begin｜>function<｜tool_sep｜><steptml:invoke name="{}">',
            '<steptml:parameter name="{}">{}</steptml:parameter>',
            "</steptml:invoke><｜tool_call_end｜>",
        )
        + "<｜tool_calls_end｜>"
    ),
    "step3p5": coder,
    "xlam": lambda calls: f"[{', '.join(objects(calls))}]",
}

OTHERS: list[tuple[str, Write]] = [
    ("openai", lambda calls: harmony(calls, "{channel} to=functions.{name}")),
    ("openai", lambda calls: f"<|start|>assistant{harmony(calls, ' to=functions.{name}{channel} json')}"),
    ("mistral", lambda calls: "".join(f"[TOOL_CALLS]{name}[ARGS]{dump(a)}" for name, a in calls)),
    ("mistral", lambda calls: "".join(f"[TOOL_CALLS]{name}{dump(a)}" for name, a in calls)),
    ("granite", lambda calls: f"<tool_call>[{', '.join(objects(calls))}]"),
    ("granite", lambda calls: f"[{', '.join(objects(calls))}]"),
    ("llama3_json", lambda calls: f"<|python_tag|>{llama(calls)}"),
    ("llama4_pythonic", lambda calls: f"[{', '.join(python(calls))}]"),
    ("xlam", lambda calls: f"```json\n[{', '.join(objects(calls))}]\n```"),
    ("xlam", lambda calls: f"<tool_call>[{', '.join(objects(calls))}]</tool_call>"),
    ("xlam", lambda calls: f"[TOOL_CALLS][{', '.join(objects(calls))}]"),
    ("mistral", lambda calls: "".join(f"[TOOL_CALLS]{n}[CALL_ID]a1b2c3d4e[ARGS]{dump(a)}" for n, a in calls)),
    ("gigachat3", lambda calls: "".join(f"<|function_call|>{one}" for one in objects(calls))),
    ("qwen3_coder", lambda calls: coder(calls).removeprefix("<tool_call>\n")),
    ("gigachat3", lambda calls: "\n".join(f"function call{one}" for one in objects(calls))),
    (
        "hermes",
        lambda calls: "".join(
            f"<tool_call>{dump({'arguments': dump(a), 'type': 'function', 'name': n})}</tool_call>"
            for n, a in calls
        ),
    ),
]
"""What the same models write otherwise."""

BARE = {"llama3_json", "llama4_json", "pythonic", "xlam", "granite", "llama4_pythonic"}
"""Whose calls may begin an output without a mark."""
KNOWN_ALONE = "function call{"
"""Behind what prose may say, too, only tools that are there are called."""
