"""How the model's outputs are read, as the server was told."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from slipway.api.configure import Settings
from slipway.exits import BAD_ARGUMENTS, Exit
from slipway.text.channels import Channels
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
    reasoning_stops: tuple[int, ...] = ()
    """Tokens of the answer that end reasoning, too."""
    call_marks: frozenset[int] = frozenset()
    """Special tokens that the parser of calls looks for: they stay in the text where it reads that."""
    reasoning_marks: frozenset[int] = frozenset()
    """The same of reasoning."""
    channels: Channels | None = None
    """Those that grammars can follow; None where the model has not all of their tokens."""


def formats(settings: Settings, tokenizer: Tokenizer) -> Formats:
    """Raises Exit for a parser that is not there, and for two that cannot read one output."""
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
    elif calls is not None and calls.channels:
        reasoning = FORMATS["openai_gptoss"]
    if calls is not None and reasoning is not None and calls.channels != reasoning.channels:
        message = (
            f"--tool-call-parser {settings.tool_call_parser} and --reasoning-parser "
            f"{settings.reasoning_parser} are of different models: openai goes with openai_gptoss alone."
        )
        raise Exit(BAD_ARGUMENTS, message, argument="reasoning_parser")
    ids = None if reasoning is None else _reasoning_ids(reasoning, tokenizer)
    channels = None if reasoning is None or not reasoning.channels else _channels(reasoning, tokenizer)
    stops = () if reasoning is None else _stops(reasoning, tokenizer)
    marks = _marks(calls, tokenizer), _marks(reasoning, tokenizer)
    return Formats(calls, reasoning, ids, stops, *marks, channels)


def _marks(format_: CallFormat | ReasoningFormat | None, tokenizer: Tokenizer) -> frozenset[int]:
    ids = {tokenizer.token_id(marker) for marker in (format_.markers if format_ is not None else ())}
    return frozenset(token_id for token_id in ids if token_id in tokenizer.special_ids)


def _channels(reasoning: ReasoningFormat, tokenizer: Tokenizer) -> Channels | None:
    ids = {marker: tokenizer.token_id(marker) for marker in reasoning.markers}
    special = {marker: found for marker, found in ids.items() if found in tokenizer.special_ids}
    return Channels(special) if len(special) == len(ids) else None


def _reasoning_ids(reasoning: ReasoningFormat, tokenizer: Tokenizer) -> tuple[int, int] | None:
    end = tokenizer.token_id(reasoning.ends[0]) if reasoning.ends else None
    if end is None:
        return None
    begin = tokenizer.token_id(reasoning.begins[0])
    return -1 if begin is None else begin, end


def _stops(reasoning: ReasoningFormat, tokenizer: Tokenizer) -> tuple[int, ...]:
    ids = map(tokenizer.token_id, reasoning.stops)
    return tuple(token_id for token_id in ids if token_id is not None)
