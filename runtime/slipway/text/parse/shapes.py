"""How one call is written: a shape reads it from its first character to its last."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from slipway.text.parse.json_text import kept_value, read_decoded_string, read_value
from slipway.text.parse.python_text import IDENTIFIER, read_keywords
from slipway.text.parse.reader import Broken, Emit, Reader, Reading

Tools = Mapping[str, Mapping[str, Any]]
"""The JSON schemas of the arguments, by the tools' names."""


class Call(Protocol):
    """What is told of the call that is being read."""

    @property
    def tools(self) -> Tools: ...
    def begin(self, name: str, id: str | None = None) -> None: ...
    def arguments(self, text: str) -> None:
        """More of its arguments; kept until it has begun."""


Shape = Callable[[Reader, Call], Reading[None]]


@dataclass(frozen=True, slots=True)
class JsonCall:
    """`{"name": "f", "arguments": {…}}`, its members in any order and others among them.

    The arguments may be a string that holds the JSON, or null.
    """

    name: tuple[str, ...] = ("name",)
    arguments: tuple[str, ...] = ("arguments", "parameters")
    id: tuple[str, ...] = ("id",)
    needs_arguments: bool = False
    """An object without them is no call, nor is the declaration of a tool, with a description or a schema."""
    whole: bool = False
    """Nothing is told of a call before its end, so a description behind the arguments counts, too."""

    def __call__(self, reader: Reader, call: Call) -> Reading[None]:
        yield from reader.expect("{")
        found: dict[str, str] = {}
        told = begun = False
        while True:
            yield from reader.skip_space()
            key = yield from kept_value(reader)
            yield from reader.skip_space()
            yield from reader.expect(":")
            yield from reader.skip_space()
            if key in self.arguments and not told:
                told = True
                held = yield from self._read_held(reader, call, call.tools.get(found.get("name", "")))
                if "name" in found:
                    begun = True
                    call.begin(found["name"], found.get("id"))
                if not held:
                    yield from read_value(reader, call.arguments)
            else:
                if self.needs_arguments and not self._may_stand(key, told):
                    raise Broken(f"a call has no {key!r}")
                value = yield from kept_value(reader)
                if isinstance(value, str) and value and isinstance(key, str):
                    found |= {kind: value for kind in ("name", "id") if key in getattr(self, kind)}
            yield from reader.skip_space()
            if (yield from reader.take("}")):
                break
            yield from reader.expect(",")
        if "name" not in found or (self.needs_arguments and not told):
            raise Broken("the call has no name, or no arguments")
        if not begun:
            call.begin(found["name"], found.get("id"))
        if not told:
            call.arguments("{}")

    def _read_held(self, reader: Reader, call: Call, own: Mapping[str, Any] | None) -> Reading[bool]:
        """Read arguments that show only at their end whether they are some. Whether these were such."""
        if (yield from reader.peek()) != "{":
            yield from read_arguments(reader, call)
            return True
        if not self.needs_arguments or not (yield from _begins_schema(reader)):
            return False
        parts: list[str] = []
        yield from read_value(reader, parts.append)
        if declares("".join(parts), own):
            raise Broken("this declares a tool")
        call.arguments("".join(parts))
        return True

    def _may_stand(self, key: Any, told: bool) -> bool:
        """Whether a call whose arguments have been told, or not yet, may have this key."""
        if told:
            return key != "description" or not self.whole
        return key in (*self.name, *self.id, *_OF_THE_API)


_OF_THE_API = ("type", "index")
"""Keys of a call as the chat API has it, which say nothing here."""
_SCHEMA_BEGINS = ('"type"', '"properties"', '"required"', '"$schema"', '"additionalProperties"', '"title"')


def _begins_schema(reader: Reader) -> Reading[bool]:
    """Whether an object is next that may be the schema of a tool's arguments. Nothing of it is read."""
    place = reader.at
    begins = yield from reader.take("{")
    if begins:
        yield from reader.skip_space()
        begins = (yield from reader.take_one(_SCHEMA_BEGINS)) is not None
    reader.at = place
    return begins


def declares(written: str, own: Mapping[str, Any] | None) -> bool:
    """Whether arguments are the JSON schema of a tool's, and not those of one with arguments called so.

    own  the tool's schema
    """
    try:
        value = json.loads(written)
    except (ValueError, RecursionError):
        return False
    if not isinstance(value, dict) or value.get("type") != "object":
        return False
    properties = (own or {}).get("properties")
    if isinstance(properties, Mapping) and "type" in properties:
        return False
    return len(value) == 1 or isinstance(value.get("properties"), dict)


def read_arguments(reader: Reader, call: Call) -> Reading[None]:
    """An object as it comes; a string that holds one, when it is whole; null for one without members."""
    first = yield from reader.peek()
    if first == '"':
        parts: list[str] = []

        def keep(text: str) -> None:
            if parts or (text := text.lstrip()):
                parts.append(text)
            if parts and parts[0][0] != "{":
                raise Broken("arguments are an object")

        yield from read_decoded_string(reader, keep)
        text = "".join(parts).strip() or "{}"
        if not _is_object(text):
            raise Broken("arguments are an object")
        call.arguments(text)
    elif first == "{":
        yield from read_value(reader, call.arguments)
    elif (yield from reader.take("null")):
        call.arguments("{}")
    else:
        raise Broken("arguments are an object")


def _is_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False


@dataclass(frozen=True, slots=True)
class NamedJson:
    """`NAME separators {…}`: the arguments stand behind the name."""

    separators: tuple[str, ...] = ()
    """What may stand between them, in order; each may be missing."""
    fence: str = ""
    """What stands behind the arguments, then."""
    with_id: bool = False
    """The name is written `functions.NAME:INDEX`, which is the call's id."""
    before_id: str = ""
    """What stands behind the name and before an id."""

    def __call__(self, reader: Reader, call: Call) -> Reading[None]:
        written = yield from reader.match(_NAME)
        name = written.removeprefix("functions.").partition(":")[0] if self.with_id else written
        call_id = written if self.with_id else None
        if self.before_id and (yield from reader.take(self.before_id)):
            call_id = yield from reader.match(_NAME)
        for separator in self.separators:
            yield from reader.skip_space()
            yield from reader.take(separator)
        yield from reader.skip_space()
        if not name or (yield from reader.peek()) != "{":
            raise Broken("a name and an object make a call")
        call.begin(name, call_id or None)
        yield from read_value(reader, call.arguments)
        if self.fence:
            yield from reader.skip_space()
            yield from reader.take(self.fence)


_NAME = re.compile(r"[^\s{}()<>\[\]\"`]*")


def python_call(reader: Reader, call: Call) -> Reading[None]:
    """`name(key="value", …)`."""
    name = yield from reader.match(IDENTIFIER)
    if not name or (yield from reader.peek()) != "(":
        raise Broken("no function is called")
    call.begin(name)
    yield from read_keywords(reader, call.arguments)


@dataclass(frozen=True, slots=True)
class TaggedCall:
    """A name, then each argument between tags: `NAME <key>k</key> <value>v</value> …`.

    opens    before the name
    closes   behind it; "" where it ends with its line, its first argument or the call
    key      before and behind an argument's name
    values   before a value, and what that says of it: "string", "json", or "" for what its schema says
    value    behind a value
    end      behind all arguments
    trimmed  line ends directly round a value are the format's
    """

    end: str
    key: tuple[str, str]
    value: str
    opens: str = ""
    closes: str = ""
    values: tuple[tuple[str, str], ...] = (("", ""),)
    trimmed: bool = False

    def __call__(self, reader: Reader, call: Call) -> Reading[None]:
        yield from reader.expect(self.opens)
        name = yield from self._name(reader)
        begun = False  # the tag alone may be a word in a text about calls
        properties = (call.tools.get(name) or {}).get("properties")
        known = properties if isinstance(properties, Mapping) else {}
        call.arguments("{")
        between = ""
        while True:
            yield from reader.skip_space()
            if not (yield from reader.take(self.key[0])):
                break
            if not begun:
                begun = True
                call.begin(name)
            parts: list[str] = []
            if (yield from reader.until((self.key[1],), parts.append)) is None:
                raise Broken("an argument's name does not end")
            argument = "".join(parts).strip()
            call.arguments(f"{between}{json.dumps(argument, ensure_ascii=False)}: ")
            between = ", "
            yield from self._value(reader, call, known.get(argument))
        yield from reader.expect(self.end)
        if not begun:
            call.begin(name)
        call.arguments("}")

    def _name(self, reader: Reader) -> Reading[str]:
        parts: list[str] = []
        if self.closes:
            found = yield from reader.until((self.closes,), parts.append)
        else:
            found = yield from reader.before((self.key[0], self.end, "\n"), parts.append)
        name = "".join(parts).strip()
        if found is None or not re.fullmatch(r"[^\s<>{}]+", name):
            raise Broken("the call has no name")
        return name

    def _value(self, reader: Reader, call: Call, schema: Any) -> Reading[None]:
        """A string as it arrives, any other value when it is whole."""
        kinds = dict(self.values)
        if "" not in kinds:
            yield from reader.skip_space()
        opened = yield from reader.take_one(tuple(filter(None, kinds)))
        if (opened or "") not in kinds:
            raise Broken("an argument has no value")
        kind = kinds[opened or ""]
        if self.trimmed:
            yield from reader.take("\n")
        as_it_comes = kind == "string" or (not kind and types_of(schema) == {"string"})
        parts = _Lines(call.arguments if as_it_comes else None, held=self.trimmed)
        if (yield from reader.until((self.value,), parts.take)) is None:
            raise Broken("an argument's value does not end")
        if parts.emit is None:
            call.arguments(as_json("".join(parts.kept), {} if kind else schema))
        else:
            call.arguments('"' if parts.begun else '""')


class _Lines:
    """A value that arrives: kept, or emitted as a JSON string; without a line end behind it, if `held`."""

    def __init__(self, emit: Emit | None, held: bool) -> None:
        self.emit = emit
        self.kept: list[str] = []
        self.begun = False
        self._held = held
        self._line_end = ""

    def take(self, text: str) -> None:
        if not text:
            return
        text = self._line_end + text
        self._line_end = ""
        if self._held and text.endswith("\n"):
            text, self._line_end = text[:-1], "\n"
        if self.emit is None:
            self.kept.append(text)
        elif text:
            self.emit(("" if self.begun else '"') + json.dumps(text, ensure_ascii=False)[1:-1])
            self.begun = True


def as_json(written: str, schema: Any) -> str:
    """A value in plain text, by the types of its schema; where that says none, JSON if it is some."""
    types = types_of(schema)
    as_string = json.dumps(written, ensure_ascii=False)
    if types == {"string"}:
        return as_string
    written = _WORDS.get(written.strip(), written.strip())
    try:
        value = json.loads(written, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        return as_string
    return as_string if "string" in types and not types & _kinds(value) else written


_WORDS = {"True": "true", "False": "false", "None": "null"}


def _no_constant(name: str) -> Any:
    """NaN and Infinity are no JSON."""
    raise ValueError(name)


def types_of(schema: Any) -> set[str]:
    """The types that a schema names, also as alternatives; none where it leaves them open."""
    if not isinstance(schema, Mapping):
        return set()
    named = schema.get("type")
    found = {one for one in (named if isinstance(named, list) else [named]) if isinstance(one, str)}
    if not found and isinstance(schema.get("enum"), list):
        found.update(*map(_kinds, schema["enum"]))
    for keyword in ("anyOf", "oneOf"):
        alternatives = schema.get(keyword)
        for each in alternatives if isinstance(alternatives, list) else ():
            found |= types_of(each)
    return found


def _kinds(value: Any) -> set[str]:
    """The types that a value is of."""
    match value:
        case None:
            return {"null"}
        case bool():
            return {"boolean"}
        case int():
            return {"integer", "number"}
        case float():
            return {"number"}
        case str():
            return {"string"}
        case list():
            return {"array"}
    return {"object"}
