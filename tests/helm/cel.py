"""CEL as far as the chart's admission policies use it, so that tests without a cluster can ask them.

What the API server itself makes of the same expressions is for `e2e/test_admission.py`. An expression beyond
this part of the language, and a value of another type than it works on, end in an error, as there.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

_TOKEN = re.compile(
    r"""\s*(?:(?P<text>'(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*")|(?P<number>\d+)|(?P<name>[A-Za-z_]\w*)"""
    r"""|(?P<sign>&&|\|\||[=!<>]=|\.\?|[-+!<>?:.,()\[\]{}]))"""
)
_LEVELS = (("||",), ("&&",), ("==", "!=", "<", ">", "<=", ">=", "in"), ("+", "-"))
"""Operators of two operands, from those that bind least."""
_TYPES = {"string": str, "list": list, "map": dict, "bool": bool, "int": int}
_MACROS = ("all", "exists", "filter", "map")

Scope = Mapping[str, Any]
Meaning = Callable[[Scope], Any]


class CelError(Exception):
    """The expression is none, or cannot be evaluated: a policy with failurePolicy Fail refuses the object."""


@dataclass(frozen=True, slots=True)
class Optional:
    """What `.?` yields: a list of the one value, or of none."""

    values: tuple[Any, ...] = ()


def evaluate(expression: str, scope: Scope) -> Any:
    parser = _Parser(expression)
    meaning = parser.whole()
    return meaning(scope)


class _Parser:
    def __init__(self, text: str) -> None:
        self._tokens = [*_tokens(text), ("end", "")]
        self._place = 0

    def whole(self) -> Meaning:
        meaning = self._choice()
        self._take("")
        return meaning

    def _next(self) -> tuple[str, str]:
        return self._tokens[self._place]

    def _take(self, *signs: str) -> str:
        kind, token = self._next()
        if kind == "text" or token not in signs:
            raise CelError(f"{token!r} stands where one of {signs} belongs.")
        self._place += 1
        return token

    def _try(self, *signs: str) -> str | None:
        kind, token = self._next()
        return self._take(*signs) if kind not in ("text", "end") and token in signs else None

    def _choice(self) -> Meaning:
        condition = self._level(0)
        if not self._try("?"):
            return condition
        yes = self._choice()
        self._take(":")
        no = self._choice()
        return lambda scope: yes(scope) if _truth(condition(scope)) else no(scope)

    def _level(self, level: int) -> Meaning:
        if level == len(_LEVELS):
            return self._unary()
        left = self._level(level + 1)
        while sign := self._try(*_LEVELS[level]):
            left = _binary(sign, left, self._level(level + 1))
        return left

    def _unary(self) -> Meaning:
        if self._try("!"):
            operand = self._unary()
            return lambda scope: not _truth(operand(scope))
        return self._selected(self._primary())

    def _selected(self, value: Meaning) -> Meaning:
        """The value with the fields, calls and indices behind it."""
        while sign := self._try(".", ".?", "["):
            if sign == "[":
                value = _index(value, self._choice())
                self._take("]")
                continue
            kind, name = self._next()
            assert kind == "name", name
            self._place += 1
            if sign == ".?":
                value = _optional_field(value, name)
            elif self._try("("):
                value = self._call(value, name)
            else:
                value = _field(value, name)
        return value

    def _call(self, value: Meaning, name: str) -> Meaning:
        if name in _MACROS:
            _, variable = self._next()
            self._place += 1
            self._take(",")
            body = self._choice()
            self._take(")")
            return lambda scope: _macro(name, value(scope), lambda item: body({**scope, variable: item}))
        arguments = self._arguments(")")
        return lambda scope: _method(name, value(scope), [one(scope) for one in arguments])

    def _arguments(self, end: str) -> list[Meaning]:
        found: list[Meaning] = []
        while not self._try(end):
            if found:
                self._take(",")
            found.append(self._choice())
        return found

    def _primary(self) -> Meaning:
        kind, token = self._next()
        self._place += 1
        match kind, token:
            case "text", _:
                text = re.sub(r"\\(.)", r"\1", token[1:-1])
                return lambda scope: text
            case "number", _:
                number = int(token)
                return lambda scope: number
            case "name", "true" | "false":
                return lambda scope: token == "true"
            case "name", "has":
                self._take("(")
                there = self._present()
                self._take(")")
                return there
            case "name", "size" | "type" if self._try("("):
                (argument,) = self._arguments(")")
                return lambda scope: _function(token, argument(scope))
            case "name", _:
                return lambda scope: scope[token] if token in scope else _TYPES[token]
            case "sign", "(":
                inner = self._choice()
                self._take(")")
                return inner
            case "sign", "[":
                items = self._arguments("]")
                return lambda scope: [item(scope) for item in items]
            case "sign", "{":
                return self._map()
        raise CelError(f"{token!r} begins no expression.")

    def _present(self) -> Meaning:
        """The argument of has(): a chain of fields, of which the last may be missing."""
        _, token = self._next()
        self._place += 1
        steps: list[str] = []
        while self._try("."):
            steps.append(self._next()[1])
            self._place += 1
        *fields, last = steps

        def there(scope: Scope) -> bool:
            holder = scope[token]
            for step in fields:
                holder = holder[step]
            return last in holder

        return there

    def _map(self) -> Meaning:
        pairs: list[tuple[Meaning, Meaning]] = []
        while not self._try("}"):
            if pairs:
                self._take(",")
            key = self._choice()
            self._take(":")
            pairs.append((key, self._choice()))
        return lambda scope: {key(scope): item(scope) for key, item in pairs}


def _tokens(text: str) -> Iterator[tuple[str, str]]:
    place = 0
    while text[place:].strip():
        match = _TOKEN.match(text, place)
        if match is None or match.lastgroup is None:
            raise CelError(f"{text[place : place + 20]!r} is no word of this part of CEL.")
        yield match.lastgroup, match[match.lastgroup]
        place = match.end()


def _truth(value: object) -> bool:
    if not isinstance(value, bool):
        raise CelError(f"{value!r} is neither true nor false.")
    return value


def _binary(sign: str, left: Meaning, right: Meaning) -> Meaning:
    match sign:
        case "||":
            return lambda scope: _truth(left(scope)) or _truth(right(scope))
        case "&&":
            return lambda scope: _truth(left(scope)) and _truth(right(scope))
        case "==":
            return lambda scope: _same(left(scope), right(scope))
        case "!=":
            return lambda scope: not _same(left(scope), right(scope))
        case "in":
            return lambda scope: _within(left(scope), right(scope))
        case "+":
            return lambda scope: _alike(left(scope), right(scope), str, list, int)[0] + right(scope)
        case "-":
            return lambda scope: _alike(left(scope), right(scope), int)[0] - right(scope)
        case ">":
            return lambda scope: bool(_alike(left(scope), right(scope), int)[0] > right(scope))
    raise CelError(f"{sign} is not of this part of CEL.")


def _same(left: Any, right: Any) -> bool:
    return type(left) is type(right) and bool(left == right)


def _within(item: Any, values: Any) -> bool:
    if not isinstance(values, list | dict):
        raise CelError(f"{values!r} has no members.")
    return any(_same(item, one) for one in values)


def _alike(left: Any, right: Any, *types: type) -> tuple[Any, Any]:
    if type(left) is not type(right) or type(left) not in types:
        raise CelError(f"{left!r} and {right!r} do not go together.")
    return left, right


def _field(value: Meaning, name: str) -> Meaning:
    def found(scope: Scope) -> Any:
        holder = value(scope)
        if not isinstance(holder, Mapping) or name not in holder:
            raise CelError(f"no such key: {name}")
        return holder[name]

    return found


def _optional_field(value: Meaning, name: str) -> Meaning:
    def found(scope: Scope) -> Optional:
        holder = value(scope)
        values = holder.values if isinstance(holder, Optional) else (holder,)
        if not all(isinstance(one, Mapping) for one in values):
            raise CelError(f"{values!r} has no fields.")
        return Optional(tuple(one[name] for one in values if name in one))

    return found


def _index(value: Meaning, place: Meaning) -> Meaning:
    def found(scope: Scope) -> Any:
        try:
            return value(scope)[place(scope)]
        except (LookupError, TypeError) as error:
            raise CelError(str(error)) from None

    return found


def _macro(name: str, values: Any, body: Callable[[Any], Any]) -> Any:
    if not isinstance(values, list | dict):
        raise CelError(f"{name} of {values!r}, which is no list and no map.")
    match name:
        case "all":
            return all(_truth(body(one)) for one in values)
        case "exists":
            return any(_truth(body(one)) for one in values)
        case "filter":
            return [one for one in values if _truth(body(one))]
    return [body(one) for one in values]


def _function(name: str, value: Any) -> Any:
    if name == "type":
        return type(value)
    if not isinstance(value, str | list | dict):
        raise CelError(f"{value!r} has no size.")
    return len(value)


def _method(name: str, value: Any, arguments: list[Any]) -> Any:
    match name, value, arguments:
        case "orValue", Optional(values), [other]:
            return values[0] if values else other
        case "hasValue", Optional(values), []:
            return bool(values)
        case "value", Optional((only,)), []:
            return only
        case "startsWith", str(), [str(start)]:
            return value.startswith(start)
        case "endsWith", str(), [str(end)]:
            return value.endswith(end)
        case "contains", str(), [str(part)]:
            return part in value
        case "matches", str(), [str(pattern)]:
            return re.search(pattern, value) is not None
        case "split", str(), [str(separator)]:
            return value.split(separator)
        case "substring", str(), [int(first), int(last)] if 0 <= first <= last <= len(value):
            return value[first:last]
        case "join", list(), [str(separator)] if all(isinstance(one, str) for one in value):
            return separator.join(value)
    raise CelError(f"there is no {name} of {value!r} with {arguments!r}.")
