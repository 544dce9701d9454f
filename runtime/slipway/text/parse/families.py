"""Which parsers read a model's outputs, by what its chat template shows and by its architecture.

A template teaches its model how to write calls, and writes earlier ones in the same way. A parser is chosen
where one format alone fits; where none or several do, the reason is given instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import jinja2
from jinja2 import meta

from slipway.text.sandbox import Limits, Sandbox


@dataclass(frozen=True, slots=True)
class Fact:
    """Templates with all of these texts are of models that this parser reads.

    without      texts that no such template has
    model_types  how the `model_type` of such a model begins; empty where the texts are enough
    """

    parser: str
    marks: tuple[str, ...]
    without: tuple[str, ...] = ()
    model_types: tuple[str, ...] = ()

    def fits(self, template: str) -> bool:
        return all(one in template for one in self.marks) and all(one not in template for one in self.without)

    @property
    def shown(self) -> str:
        return " and ".join(mark.rstrip(" :") for mark in self.marks)

    def is_of(self, model_type: str | None) -> bool:
        return not self.model_types or (model_type or "").startswith(self.model_types)


@dataclass(frozen=True, slots=True)
class Choice:
    """A parser, or why there is none."""

    parser: str | None
    why: str


_TAG = "<tool_call>"
_HERMES = (_TAG, "</tool_call>", '"name": ', '"arguments": ')
_OTHERS = ("<function=", "<arg_key>", "<|tool_call|>", "<tool_calls>")
_DEEPSEEK = "<｜tool▁calls▁begin｜>"
_LLAMA_JSON = '"parameters": dictionary'
_PYTHONIC = "[func_name1("
_ERNIE = ("ernie4_5",)
_STEP = ("step3p5", "step3_5", "step3.5")

CALLS = (
    Fact("deepseek_v3", (_DEEPSEEK, "<｜tool▁sep｜>", "```json")),
    Fact("deepseek_v31", (_DEEPSEEK, "<｜tool▁sep｜>"), without=("```json",)),
    Fact("deepseek_v32", ("｜DSML｜", "function_calls")),
    Fact("ernie45", _HERMES, without=_OTHERS, model_types=_ERNIE),
    Fact("functiongemma", ("<start_function_call>", "<escape>")),
    Fact("gigachat3", ("function call<|role_sep|>",)),
    Fact("glm45", (_TAG, "<arg_key>", "<arg_value>")),
    Fact("granite", ("<|start_of_role|>", "<|tool_call|>"), without=("<function=",)),
    Fact("granite-20b-fc", ("<function_call>",), without=(_TAG,), model_types=("gpt_bigcode",)),
    Fact("granite4", _HERMES, without=_OTHERS, model_types=("granite",)),
    Fact("hermes", _HERMES, without=_OTHERS),
    Fact("hunyuan_a13b", ("<tool_calls>",), without=(_TAG,), model_types=("hunyuan",)),
    Fact("internlm", ("<|action_start|>", "<|plugin|>")),
    Fact("jamba", ("<tool_calls>",), without=(_TAG,), model_types=("jamba",)),
    Fact("kimi_k2", ("<|tool_calls_section_begin|>", "<|tool_call_argument_begin|>")),
    Fact("llama3_json", ("<|start_header_id|>", _LLAMA_JSON), without=(_TAG, _PYTHONIC)),
    Fact("llama4_json", ("<|header_start|>", _LLAMA_JSON), without=(_TAG, _PYTHONIC)),
    Fact("llama4_pythonic", ("<|header_start|>", _PYTHONIC), without=(_LLAMA_JSON,)),
    Fact("longcat", ("<longcat_tool_call>",)),
    Fact("minimax_m1", ("<tool_calls>",), without=(_TAG,), model_types=("minimax",)),
    Fact("minimax_m2", ("<minimax:tool_call>", "<invoke name=")),
    Fact("mistral", ("[TOOL_CALLS]",), without=(_TAG, "tool_call_name")),
    Fact("olmo3", ("<function_calls>",), without=("｜DSML｜",), model_types=("olmo3",)),
    Fact("openai", ("<|start|>", "<|channel|>", "functions.")),
    Fact("phi4_mini_json", ("functools[",)),
    Fact("pythonic", (_PYTHONIC,), without=("<|header_start|>", _LLAMA_JSON, _TAG)),
    Fact("qwen3_coder", (_TAG, "<function=", "<parameter="), without=("<seed:tool_call>",)),
    Fact("seed_oss", ("<seed:tool_call>", "<function=")),
    Fact("step3", ("<｜tool_calls_begin｜>", "<steptml:invoke")),
    Fact("step3p5", (_TAG, "<function=", "<parameter="), model_types=_STEP),
    Fact("xlam", ("tool_call_name", "JSON array"), without=(_TAG,)),
)
"""Of calls. Where an architecture is named, that fact goes before one of the same texts without it."""

_THINK = ("<think>", "</think>")
REASONING = (
    Fact("deepseek_v3", (*_THINK, "<｜Assistant｜>", "thinking")),
    Fact("ernie45", ("</think>", "<response>"), model_types=_ERNIE),
    Fact("glm45", _THINK, model_types=("glm4", "glm5")),
    Fact("granite", ("Here is my thought process:", "Here is my response:")),
    Fact("hunyuan_a13b", (*_THINK, "<answer>"), model_types=("hunyuan",)),
    Fact("kimi_k2", (*_THINK, "<|im_middle|>")),
    Fact("minimax_m2", (*_THINK, "]~b]ai")),
    Fact("mistral", ("[THINK]", "[/THINK]")),
    Fact("openai_gptoss", ("<|start|>", "<|channel|>", "analysis")),
    Fact("seed_oss", ("<seed:think>",)),
    Fact("step3", (*_THINK, "<steptml:invoke")),
    Fact("step3p5", _THINK, model_types=_STEP),
    Fact("qwen3", _THINK, without=("<|channel|>", "[THINK]", "<seed:think>")),
)
"""Of reasoning. The last one reads whatever the prompt or the output itself begins with <think>; one of the
same texts and more goes before it."""


def calls_parser(template: str | None, model_type: str | None) -> Choice:
    """What reads the calls of a model of this template and `model_type`, where they are known."""
    if template is None:
        return Choice(None, "the model has no chat template")
    if not shows_tools(template):
        return Choice(None, "its chat template does not show tools to the model")
    return _chosen(CALLS, template, model_type)


def reasoning_parser(template: str | None, model_type: str | None) -> Choice:
    """The same of reasoning."""
    if template is None:
        return Choice(None, "the model has no chat template")
    return _chosen(REASONING, template, model_type)


def _chosen(facts: Sequence[Fact], template: str, model_type: str | None) -> Choice:
    template = template.replace('\\"', '"')  # of Jinja's texts
    fitting = [fact for fact in facts if fact.fits(template)]
    if not fitting:
        return Choice(None, "its chat template shows no format that is known")
    here = [fact for fact in fitting if fact.is_of(model_type)]
    named = [fact for fact in here if fact.model_types]
    here = named or [fact for fact in here if not any(_is_narrower(other, fact) for other in here)]
    if not here:
        marks, which = fitting[0].shown, model_type or "unknown"
        return Choice(
            None, f"its chat template has {marks}, and its architecture, {which}, is none known for it"
        )
    if len(here) > 1:
        return Choice(None, f"its chat template fits {' and '.join(fact.parser for fact in here)}")
    (fact,) = here
    why = f"its chat template has {fact.shown}"
    return Choice(fact.parser, f"{why}, and its architecture is {model_type}" if fact.model_types else why)


def _is_narrower(fact: Fact, other: Fact) -> bool:
    return set(fact.marks) > set(other.marks)


def shows_tools(template: str) -> bool:
    """Whether a chat template reads a request's tools."""
    try:
        return "tools" in meta.find_undeclared_variables(Sandbox(Limits()).parse(template))
    except (jinja2.TemplateSyntaxError, RecursionError):
        return False
