"""JSON arguments: their known keys, the older names of these, and settings given key by key."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from slipway.args.declare import LARGEST_INT64, Argument, Key
from slipway.args.errors import ArgumentError
from slipway.args.values import BOOLEANS, NUMBER, near, parse_json

DEEPEST = 64


def merge_key(target: dict[str, Any], path: tuple[str, ...], value: object) -> None:
    """Set `target[a][b]…`, making the objects on the way."""
    for name in path[:-1]:
        inner = target.get(name)
        if not isinstance(inner, dict):
            inner = target[name] = {}
        target = inner
    target[path[-1]] = value


def key_path(argument: Argument, dotted: str) -> tuple[str, ...]:
    """`inductor-passes.x` → ("inductor_passes", "x"): dashes count as underscores in known keys."""
    first, *rest = dotted.split(".")
    underscored = first.replace("-", "_")
    if not all((first, *rest)):
        raise ArgumentError(f"{argument.flag}.{dotted} has an empty key.", argument.name)
    return (underscored if underscored in known_names(argument) else first, *rest)


def known_names(argument: Argument) -> dict[str, str]:
    """Key or alias → key."""
    return {spelling: name for name, key in argument.keys.items() for spelling in (name, *key.aliases)}


def key_value(argument: Argument, path: tuple[str, ...], text: str, place: str) -> Any:
    """The text after `--argument.key`: JSON where it is JSON and the key's type is not text."""
    key = argument.keys.get(known_names(argument).get(path[0], "")) if len(path) == 1 else None
    if text == "None" and (key is None or key.nullable):
        return None
    if key and key.type == "str":
        return text
    if key and key.type == "bool" and text.lower() in BOOLEANS:
        return BOOLEANS[text.lower()]
    if text.lower().lstrip("+-") in ("nan", "inf", "infinity"):
        raise ArgumentError(f"{place} {text} is not a finite number.", argument.name)
    try:
        return parse_json(text)
    except ValueError as error:
        if text.lstrip().startswith(("{", "[", '"')) or NUMBER.fullmatch(text):
            raise ArgumentError(f"{place} {text!r} is not JSON: {error}.", argument.name) from None
        return text


def check_object(
    argument: Argument, value: dict[str, Any], place: str, warn: Callable[[str], None]
) -> dict[str, Any]:
    """The object under the names and types of its declared keys."""
    _check_json(argument, value, place)
    names = known_names(argument)
    checked: dict[str, Any] = {}
    for written, item in value.items():
        name = names.get(written)
        if name is None:
            if argument.keys:
                _unknown(argument, written, place, warn)
            checked[written] = item
            continue
        if name in checked and checked[name] != item:
            raise ArgumentError(
                f"{place} gives {name} twice, as {checked[name]!r} and as {item!r}.", argument.name
            )
        checked[name] = _check_key(argument, argument.keys[name], item, f"{place}.{written}")
    return checked


def _unknown(argument: Argument, written: str, place: str, warn: Callable[[str], None]) -> None:
    meant = near(written, argument.keys)
    if argument.open_keys:
        warn(f"{place}: {written} is not a key that Slipway knows.{meant} It is passed on as it is.")
        return
    known = ", ".join(argument.keys)
    raise ArgumentError(f"{place} has no key {written!r}.{meant} It has {known}.", argument.name)


def _check_json(argument: Argument, value: object, place: str, depth: int = 0) -> None:
    """What YAML can say and JSON cannot: dates, keys that are no text, endless maps, infinities."""
    if depth > DEEPEST:
        raise ArgumentError(f"{argument.flag} is nested too deeply.", argument.name)
    if isinstance(value, float) and not math.isfinite(value):
        raise ArgumentError(f"{place} {value} is not a finite number.", argument.name)
    if isinstance(value, int) and abs(value) > LARGEST_INT64:
        raise ArgumentError(f"{place} holds a number that is too large.", argument.name)
    if isinstance(value, dict):
        for name, item in value.items():
            if not isinstance(name, str):
                raise ArgumentError(f"{place} has the key {name!r}, which is not text.", argument.name)
            _check_json(argument, item, f"{place}.{name}", depth + 1)
    elif isinstance(value, list):
        for item in value:
            _check_json(argument, item, place, depth + 1)
    elif value is not None and not isinstance(value, bool | int | float | str):
        raise ArgumentError(f"{place} {value} is a {type(value).__name__}: put it in quotes.", argument.name)


def _check_key(argument: Argument, key: Key, value: object, place: str) -> Any:
    if value is None and key.nullable:
        return None
    if not _has_type(value, key.type):
        raise ArgumentError(f"{place} {value!r} is not of type {key.type}.", argument.name)
    if key.choices and value not in key.choices:
        raise ArgumentError(
            f"{place} {value!r} is not one of {', '.join(key.choices)}.{near(str(value), key.choices)}",
            argument.name,
        )
    if key.minimum is not None and isinstance(value, int | float) and value < key.minimum:
        raise ArgumentError(f"{place} {value} is too small: the least is {key.minimum:g}.", argument.name)
    if key.maximum is not None and isinstance(value, int | float) and value > key.maximum:
        raise ArgumentError(f"{place} {value} is too large: the most is {key.maximum:g}.", argument.name)
    return value


def _has_type(value: object, wanted: str) -> bool:
    if wanted.startswith("list"):
        inner = wanted.removeprefix("list").strip("[]")
        return isinstance(value, list) and (not inner or all(_has_type(item, inner) for item in value))
    if isinstance(value, bool):
        return wanted == "bool"
    types: dict[str, tuple[type, ...]] = {
        "bool": (bool,),
        "int": (int,),
        "float": (int, float),
        "str": (str,),
        "object": (dict,),
    }
    return isinstance(value, types[wanted])
