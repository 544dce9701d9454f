"""How the model's outputs are read, as the server was told."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from slipway.api.configure import Settings
from slipway.exits import BAD_ARGUMENTS, Exit
from slipway.text.parse.calls import CallFormat
from slipway.text.parse.formats import call_format
from slipway.text.parse.reasoning import FORMATS, ReasoningFormat
from slipway.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class Formats:
    """What the server was told of its model's outputs."""

    calls: CallFormat | None = None
    reasoning: ReasoningFormat | None = None
    reasoning_ids: tuple[int, int] | None = None
    """The tokens that begin reasoning, or -1, and end it; None where its end is no token of its own."""
    kept_ids: frozenset[int] = frozenset()
    """Special tokens that parsers look for: they stay in the text where one reads it."""


def formats(settings: Settings, tokenizer: Tokenizer) -> Formats:
    """Raises Exit for a parser that is not there."""
    calls = reasoning = None
    if settings.tool_call_parser is not None:
        plugin = settings.tool_parser_plugin
        try:
            calls = call_format(settings.tool_call_parser, Path(plugin).expanduser() if plugin else None)
        except Exception as error:  # a plugin's own, too
            message = f"--tool-call-parser {settings.tool_call_parser}: {error}."
            raise Exit(BAD_ARGUMENTS, message, argument="tool_call_parser") from error
    if settings.reasoning_parser is not None:
        reasoning = FORMATS[settings.reasoning_parser]
    markers = frozenset[str]().union(*(one.markers for one in (calls, reasoning) if one is not None))
    ids = {tokenizer.token_id(marker) for marker in markers}
    kept = frozenset(token_id for token_id in ids if token_id in tokenizer.special_ids)
    return Formats(calls, reasoning, _reasoning_ids(reasoning, tokenizer), kept)


def _reasoning_ids(reasoning: ReasoningFormat | None, tokenizer: Tokenizer) -> tuple[int, int] | None:
    end = None if reasoning is None else tokenizer.token_id(reasoning.ends[0])
    if reasoning is None or end is None:
        return None
    begin = tokenizer.token_id(reasoning.begins[0])
    return -1 if begin is None else begin, end
