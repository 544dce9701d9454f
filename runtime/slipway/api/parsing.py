"""Which parsers read an output: what the server was told, and what a request asks for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from slipway.api.errors import ApiError
from slipway.api.formats import Formats
from slipway.api.held_tools import ChannelTools, HeldTools, OneTool, RequiredTools, TaggedTools
from slipway.api.model import ServedModel
from slipway.api.protocol.chat import ChatRequest, NamedTool
from slipway.engine.messages import ReasoningBounds
from slipway.text.channels import OPENING, Channels
from slipway.text.parse.calls import CallFormat, CallParser, Section
from slipway.text.parse.harmony import HARMONY
from slipway.text.parse.output import FirstCall, NamedCall, Parser, Plain, Reasoned
from slipway.text.parse.shapes import JsonCall, Tools
from slipway.text.structure import ANY_ARGUMENTS

REQUIRED = CallFormat((), (Section(JsonCall(), enters="[", between=(",",), leaves="]"),), bare=("[",))
"""What an output is held to where it has to call tools."""


@dataclass(frozen=True, slots=True)
class Reading:
    """How each output of a request is read."""

    parser: Callable[[], Parser]
    kept_ids: frozenset[int]
    reasoning: ReasoningBounds | None = None
    """Of a reasoning whose end the engine has to know: a grammar begins there, or its length is bounded."""


def reading(
    body: ChatRequest,
    found: Formats,
    prompt: str,
    channels: Channels | None,
    variables: Mapping[str, object],
    *,
    held: bool,
) -> Reading | None:
    """How the outputs that follow this prompt are read; None where all of them is content.

    channels   those that grammars follow
    variables  the template's
    held       a grammar holds what calls there may be among other text
    Others begin behind the reasoning where a token of its own ends that; else with the first token, and
    there is no reasoning then.
    """
    free = body.form is None or body.form[1] == "structural_tag"
    calls = found.calls if free and tools_of(body) and not body.forces_tools else None
    if calls is not None and held:
        calls = replace(calls, loose=False)  # a call outside the marks would be held to no schema
    if channels is not None and body.forces_tools:
        calls = HARMONY
    kept = frozenset[int]()
    if calls is not None:
        kept = found.reasoning_marks if calls.channels else found.call_marks
    form, ids, budget = found.reasoning, found.reasoning_ids, body.thinking_token_budget
    if (
        form is None
        or (calls is not None and calls.channels)
        or not form.is_on(variables)
        or (body.is_held and ids is None and channels is None)
    ):
        answer = _answer(body, calls, prompt)
        return None if answer is Plain else Reading(answer, kept)
    answer = _answer(body, calls, "")  # what the prompt has begun is read as reasoning
    said, bounds = body.continued, None
    if ids is not None and (held or body.is_held or budget is not None):
        inside = form.begins_inside(prompt, said)
        bounds = ReasoningBounds(*ids, inside, -1 if budget is None else budget, found.reasoning_stops)
    return Reading(
        lambda: Reasoned(form.parser(prompt, said), answer(), kept=form.kept),
        kept | found.reasoning_marks,
        bounds,
    )


def _answer(body: ChatRequest, calls: CallFormat | None, prompt: str) -> Callable[[], Parser]:
    """calls  how those that the model decides on are written"""
    tools, choice = tools_of(body), body.tool_choice
    if calls is not None and body.parallel_tool_calls is False:
        return lambda: FirstCall(calls.parser(tools, prompt))
    if calls is not None:
        return lambda: calls.parser(tools, prompt)
    if not body.forces_tools:
        return Plain
    if isinstance(choice, NamedTool):
        return lambda: NamedCall(choice.function.name)
    return lambda: CallParser(REQUIRED, tools)


def tools_of(body: ChatRequest) -> Tools:
    """The schemas of the tools that may be called, by name."""
    if body.tool_choice == "none":
        return {}
    return {tool.function.name: tool.function.parameters or {} for tool in body.tools or ()}


def channels_of(body: ChatRequest, found: Formats, prompt: str) -> Channels | None:
    """Those that the outputs' grammars follow; None where the model has none, or the first is not to come."""
    budget = body.thinking_token_budget
    if found.channels is None or not prompt.endswith(OPENING):
        return None
    return found.channels if budget is None else replace(found.channels, budget=budget)


def held_tools(body: ChatRequest, found: Formats, channels: Channels | None) -> HeldTools | None:
    """What the outputs have to call, or how where a tool is strict or channels are bounded; None where they
    are free."""
    schemas = tools_of(body)
    parallel = body.parallel_tool_calls is not False
    if not body.forces_tools:
        return _strict_tools(body, found, parallel, channels)
    named = body.tool_choice.function.name if isinstance(body.tool_choice, NamedTool) else None
    if channels is not None:
        return ChannelTools(channels, schemas if named is None else {named: schemas[named]}, forced=True)
    return RequiredTools(schemas, parallel) if named is None else OneTool(schemas[named])


def _strict_tools(
    body: ChatRequest, found: Formats, parallel: bool, channels: Channels | None
) -> HeldTools | None:
    strict = {tool.function.name for tool in body.tools or () if tool.function.strict}
    if body.form is not None:
        return None
    schemas = {name: schema if name in strict else ANY_ARGUMENTS for name, schema in tools_of(body).items()}
    if channels is not None and (channels.budget >= 0 or not strict.isdisjoint(schemas)):
        return ChannelTools(channels, schemas if found.calls is not None else {}, forced=False)
    if channels is not None or strict.isdisjoint(schemas) or found.calls is None or not found.calls.written:
        return None
    return TaggedTools(found.calls.written, schemas, parallel)


def check_budget(body: ChatRequest, model: ServedModel, channels: Channels | None) -> None:
    """Raises ApiError for a budget of reasoning that nobody can keep."""
    budget = body.thinking_token_budget
    if budget is None:
        return
    if model.texts.formats.reasoning_ids is None and channels is None:
        why = (
            "this server cannot end reasoning: that needs a --reasoning-parser whose reasoning ends by a "
            "token of the model."
        )
    elif model.num_added:
        why = (
            f"this adapter adds {model.num_added} tokens to the vocabulary: a budget is kept by masks of the "
            "model's own tokens, which no other passes. Leave it out."
        )
    else:
        return
    message = f"thinking_token_budget is {budget}, and {why}"
    raise ApiError(message, param="thinking_token_budget", code="invalid_value")


def check_tools(body: ChatRequest, found: Formats) -> None:
    """Raises ApiError for a choice that cannot be made."""
    choice = body.tool_choice
    if not body.tools:
        if choice not in (None, "none", "auto"):
            message = "tool_choice asks for a tool, and the request has no function."
            raise ApiError(message, param="tool_choice", code="invalid_value")
        return
    if isinstance(choice, NamedTool):
        if choice.function.name not in tools_of(body):
            message = f"tool_choice names {choice.function.name!r}, which is not among the tools."
            raise ApiError(message, param="tool_choice", code="invalid_value")
    elif choice in (None, "auto") and not found.auto_tools:
        why = "" if found.calls is not None else f"None was chosen for this model: {found.why_no_calls}. "
        message = (
            'tool_choice "auto", the default where tools are given, needs a server started with '
            f"--tool-call-parser. {why}"
            'Send tool_choice: "required" ({"type": "any"} to /v1/messages) to have the model call a tool'
            + (', or "none" to show them to it and take its answer as text.' if found.shows_tools else ".")
        )
        raise ApiError(message, param="tool_choice", code="invalid_value")
