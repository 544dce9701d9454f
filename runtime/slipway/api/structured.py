"""From the form that a request asks for to the grammar that its output is held to."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from slipway.api.configure import Settings
from slipway.api.errors import ApiError
from slipway.api.held_tools import HeldTools
from slipway.api.model import ServedModel
from slipway.api.protocol.common import Generation
from slipway.args.errors import ArgumentError
from slipway.args.schema import ARGUMENTS
from slipway.args.values import check
from slipway.text import structure
from slipway.text.channels import Channels
from slipway.text.errors import GrammarError
from slipway.text.structural_tag import of_structural_tag
from slipway.text.structure import JsonStyle

logger = logging.getLogger("slipway.api")

OURS = ("auto", "guidance")
"""Names of the one engine that holds output to grammars; the others are of engines whose work it does."""
_SIMPLE = frozenset(("json", "json_object", "regex", "choice"))
_FOLLOWED = {"lm-format-enforcer": _SIMPLE, "outlines": _SIMPLE}
"""What an engine follows by itself, where that is not everything."""

_WRITE: Mapping[str, Callable[[Any, JsonStyle], str]] = {
    "json": structure.of_json_schema,
    "json_object": lambda value, style: structure.of_json_object(style),
    "regex": lambda value, style: structure.of_regex(value),
    "choice": lambda value, style: structure.of_choice(value),
    "grammar": lambda value, style: structure.of_grammar(value),
}


@dataclass(frozen=True, slots=True)
class Grammar:
    """What an output is held to, as llguidance reads it, and the field that asks for it."""

    text: str
    param: str


def grammar_of(
    body: Generation,
    model: ServedModel,
    settings: Settings,
    tools: HeldTools | None = None,
    *,
    channels: Channels | None = None,
) -> Grammar | None:
    """The grammar of a request; None where its output is free. Raises ApiError with the field at fault.

    tools     those of which one has to be called, whatever form content would have; or how they may be
    channels  those that the output is in: the form is that of the last
    """
    backend, options = _backend(body, settings)
    if tools is not None:
        return _of_tools(tools, _style(body, settings, backend, options), model)
    if body.form is None:
        return None
    param, kind, value = body.form
    new = body.structured_outputs
    strict = settings.guided_decoding_disable_fallback or "no-fallback" in options
    strict |= bool(new is not None and new.disable_fallback)
    if strict and kind not in _FOLLOWED.get(backend, {kind}):
        message = f"{backend} does not follow {param}, and falling back on another engine is off."
        raise ApiError(message, param=param, code="invalid_value")
    try:
        style = _style(body, settings, backend, options)
        if kind == "structural_tag":
            text = of_structural_tag(value, style, _special_ids(model))
        else:
            text = _WRITE[kind](value, style)
        return Grammar(text if channels is None else channels.of_answer(text), param)
    except GrammarError as error:
        raise unfit(param, error) from None


def _of_tools(tools: HeldTools, style: JsonStyle, model: ServedModel) -> Grammar:
    try:
        return Grammar(tools.grammar(style, _special_ids(model)), "tools")
    except GrammarError as error:
        raise unfit("tools", error) from None


def _special_ids(model: ServedModel) -> dict[str, int]:
    tokenizer = model.tokenizer
    return {tokenizer.token_text(token_id): token_id for token_id in tokenizer.special_ids}


def unfit(param: str, error: GrammarError) -> ApiError:
    """A form that no grammar stands for."""
    return ApiError(f"{param} cannot be followed: {error}.", param=param, code="invalid_value")


def _backend(body: Generation, settings: Settings) -> tuple[str, list[str]]:
    """Its name and options, as in `xgrammar:no-fallback`: the request's, else the server's."""
    written = body.guided_decoding_backend
    if written is None:
        return settings.guided_decoding_backend, []
    try:
        check(ARGUMENTS["guided_decoding_backend"], written, "guided_decoding_backend")
    except ArgumentError as error:
        raise ApiError(str(error), param="guided_decoding_backend", code="invalid_value") from None
    name, _, options = written.partition(":")
    say_whose_work_it_is(name)
    return name, options.split(",")


@cache
def say_whose_work_it_is(backend: str) -> None:
    """Once for each that is not here."""
    if backend not in OURS:
        logger.warning("guided decoding backend %s: llguidance does its work, as for every name.", backend)


def _style(body: Generation, settings: Settings, backend: str, options: list[str]) -> JsonStyle:
    new = body.structured_outputs
    tight = settings.guided_decoding_disable_any_whitespace or "disable-any-whitespace" in options
    closed = settings.guided_decoding_disable_additional_properties or backend != "guidance"
    pattern = body.guided_whitespace_pattern
    if new is not None:
        tight = tight if new.disable_any_whitespace is None else new.disable_any_whitespace
        closed = closed if new.disable_additional_properties is None else new.disable_additional_properties
        pattern = pattern if new.whitespace_pattern is None else new.whitespace_pattern
    return JsonStyle(
        any_whitespace=not (tight and backend in (*OURS, "xgrammar")),
        whitespace_pattern=pattern,
        additional_properties=not closed,
    )
