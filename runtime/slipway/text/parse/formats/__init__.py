"""Formats of tool calls by name, each family in a module that is imported when its name is asked for."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

from slipway.text.parse.calls import CallFormat
from slipway.text.parse.plugin import formats_of

MODULES = {
    "deepseek": ("deepseek_v3", "deepseek_v31", "deepseek_v32"),
    "functiongemma": ("functiongemma",),
    "gigachat3": ("gigachat3",),
    "glm": ("glm45", "glm47"),
    "granite_20b_fc": ("granite-20b-fc",),
    "json_in_lists": ("granite", "hunyuan_a13b", "jamba", "phi4_mini_json"),
    "json_in_tags": ("ernie45", "granite4", "hermes", "internlm", "longcat", "qwen"),
    "kimi_k2": ("kimi_k2",),
    "llama_json": ("llama3_json", "llama4_json"),
    "minimax_m1": ("minimax_m1",),
    "mistral": ("mistral",),
    "openai": ("openai",),
    "parameters": ("minimax_m2", "qwen3_coder", "qwen3_xml", "seed_oss", "step3", "step3p5"),
    "python_calls": ("llama4_pythonic", "olmo3", "pythonic"),
    "xlam": ("xlam",),
}
NAMES = tuple(sorted(name for names in MODULES.values() for name in names))


def call_format(name: str, plugin: Path | None = None) -> CallFormat:
    """The format of a name. Those of a plugin, a Python file with FORMATS like the modules here, go first.

    Raises ValueError where neither has it, and what the plugin raises.
    """
    own: dict[str, CallFormat] = formats_of(plugin) if plugin is not None else {}
    if name in own:
        return own[name]
    module = next((module for module, names in MODULES.items() if name in names), None)
    if module is None:
        raise ValueError(
            f"there is no tool call parser {name!r} in {plugin}, whose FORMATS has {sorted(own)}"
        )
    formats: dict[str, CallFormat] = import_module(f"{__name__}.{module}").FORMATS
    return formats[name]
