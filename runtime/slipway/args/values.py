"""From what was written to a value of the declared type, or a sentence that says why not."""

from __future__ import annotations

import json
import math
import re
from difflib import get_close_matches
from fractions import Fraction
from typing import Any
from urllib.parse import urlsplit

from slipway.args.declare import LARGEST_INT32, LARGEST_INT64, Argument, Kind
from slipway.args.errors import ArgumentError
from slipway.envs.secrets import trimmed, unsendable

INTEGER = re.compile(r"[+-]?[0-9]+")
NUMBER = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?")
HUMAN = re.compile(r"(?P<number>[+-]?[0-9]+(\.[0-9]+)?)(?P<suffix>[kKmMgG]?)")
SUFFIXES = {
    "": 1,
    "k": 1000,
    "m": 1000**2,
    "g": 1000**3,
    "K": 1024,
    "M": 1024**2,
    "G": 1024**3,
}
BOOLEANS = {
    **dict.fromkeys(("true", "1", "yes", "on"), True),
    **dict.fromkeys(("false", "0", "no", "off"), False),
}
MOST_DIGITS = 40
NATIVE: dict[Kind, tuple[type, ...]] = {
    Kind.BOOL: (bool,),
    Kind.INT: (int,),
    Kind.HUMAN_INT: (int,),
    Kind.FLOAT: (int, float),
    Kind.JSON: (dict,),
    Kind.STR_OR_JSON: (dict,),
}
"""Types that YAML and JSON give to what is no text."""


def near(word: str, known: Any) -> str:
    """A sentence with the near matches, after a space, or nothing."""
    names = {str(name).lower(): str(name) for name in known}
    found = [names[match] for match in get_close_matches(word.lower(), names, n=3, cutoff=0.6)]
    return f" Did you mean {' or '.join(found)}?" if found else ""


def from_text(argument: Argument, text: str, place: str) -> Any:
    """One value, or one item of a list, from the command line. `place` names it in errors."""
    if argument.secret:
        text = trimmed(text)
    if text.lower() in argument.words:
        return argument.words[text.lower()]
    if text == "" and argument.kind is not Kind.BOOL:
        return _empty(argument, place)
    if argument.secret and (reason := unsendable(text, ascii_only=argument.ascii_only)):
        raise ArgumentError(f"{place} {reason}", argument.name)
    return check(argument, _parse(argument, text, place), place)


def from_yaml(argument: Argument, value: Any, place: str) -> Any:
    """The same from a configuration file, where numbers and objects have types already."""
    if isinstance(value, str) and argument.kind is not Kind.BOOL:
        return from_text(argument, value, place)
    if type(value) is int and abs(value) > LARGEST_INT64:
        raise ArgumentError(f"{place} is too large a number.", argument.name)
    if argument.level_key and type(value) is int:
        value = {argument.level_key: value}
    if type(value) not in NATIVE.get(argument.kind, ()):  # and not isinstance: a bool is an int
        shown = "its value" if argument.secret else repr(value)
        advice = {Kind.BOOL: " Write true or false, without quotes."} | dict.fromkeys(
            (Kind.STR, Kind.PATH, Kind.URL), " Put it in quotes."
        )
        raise ArgumentError(
            f"{place}: {shown} is not {wanted(argument)}.{advice.get(argument.kind, '')}", argument.name
        )
    if value == -1 and "-1" in argument.words:
        return argument.words["-1"]
    return check(argument, float(value) if argument.kind is Kind.FLOAT else value, place)


def wanted(argument: Argument) -> str:
    """What the argument takes, as in "is not an integer"."""
    return {
        Kind.BOOL: "true or false",
        Kind.INT: "an integer",
        Kind.FLOAT: "a number",
        Kind.STR: "text",
        Kind.PATH: "a path",
        Kind.URL: "a URL",
        Kind.HUMAN_INT: "an integer (1k is 1000, 1K is 1024, 25.6k is 25600)",
        Kind.JSON: "a JSON object",
        Kind.STR_OR_JSON: "a name or a JSON object",
    }[argument.kind]


def check(argument: Argument, value: Any, place: str) -> Any:
    """The value, where it is within the declared bounds and choices."""
    if argument.kind in (Kind.INT, Kind.FLOAT, Kind.HUMAN_INT):
        _check_bounds(argument, value, place)
    if isinstance(value, str) and ":" in value and argument.options:
        return _check_options(argument, value, place)
    if argument.choices and value not in argument.choices and not argument.extended_by:
        listed = ", ".join(str(choice) for choice in argument.choices)
        raise ArgumentError(
            f"{place} {value!r} is not one of {listed}.{near(str(value), argument.choices)}",
            argument.name,
        )
    if argument.pattern and not re.fullmatch(argument.pattern, value):
        raise ArgumentError(f"{place} {_short(value)} is not {argument.form}.", argument.name)
    _check_refused(argument, value, place)
    return value


def _check_options(argument: Argument, value: str, place: str) -> str:
    """`xgrammar:no-fallback,disable-any-whitespace`, where the choice has these options."""
    choice, _, options = value.partition(":")
    check(argument, choice, place)
    known = argument.options.get(choice, {})
    for option in options.split(","):
        if option not in known:
            has = f"has the options {', '.join(known)}" if known else "has no options"
            raise ArgumentError(
                f"{place} {value}: {choice} {has}, not {option!r}.{near(option, known)}",
                argument.name,
            )
    return value


def _check_bounds(argument: Argument, value: float, place: str) -> None:
    if isinstance(value, float) and not math.isfinite(value):
        raise ArgumentError(f"{place} {value} is not a finite number.", argument.name)
    low, above, high = argument.minimum, argument.above, argument.maximum
    if low is not None and value < low:
        raise ArgumentError(f"{place} {value} is too small: the least is {low:g}.", argument.name)
    if above is not None and value <= above:
        raise ArgumentError(f"{place} {value} must be above {above:g}.", argument.name)
    if high is None and argument.kind is not Kind.FLOAT:
        high = LARGEST_INT64 if argument.kind is Kind.HUMAN_INT else LARGEST_INT32
    if high is not None and value > high:
        raise ArgumentError(f"{place} {value} is too large: the most is {high}.", argument.name)


def _check_refused(argument: Argument, value: Any, place: str) -> None:
    if not isinstance(value, str) or value == argument.default:
        return
    if value in argument.refused:
        raise ArgumentError(f"{place} {value}: {argument.refused[value]}", argument.name)
    if "*" in argument.refused and value not in argument.words.values():
        raise ArgumentError(f"{place} {value}: {argument.refused['*']}", argument.name)


def _empty(argument: Argument, place: str) -> None:
    if argument.secret:
        raise ArgumentError(
            f"{place} is empty. An unset variable, perhaps? Leave it out to have none.",
            argument.name,
        )
    if not argument.nullable or argument.is_list or argument.kind is Kind.JSON:
        raise ArgumentError(f"{place} is empty: it takes {wanted(argument)}.", argument.name)


def _parse(argument: Argument, text: str, place: str) -> Any:
    match argument.kind:
        case Kind.BOOL:
            if text.lower() not in BOOLEANS:
                raise ArgumentError(f"{place} {text!r} is neither true nor false.", argument.name)
            return BOOLEANS[text.lower()]
        case Kind.INT:
            if not INTEGER.fullmatch(text) or len(text) > MOST_DIGITS:
                raise ArgumentError(f"{place} {_short(text)} is not an integer.", argument.name)
            return int(text)
        case Kind.FLOAT:
            return _number(argument, text, place)
        case Kind.HUMAN_INT:
            return _human_int(argument, text, place)
        case Kind.URL:
            return _url(argument, text, place)
        case Kind.JSON:
            return parse_object(argument, text, place)
        case Kind.STR_OR_JSON if text.lstrip().startswith("{"):
            return parse_object(argument, text, place)
        case _:
            return text


def _short(text: str) -> str:
    return repr(text if len(text) <= 60 else text[:57] + "...")


def _number(argument: Argument, text: str, place: str) -> float:
    value = float(text) if NUMBER.fullmatch(text) else math.nan
    if not math.isfinite(value):
        raise ArgumentError(f"{place} {_short(text)} is not a finite number.", argument.name)
    return value


def _human_int(argument: Argument, text: str, place: str) -> int:
    found = HUMAN.fullmatch(text)
    if not found or len(text) > MOST_DIGITS:
        raise ArgumentError(f"{place} {_short(text)} is not {wanted(argument)}.", argument.name)
    number, suffix = found["number"], found["suffix"]
    if "." in number and suffix.isupper():
        raise ArgumentError(
            f"{place} {text} has a fraction before the binary suffix {suffix}. "
            f"Write {number}{suffix.lower()} for multiples of {SUFFIXES[suffix.lower()]}, or a whole number.",
            argument.name,
        )
    value = Fraction(number) * SUFFIXES[suffix]
    if value.denominator != 1:
        raise ArgumentError(f"{place} {text} is not a whole number.", argument.name)
    return int(value)


def _url(argument: Argument, text: str, place: str) -> str:
    try:
        parts = urlsplit(text)
        valid = bool(parts.scheme and parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        valid = False
    if not valid:
        raise ArgumentError(f"{place} {_short(text)} is not a URL such as http://host:4317.", argument.name)
    return text


def parse_json(text: str) -> Any:
    """JSON without NaN, infinities and integers beyond 64 bits. Raises ValueError with the reason."""

    def integer(digits: str) -> int:
        if len(digits) > MOST_DIGITS or abs(int(digits)) > LARGEST_INT64:
            raise ValueError(f"{_short(digits)} is too large")
        return int(digits)

    def number(digits: str) -> float:
        if not math.isfinite(float(digits)):
            raise ValueError(f"{_short(digits)} is too large")
        return float(digits)

    def constant(name: str) -> float:
        raise ValueError(f"{name} is not a number of JSON")

    try:
        return json.loads(text, parse_int=integer, parse_float=number, parse_constant=constant)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def parse_object(argument: Argument, text: str, place: str) -> dict[str, Any]:
    """A JSON object, `image=16,video=2`, or a level, as far as the argument takes them."""
    if argument.pairs and not text.lstrip().startswith("{"):
        return _pairs(argument, text, place)
    if argument.item_pair and not text.lstrip().startswith("{"):
        left, equals, right = text.partition("=")
        if not (left and equals and right):
            raise ArgumentError(
                f"{place} {_short(text)} is neither {'='.join(argument.item_pair)} nor a JSON object.",
                argument.name,
            )
        return dict(zip(argument.item_pair, (left, right), strict=True))
    try:
        value = parse_json(text)
    except ValueError as error:
        raise ArgumentError(
            f"{place} {_short(text)} is not JSON: {error}. Quote it as '{{\"key\": 1}}'.",
            argument.name,
        ) from None
    if argument.level_key and isinstance(value, int) and not isinstance(value, bool):
        return {argument.level_key: value}
    if not isinstance(value, dict):
        raise ArgumentError(f"{place} {_short(text)} is not a JSON object.", argument.name)
    return value


def _pairs(argument: Argument, text: str, place: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for item in text.split(","):
        name, _, number = item.strip().partition("=")
        if not name or not INTEGER.fullmatch(number) or len(number) > MOST_DIGITS:
            raise ArgumentError(
                f"{place} {_short(text)} is neither a JSON object nor a list such as image=16,video=2.",
                argument.name,
            )
        found[name] = int(number)
    return found
