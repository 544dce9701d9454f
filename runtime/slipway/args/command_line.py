"""The command line as it was typed: which argument got which value, and nothing about other sources.

A parser of our own and not argparse's, which has no dotted keys, takes any prefix of a flag, and
lets `-O3`, `--no-` forms and optional booleans be told apart only by private hooks.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from slipway.args import foreign, objects, values
from slipway.args.declare import Argument, Kind
from slipway.args.errors import ArgumentError
from slipway.args.schema import SERVE, Schema

NEGATIVE_NUMBER = re.compile(r"-\.?[0-9]")


@dataclass(slots=True)
class Written:
    """What one source says. Values have their declared types; objects are merged and checked later."""

    values: dict[str, Any] = field(default_factory=dict)
    keys: dict[str, dict[str, Any]] = field(default_factory=dict)
    """JSON argument → what was given key by key."""
    places: dict[str, str] = field(default_factory=dict)
    """Argument → how errors name it."""
    foreign: dict[str, str] = field(default_factory=dict)
    """Flags of vLLM that we have no argument for, and their values as texts."""

    def put(self, argument: Argument, value: Any, place: str) -> None:
        """The last one counts, except for arguments that are repeated for each item."""
        if argument.once and argument.name in self.values:
            raise ArgumentError(f"{place} is given twice. Give it once.", argument.name)
        if argument.append or argument.adds_up:
            value = [*self.values.get(argument.name, ()), *value]
        self.values[argument.name] = value
        self.places[argument.name] = place

    def put_key(self, argument: Argument, dotted: str, value: object, place: str) -> None:
        path = objects.key_path(argument, dotted)
        objects.merge_key(self.keys.setdefault(argument.name, {}), path, value)
        self.places.setdefault(argument.name, place)

    @property
    def given(self) -> frozenset[str]:
        return frozenset(self.places)


def help_topic(argv: Sequence[str]) -> str | None:
    """What help was asked for: "" for all of it, None for none."""
    for index, word in enumerate(argv):
        if word == "--":
            return None
        name, equals, topic = word.partition("=")
        if name in ("-h", "--help"):
            following = argv[index + 1] if index + 1 < len(argv) else "-"
            return topic if equals or following.startswith("-") else following
    return None


def parse(argv: Sequence[str], schema: Schema = SERVE) -> Written:
    """Raises ArgumentError for the first thing that is not understood."""
    reader = _Reader(list(argv), schema)
    while reader.words:
        reader.take()
    return reader.written


def is_flag(word: str) -> bool:
    """A word that starts an argument; "-", and negative numbers, are values."""
    return len(word) > 1 and word[0] == "-" and not NEGATIVE_NUMBER.match(word)


class _Reader:
    """Takes words off the front of the command line."""

    def __init__(self, words: list[str], schema: Schema) -> None:
        self.words = words[::-1]
        self.schema = schema
        self.written = Written()
        self.only_positionals = False

    def take(self) -> None:
        word = self.words.pop()
        if self.only_positionals or not is_flag(word):
            self._positional(word)
        elif word == "--":
            self.only_positionals = True
        elif word.startswith("--"):
            self._long(word)
        else:
            self._short(word)

    def _positional(self, word: str) -> None:
        argument = self.schema.find("model_tag")
        if argument is None or "model_tag" in self.written.values:
            raise ArgumentError(
                f"{word!r} is one value too many: a value belongs right behind its --argument.",
                "model_tag",
            )
        self.written.put(argument, values.from_text(argument, word, "model_tag"), "model_tag")

    def _long(self, word: str) -> None:
        name, equals, text = word[2:].partition("=")
        stem, _, dotted = name.partition(".")
        argument = self.schema.find(stem)
        place = f"--{name}"
        if argument is None and stem.replace("-", "_").startswith("no_"):
            self._negated(stem, word)
        elif argument is None and self._foreign(stem, text if equals else None, place):
            return
        elif argument is None or argument.positional:
            raise self.schema.unknown(stem, f"--{stem}")
        else:
            self._value(argument, dotted, text if equals else None, place)

    def _foreign(self, stem: str, text: str | None, place: str) -> bool:
        """Whether it is a flag of vLLM that we have no argument for, whose values are taken with it."""
        row = foreign.find(stem) if self.schema.of_engine else None
        if row is None:
            return False
        if row.takes is foreign.Takes.NOTHING:
            if text is not None:
                raise ArgumentError(f"{place}={text}: it takes no value.", row.name)
            text = "true"
        elif text is None:
            if not self._value_follows():
                raise ArgumentError(f"{place} needs a value.", row.name)
            text = self.words.pop()
            while row.takes is foreign.Takes.SEVERAL and self._value_follows():
                text += f" {self.words.pop()}"
        self.written.foreign[row.name] = text
        return True

    def _negated(self, stem: str, word: str) -> None:
        positive = self.schema.find(stem[3:])
        row = foreign.find(stem[3:]) if positive is None and self.schema.of_engine else None
        if row is not None and row.takes is foreign.Takes.NOTHING and word == f"--{stem}":
            return  # it asks for nothing
        if positive is None or positive.positional:
            raise self.schema.unknown(stem, f"--{stem}")
        if not positive.negatable:
            raise ArgumentError(f"{positive.flag} has no --no- form.", positive.name)
        if word != f"--{stem}":
            raise ArgumentError(f"--{stem} takes no value.", positive.name)
        self.written.put(positive, False, f"--{stem}")

    def _short(self, word: str) -> None:
        name, equals, text = word.partition("=")
        if name.startswith("-O") and (not equals or "{" in name or "." in name):
            self._compilation(word)
            return
        short = self.schema.short
        stem, _, dotted = name.partition(".")
        if stem not in short and stem in foreign.SHORT:
            self._foreign(foreign.SHORT[stem], text if equals else None, name)
            return
        if stem not in short:
            raise ArgumentError(
                f"{name} is not an argument.{values.near(name, short)} Long names have two dashes."
            )
        self._value(short[stem], dotted, text if equals else None, name)

    def _compilation(self, word: str) -> None:
        """-O 3, -O3, -O{"level": 3}, -O.use_inductor false"""
        argument, rest = self.schema.short["-O"], word[2:]
        if rest.startswith("."):
            dotted, equals, text = rest[1:].partition("=")
            self._value(argument, dotted, text if equals else None, f"-O.{dotted}")
        else:
            self._value(argument, "", rest or None, "-O")

    def _value(self, argument: Argument, dotted: str, text: str | None, place: str) -> None:
        """Read the value of `argument`: `text` after its equals sign, or the words that follow."""
        if dotted:
            if not argument.is_json:
                raise ArgumentError(f"{argument.flag} takes no keys: it is not a JSON object.", argument.name)
            text = self._next(argument, place) if text is None else text
            path = objects.key_path(argument, dotted)
            value = objects.key_value(argument, path, text, place)
            self.written.put_key(argument, dotted, value, argument.flag)
        elif argument.kind is Kind.BOOL:
            self.written.put(argument, self._bool(argument, text, place), place)
        elif argument.is_list:
            texts = self._several(argument, place) if text is None else [text]
            self.written.put(argument, read_list(argument, texts, place), place)
        elif text is None and argument.optional_value and not self._value_follows():
            self.written.put(argument, True, place)
        else:
            text = self._next(argument, place) if text is None else text
            self.written.put(argument, values.from_text(argument, text, place), place)

    def _bool(self, argument: Argument, text: str | None, place: str) -> bool:
        follows = self.words[-1].lower() if self.words else ""
        if argument.optional_value:
            if text is None and follows in ("true", "false"):
                text = self.words.pop()
            return True if text is None else bool(values.from_text(argument, text, place))
        if text is not None:
            instead = f" or --no-{argument.flag[2:]}" if argument.negatable else ""
            raise ArgumentError(
                f"{place}={text}: it takes no value. Write {argument.flag}{instead} alone.",
                argument.name,
            )
        if follows in ("true", "false"):
            raise ArgumentError(
                f"{place} {follows}: it takes no value. Write {argument.flag} alone, or leave it out.",
                argument.name,
            )
        return True

    def _value_follows(self) -> bool:
        return bool(self.words) and not is_flag(self.words[-1])

    def _next(self, argument: Argument, place: str) -> str:
        if not self._value_follows():
            after = f" but {self.words[-1]} follows" if self.words else " and the line ends"
            raise ArgumentError(
                f"{place} needs a value{after}. Write {place}=VALUE where it begins with a dash.",
                argument.name,
            )
        return self.words.pop()

    def _several(self, argument: Argument, place: str) -> list[str]:
        texts = [self._next(argument, place)]
        while not (argument.append or argument.json_array) and self._value_follows():
            texts.append(self.words.pop())
        return texts


def read_list(argument: Argument, texts: list[str], place: str) -> list[Any] | None:
    """A list from one or several words: its items, one JSON array, or items with commas between."""
    if len(texts) == 1 and not argument.secret:  # a secret is what it is
        (text,) = texts
        if text.lower() in argument.words:
            return None
        array = _json_array(argument, text, place)
        if array is not None:
            return [read_item(argument, item, place) for item in array]
    if argument.comma_list:
        texts = [part.strip() for text in texts for part in text.split(",")]
    return [values.from_text(argument, text, place) for text in texts]


def _json_array(argument: Argument, text: str, place: str) -> list[Any] | None:
    try:
        array = values.parse_json(text) if text.lstrip().startswith("[") else None
    except ValueError:
        array = None
    if array is None and argument.json_array:
        raise ArgumentError(
            f"{place} {text!r} is not a JSON array. Quote it as '[\"{text.strip('[]') or '*'}\"]'.",
            argument.name,
        )
    return array


def read_item(argument: Argument, item: object, place: str) -> Any:
    """An item that JSON or YAML has already given a type."""
    if argument.kind is Kind.STR and not isinstance(item, str):
        shown = "holds what" if argument.secret else repr(item)
        raise ArgumentError(f"{place} {shown} is not text. Put it in quotes.", argument.name)
    return values.from_yaml(argument, item, place)
