"""Reads nested mappings into dataclasses, strictly: every field known, every value of its type."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from difflib import get_close_matches
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

T = TypeVar("T")


class InvalidService(ValueError):
    """A service document that cannot be accepted; `path` is the field, such as spec.model.hub.

    `reason` is how the resource's status tells it: InvalidSpec is wrong anywhere, PolicyDenied is for whoever
    runs the cluster to permit, and NotSupported is for another release.
    """

    def __init__(self, path: str, sentence: str, *, reason: str = "InvalidSpec") -> None:
        super().__init__(f"{path}: {sentence}")
        self.path = path
        self.sentence = sentence
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Form:
    """What a text must look like, in a pattern and in words."""

    pattern: str
    words: str
    numbers: bool = False
    """A bare number is taken as its text, as Kubernetes does for quantities."""
    longest: int | None = None
    """Characters, where rules of the CRD compare many of them."""
    deep: bool = False
    """In lists within lists of lists, where the API server reckons a rule too dear: it checks the pattern."""


@dataclass(frozen=True, slots=True)
class Range:
    least: int
    most: int


@dataclass(frozen=True, slots=True)
class Rest:
    """Of a mapping: a document writes its keys, which look like this, beside the fields of its class."""

    keys: Form


ABBREVIATIONS = ("api", "ca")
"""Written in capitals within a field's name, as Kubernetes does."""


def camel(name: str) -> str:
    head, *rest = name.split("_")
    return head + "".join(word.upper() if word in ABBREVIATIONS else word.capitalize() for word in rest)


def types_of(cls: type) -> Mapping[str, Any]:
    """The annotated type of each field. Evaluating them anew costs milliseconds a document."""
    return _evaluated(cls)


@cache
def _evaluated(cls: type) -> Mapping[str, Any]:
    return get_type_hints(cls, include_extras=True)


def rest_of(cls: type) -> tuple[str, Form] | None:
    """The mapping of the class that takes what is none of its fields, and what its keys look like."""
    return _rest(cls)


@cache
def _rest(cls: type) -> tuple[str, Form] | None:
    for name, wanted in types_of(cls).items():
        for rule in get_args(wanted):
            if isinstance(rule, Rest):
                return name, rule.keys
    return None


def read(cls: type[T], value: object, path: str, **given: object) -> T:
    """An instance of the dataclass `cls`; `given` are fields that come from elsewhere.

    Null means unset. Raises InvalidService with the path of the field at fault.
    """
    if not isinstance(value, Mapping):
        raise InvalidService(path, f"{shown(value)} is not a mapping of fields.")
    rest, keys = rest_of(cls) or ("", None)
    declared = {camel(f.name): f for f in fields(cls) if f.name not in (*given, rest)}  # type: ignore[arg-type]
    types = types_of(cls)
    values = dict(given)
    others: dict[str, object] = {}
    for key, item in value.items():
        if item is not None and key in declared:
            name = declared[key].name
            values[name] = convert(types[name], item, f"{path}.{key}")
        elif keys and re.fullmatch(keys.pattern, str(key)):
            others |= {} if item is None else {key: item}
        elif key not in declared:
            raise unknown_field(path, key, [*declared, *([keys.words] if keys else [])])
    if others:
        values[rest] = convert(types[rest], others, path)
    for key, field in declared.items():
        if field.name not in values and _required(field):
            raise InvalidService(f"{path}.{key}", "it must be given.")
    return cls(**values)


def _required(field: Field[Any]) -> bool:
    return field.default is MISSING and field.default_factory is MISSING


def unknown_field(path: str, key: object, known: list[str]) -> InvalidService:
    near = get_close_matches(str(key), known, n=3, cutoff=0.6)
    advice = f"Did you mean {' or '.join(near)}?" if near else _listed(known)
    return InvalidService(f"{path}.{key}", f"there is no such field. {advice}")


def _listed(known: list[str]) -> str:
    """All of a few; of many there is a page in the manual."""
    return f"There are {', '.join(known)}." if len(known) <= 20 else "`slipway args` lists all."


def convert(wanted: Any, value: object, path: str) -> object:
    """The value as the annotated type `wanted` asks."""
    origin, arguments = get_origin(wanted), get_args(wanted)
    if origin is Annotated:
        return _constrained(arguments[0], arguments[1:], value, path)
    if origin in (Union, UnionType):
        return _either([choice for choice in arguments if choice is not NoneType], value, path)
    if origin is Literal:
        if value not in arguments:
            raise InvalidService(path, f"{shown(value)} is not one of {', '.join(arguments)}.")
        return value
    if origin in (tuple, frozenset):
        if not isinstance(value, list):
            raise InvalidService(path, f"{shown(value)} is not a list.")
        return origin(
            _each_once([convert(arguments[0], v, f"{path}[{i}]") for i, v in enumerate(value)], path)
        )
    if origin is not None and issubclass(origin, Mapping):
        return _mapping(arguments[0], arguments[1], value, path)
    if isinstance(wanted, type) and is_dataclass(wanted):
        return read(wanted, value, path)
    return _plain(wanted, value, path)


def key_of(cls: Any) -> str | None:
    """The field that tells items of a list of this class from each other: each is there once, and may have an
    owner of its own."""
    return getattr(cls, "KEY", None)


def most_of(cls: Any, usual: int) -> int:
    """How many items of this class a list may have."""
    return getattr(cls, "MOST", usual)


def identity(item: object) -> object:
    """What tells an item of a list from the others: its key, or all of it."""
    key = key_of(type(item))
    return getattr(item, key) if key else item


def _each_once(items: list[object], path: str) -> tuple[object, ...]:
    known = [identity(item) for item in items]
    for index, item in enumerate(items):
        if key_of(type(item)) and known[index] in known[:index]:
            raise InvalidService(f"{path}[{index}]", f"{known[index]} stands there twice. Keep one.")
    return tuple(items)


def _constrained(wanted: Any, rules: tuple[object, ...], value: object, path: str) -> object:
    for rule in rules:
        match rule:
            case Form(numbers=True) if type(value) in (int, float):
                value = f"{value:g}" if isinstance(value, float) else str(value)
    result = convert(wanted, value, path)
    for rule in rules:
        match rule, result:
            case Form(pattern, words), str() if not re.fullmatch(pattern, result):
                raise InvalidService(path, f"{shown(result)} is not {words}.")
            case Form(longest=int(longest)), str() if len(result) > longest:
                raise InvalidService(path, f"it has {len(result)} characters, and may have {longest}.")
            case Range(least, most), int() if not least <= result <= most:
                raise InvalidService(path, f"{result} is not between {least} and {most}.")
    return result


def _either(choices: list[Any], value: object, path: str) -> object:
    """As the choice of the value's own type, else as the first."""
    for choice in choices:
        plain = get_args(choice)[0] if get_origin(choice) is Annotated else choice
        if type(value) is plain or (isinstance(value, Mapping) and is_dataclass(plain)):
            return convert(choice, value, path)
    return convert(choices[0], value, path)


def _mapping(keys: Any, wanted: Any, value: object, path: str) -> dict[object, object]:
    if not isinstance(value, Mapping):
        raise InvalidService(path, f"{shown(value)} is not a mapping.")
    for key in value:
        if not isinstance(key, str):
            raise InvalidService(path, f"the key {shown(key)} is not text. Put it in quotes.")
    return {convert(keys, key, path): convert(wanted, item, f"{path}.{key}") for key, item in value.items()}


def _plain(wanted: Any, value: object, path: str) -> object:
    if wanted is object:
        return value
    names = {str: "text", int: "a whole number", bool: "true or false"}
    if type(value) is not wanted:
        quotes = " Put it in quotes." if wanted is str and not isinstance(value, dict | list) else ""
        raise InvalidService(path, f"{shown(value)} is not {names[wanted]}.{quotes}")
    return value


def written(value: Any, spelled: Callable[[Any, Any], Any] = lambda annotation, item: item) -> Any:
    """A dataclass as a document writes it, without what is null or at its default: the opposite of `read`.

    spelled  makes of a field's annotated type and its value what is written
    """
    if is_dataclass(value):
        types, (rest, _) = types_of(type(value)), rest_of(type(value)) or ("", None)
        made = {
            camel(field.name): written(spelled(types[field.name], item), spelled)
            for field in fields(value)
            if field.name != rest and (item := getattr(value, field.name)) != _default(field)
        }
        if rest:
            _, of_value = get_args(get_args(types[rest])[0])
            made |= {key: spelled(of_value, item) for key, item in getattr(value, rest).items()}
        return made
    if isinstance(value, tuple | list):
        return [written(item, spelled) for item in value]
    if isinstance(value, Mapping):
        return {key: written(item, spelled) for key, item in value.items() if item is not None}
    return value


def _default(field: Field[Any]) -> Any:
    return field.default if field.default_factory is MISSING else field.default_factory()


def shown(value: object) -> str:
    """The value for a message, cut where it is long."""
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "…"
