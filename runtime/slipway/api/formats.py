"""How the model's outputs are read: as the arguments say, else by what the model is known to write."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from slipway.api.configure import Settings
from slipway.exits import BAD_ARGUMENTS, Exit
from slipway.text.channels import Channels
from slipway.text.parse.calls import CallFormat
from slipway.text.parse.families import Choice, calls_parser, reasoning_parser, shows_tools
from slipway.text.parse.formats import call_format
from slipway.text.parse.reasoning import FORMATS, ReasoningFormat, reasoning_format
from slipway.text.tokenizer import Tokenizer

logger = logging.getLogger("slipway.api")

_OWN_CHATS = "the model's tokenizer is of mistral_common"
_NO_TOKENIZER = "the server has no tokenizer"


@dataclass(frozen=True, slots=True)
class Formats:
    """What the server knows of its model's outputs."""

    calls: CallFormat | None = None
    auto_tools: bool = False
    """The model may decide to call tools."""
    why_no_calls: str = _NO_TOKENIZER
    """Where no parser of calls was named, and none is certain."""
    shows_tools: bool = True
    """The model's prompt has a request's tools."""
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


def formats(
    settings: Settings, tokenizer: Tokenizer, template: str | None = None, model_type: str | None = None
) -> Formats:
    """By the arguments, else by the model's chat template and its `model_type`.

    Raises Exit for a parser that is not there, and for two that cannot read one output.
    """
    shown = tokenizer.chat is not None or template is None or shows_tools(template)
    if not shown and settings.tool_call_parser:
        logger.warning(
            "The chat template does not show tools to the model: --tool-call-parser %s reads what it calls, "
            "but a request has to tell it of them. --chat-template names another.",
            settings.tool_call_parser,
        )
    chosen = _calls_parser(settings, tokenizer, template, model_type)
    calls = _call_format(chosen.parser, settings)
    reasoning_name = _reasoning_parser(settings, tokenizer, template, model_type, calls)
    reasoning = _reasoning_format(reasoning_name, settings)
    if calls is not None and reasoning is not None and calls.channels != reasoning.channels:
        message = (
            f"--tool-call-parser {chosen.parser} and --reasoning-parser {reasoning_name} are of different "
            "models: openai goes with openai_gptoss alone."
        )
        raise Exit(BAD_ARGUMENTS, message, argument="reasoning_parser")
    ids = None if reasoning is None else _reasoning_ids(reasoning, tokenizer)
    channels = None if reasoning is None or not reasoning.channels else _channels(reasoning, tokenizer)
    return Formats(
        calls,
        auto_tools=calls is not None and settings.enable_auto_tool_choice is not False,
        why_no_calls=chosen.why,
        shows_tools=shown,
        reasoning=reasoning,
        reasoning_ids=ids,
        reasoning_stops=() if reasoning is None else _stops(reasoning, tokenizer),
        call_marks=_marks(calls, tokenizer),
        reasoning_marks=_marks(reasoning, tokenizer),
        channels=channels,
    )


def _calls_parser(
    settings: Settings, tokenizer: Tokenizer, template: str | None, model_type: str | None
) -> Choice:
    if not settings.chooses_tool_call_parser:
        return Choice(settings.tool_call_parser, "--tool-call-parser is empty")
    if tokenizer.chat is None:
        chosen = calls_parser(template, model_type)
    elif tokenizer.token_id("[TOOL_CALLS]") is not None:
        chosen = Choice("mistral", _OWN_CHATS)
    else:
        chosen = Choice(None, f"{_OWN_CHATS}, and has no token [TOOL_CALLS]")
    if chosen.parser is not None:
        logger.info("Tool calls are read by --tool-call-parser %s: %s.", chosen.parser, chosen.why)
    return chosen


def _call_format(name: str | None, settings: Settings) -> CallFormat | None:
    if name is None:
        return None
    with _plugin_of("tool_call_parser", name, settings.tool_parser_plugin) as plugin:
        return call_format(name, plugin)


def _reasoning_format(name: str | None, settings: Settings) -> ReasoningFormat | None:
    if not name:
        return None
    with _plugin_of("reasoning_parser", name, settings.reasoning_parser_plugin) as plugin:
        return reasoning_format(name, plugin)


@contextmanager
def _plugin_of(argument: str, name: str, path: str | None) -> Iterator[Path | None]:
    """Raises Exit for whatever a parser's plugin raises, and for a parser that is not there."""
    try:
        yield Path(path).expanduser() if path else None
    except Exception as error:
        message = f"--{argument.replace('_', '-')} {name}: {error}."
        raise Exit(BAD_ARGUMENTS, message, argument=argument) from error


def _reasoning_parser(
    settings: Settings,
    tokenizer: Tokenizer,
    template: str | None,
    model_type: str | None,
    calls: CallFormat | None,
) -> str | None:
    """One that is chosen must fit the parser of calls, which may have been named."""
    if calls is not None and calls.channels and settings.reasoning_parser is None:
        return "openai_gptoss"
    if not settings.chooses_reasoning_parser:
        return settings.reasoning_parser
    if tokenizer.chat is None:
        chosen = reasoning_parser(template, model_type)
    else:
        known = tokenizer.token_id("[THINK]") is not None
        chosen = Choice("mistral" if known else None, f"{_OWN_CHATS}, and has a token [THINK]")
    if chosen.parser is None or (calls is not None and FORMATS[chosen.parser].channels != calls.channels):
        return None
    logger.info("Reasoning is read by --reasoning-parser %s: %s.", chosen.parser, chosen.why)
    return chosen.parser


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
