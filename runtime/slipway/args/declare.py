"""The words in which arguments are declared: `@group("CacheConfig") class Cache: block_size: int = arg(16)`.

The class body is the only place where an argument is written: its annotation gives the type, `arg`
the bounds, the string after it the help. Command line, configuration file, CRD and manual read it.
"""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import lru_cache
from typing import Any, TypeAlias

HumanInt: TypeAlias = int
"""An integer that may be written 1k (1000), 1K (1024) or 25.6k."""
Json: TypeAlias = dict[str, Any]
"""A JSON object, also written key by key: `--hf-overrides.rope_theta 1e6`."""
FilePath: TypeAlias = str
Url: TypeAlias = str

LARGEST_INT32 = 2**31 - 1
LARGEST_INT64 = 2**63 - 1
DECLARED = "__group__"


class Kind(StrEnum):
    """What one value is after parsing; a list has the kind of its items."""

    BOOL = "bool"
    INT = "int"
    FLOAT = "float"
    STR = "str"
    PATH = "path"
    URL = "url"
    HUMAN_INT = "human_int"
    JSON = "json_or_keys"
    STR_OR_JSON = "str_or_json"


KINDS = {
    "bool": Kind.BOOL,
    "int": Kind.INT,
    "float": Kind.FLOAT,
    "str": Kind.STR,
    "FilePath": Kind.PATH,
    "Url": Kind.URL,
    "HumanInt": Kind.HUMAN_INT,
    "Json": Kind.JSON,
    "Json | str": Kind.STR_OR_JSON,
}


class Disposition(StrEnum):
    """What becomes of a given argument."""

    IMPLEMENT = "implement"
    WARN = "warn"
    REFUSE = "refuse"


@dataclass(frozen=True, slots=True)
class Key:
    """One known key of a JSON argument. `type` is bool, int, float, str, object or a list of these."""

    type: str
    choices: tuple[str, ...] = ()
    minimum: float | None = None
    maximum: float | None = None
    aliases: tuple[str, ...] = ()
    nullable: bool = False


@dataclass(frozen=True, slots=True)
class Unbuilt:
    """A feature that this release does not have yet.

    A value asks for it unless it is the default, empty, or one of `works`. An argument that only
    `tunes` the feature asks for nothing by itself: it is accepted with a warning. Where values ask for
    different parts of the feature, `part` names a value's, or nothing where all of it works.
    """

    feature: str
    works: tuple[object, ...] = ()
    asks: Callable[[Any], bool] | None = None
    tunes: bool = False
    part: Callable[[Any], str] | None = None
    without: str = ""
    """Why nothing is lost as long as the feature is missing, where that is so."""

    @property
    def idle(self) -> str:
        """Why an argument that only tunes the feature has no effect."""
        missing = f"{self.feature} is not built yet"
        return f"{self.without}, and {missing}" if self.without else missing

    def asked_by(self, value: object, default: object) -> bool:
        if value is None or value is False or value in ("", [], {}) or value == default:
            return False
        if self.part:
            return bool(self.part(value))
        return self.asks(value) if self.asks else value not in self.works

    def asked(self, value: object) -> str:
        """What a value that asks for it asks for."""
        return self.part(value) if self.part else self.feature


@dataclass(frozen=True, slots=True, kw_only=True)
class Argument:
    """One argument of `slipway serve`, as declared."""

    default: Any
    name: str = ""
    """With underscores; the long flag has dashes."""
    group: str = ""
    kind: Kind = Kind.STR
    is_list: bool = False
    nullable: bool = False
    """None is among its values: unset, and derived elsewhere."""

    positional: bool = False
    aliases: tuple[str, ...] = ()
    synonyms: tuple[str, ...] = ()
    """Other long names, with underscores, that vLLM has for it now."""
    choices: tuple[Any, ...] = ()
    open_choices: bool = False
    """The list may grow: the CRD checks the form of a name, the command line the name."""
    extended_by: str = ""
    """Names outside `choices` are accepted where this argument, a plugin, is given."""
    refused: Mapping[str, str] = field(default_factory=dict)
    """Values that are understood and refused, with what to do instead. "*" is every other value."""
    hollow: Mapping[str, str] = field(default_factory=dict)
    """Values that are accepted with a warning: why they mean the default."""
    pattern: str = ""
    """What the whole text must match; `form` says it in words, as in "is not a version"."""
    form: str = ""
    minimum: float | None = None
    above: float | None = None
    maximum: float | None = None
    unit: str = ""

    negatable: bool = False
    tri_state: bool = False
    """Unset differs from false."""
    optional_value: bool = False
    """A bool that takes an explicit true or false, or a text that may be left out."""
    append: bool = False
    """Given once for each item."""
    adds_up: bool = False
    """A list that may be given again: its items are added."""
    once: bool = False
    """Given twice is an error; of others the last counts."""
    json_array: bool = False
    """The list is one JSON array."""
    comma_list: bool = False
    """The list is also written as one value with commas."""
    options: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Choice → options that may follow it after a colon, and the argument that each turns on."""
    pairs: bool = False
    """A JSON object is also written image=16,video=2."""
    level_key: str = ""
    """An integer N stands for the object {level_key: N}."""
    words: Mapping[str, object] = field(default_factory=dict)
    """Special texts, in lower case, and what they mean."""
    keys: Mapping[str, Key] = field(default_factory=dict)
    """Known keys of a JSON argument or of the objects in a list."""
    open_keys: bool = True
    """Other keys are passed on; where false they are refused."""
    acting_keys: tuple[str, ...] = ()
    """The only keys of a JSON argument that have an effect; `reason` says why others have none."""
    item_pair: tuple[str, str] | None = None
    """An item written left=right stands for the object with these two keys."""

    requires: tuple[str, ...] = ()
    no_effect_without: tuple[str, ...] = ()
    replacement: str = ""
    """The argument that took this one's place: `name`, `name.key` or `name=value`."""
    short_for: str = ""
    """The same of one that is no older form, but says it more shortly."""
    parts: Mapping[str, str] = field(default_factory=dict)
    """Keys of a JSON argument that stand for arguments of their own: key → argument."""
    twins: tuple[str, ...] = ()
    """Environment variables that set the same thing."""
    secret: bool = False
    """It is hidden, and goes out in HTTP headers."""
    ascii_only: bool = False
    """A secret that no client sends otherwise."""
    security_sensitive: bool = False
    disposition: Disposition = Disposition.IMPLEMENT
    reason: str = ""
    unbuilt: Unbuilt | None = None
    cuda_only: bool = False
    """On CPU there is nothing that it could change."""
    in_spec: bool = True
    """Part of `spec.engine`; false where the service document has its own place for it."""
    about_command: bool = False
    """Says what the command does, not what the server is: never among the resolved values."""

    @property
    def flag(self) -> str:
        """How errors and help name it."""
        return self.name if self.positional else "--" + self.name.replace("_", "-")

    @property
    def camel(self) -> str:
        """Its field in `spec.engine`."""
        head, *rest = self.name.split("_")
        return head + "".join(word.capitalize() for word in rest)

    @property
    def is_json(self) -> bool:
        return self.kind is Kind.JSON and not self.is_list


def arg(default: object = None, **declared: Any) -> Any:
    """Declare an argument; `declared` are fields of `Argument`. Its type is the annotation's."""
    return Argument(default=default, **declared)


@dataclass(frozen=True, slots=True)
class Group:
    """Arguments that belong together, in the order in which they are declared."""

    name: str
    summary: str
    module: str
    class_name: str
    arguments: tuple[Argument, ...]

    def help_texts(self) -> dict[str, str]:
        """Argument name → the text after its declaration, read from the source when it is asked for."""
        return _texts_of_module(self.module)[self.class_name]


def group(name: str) -> Callable[[type], type]:
    """Make a class of declarations the group `name`; the class docstring is its summary."""

    def declare(cls: type) -> type:
        arguments = tuple(
            _typed(vars(cls)[attribute], attribute, annotation, name)
            for attribute, annotation in cls.__annotations__.items()
        )
        summary = inspect.cleandoc(cls.__doc__ or "")
        declared = Group(name, summary, cls.__module__, cls.__name__, arguments)
        setattr(cls, DECLARED, declared)
        return cls

    return declare


def declared_by(cls: type) -> Group:
    """The group of a class that `group` has decorated."""
    found: Group = vars(cls)[DECLARED]
    return found


def _typed(declared: Argument, attribute: str, annotation: str, group_name: str) -> Argument:
    text = annotation.removesuffix(" | None")
    is_list = text.startswith("list[")
    kind = KINDS[text.removeprefix("list[").removesuffix("]")]
    return replace(
        declared,
        name=attribute.rstrip("_"),
        group=group_name,
        kind=kind,
        is_list=is_list,
        nullable=annotation.endswith(" | None"),
    )


@lru_cache
def _texts_of_module(module: str) -> dict[str, dict[str, str]]:
    tree = ast.parse(inspect.getsource(sys.modules[module]))
    texts: dict[str, dict[str, str]] = {}
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            texts[node.name] = dict(_texts_of_class(node))
    return texts


def _texts_of_class(node: ast.ClassDef) -> list[tuple[str, str]]:
    """Every annotated name and the string expression that follows it."""
    found = []
    for statement, following in zip(node.body, node.body[1:], strict=False):
        match statement, following:
            case (
                ast.AnnAssign(target=ast.Name(id=name)),
                ast.Expr(value=ast.Constant(value=str(text))),
            ):
                found.append((name.rstrip("_"), inspect.cleandoc(text)))
    return found
