"""`spec.engine` of the CRD: an OpenAPI v3 structural schema with the rules in CEL.

It has no defaults: what is not written stays the runtime's to decide, in every later version too.
"""

from __future__ import annotations

from typing import Any

from slipway.args.declare import LARGEST_INT32, LARGEST_INT64, Argument, Disposition, Key, Kind
from slipway.args.rules import RULES
from slipway.args.schema import ARGUMENTS, CAMEL, help_text

Node = dict[str, Any]

MOST_ITEMS = 64
LONGEST_NAME = 128
LONGEST_TEXT = 4096
LONGEST_TEMPLATE = 65536
HUMAN_PATTERN = r"[0-9]+|[0-9]+(\.[0-9]+)?[kmg]|[0-9]+[KMG]"
NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._-]*$"
URL_PATTERN = r"^([A-Za-z][A-Za-z0-9+.-]*://[^\s/]\S*)?$"
ANYTHING = {"x-kubernetes-preserve-unknown-fields": True}


def engine_schema() -> Node:
    """The schema of `spec.engine`."""
    return {
        "type": "object",
        "description": "Arguments of the runtime, as of `slipway serve`, in camelCase.",
        "properties": {field: _property(argument) for field, argument in CAMEL.items()},
        "x-kubernetes-validations": [
            _rule(ARGUMENTS[rule.argument].camel, rule.cel, rule.message) for rule in RULES if rule.cel
        ]
        + [
            _rule(field, f"!has(self.{field})", f"{field}: {argument.reason}")
            for field, argument in CAMEL.items()
            if argument.disposition is Disposition.REFUSE
        ],
    }


def _rule(field: str, cel: str, message: str) -> Node:
    """`field` is the one that the API server names where the rule is broken."""
    return {"rule": cel, "message": message, "fieldPath": f".{field}"}


def _property(argument: Argument) -> Node:
    described = {"description": " ".join(help_text(argument).split("\n\n")[0].split())}
    if not argument.is_list:
        return described | _value(argument)
    items = _object(argument) if argument.kind is Kind.JSON else _value(argument)
    if argument.item_pair:
        items["required"] = list(argument.item_pair)
    return described | {"type": "array", "maxItems": MOST_ITEMS, "items": items}


def _value(argument: Argument) -> Node:
    match argument.kind:
        case Kind.BOOL:
            return {"type": "boolean"}
        case Kind.INT:
            return _integer(argument)
        case Kind.FLOAT:
            return {"type": "number"} | _bounds(argument)
        case Kind.HUMAN_INT:
            return _human_int(argument)
        case Kind.JSON:
            return _object(argument)
        case Kind.STR_OR_JSON:
            return dict(ANYTHING)
        case _:
            return _text(argument)


def _integer(argument: Argument) -> Node:
    if argument.choices:
        return {"type": "integer", "enum": list(argument.choices)}
    wide = (argument.maximum or LARGEST_INT32) > LARGEST_INT32
    return {"type": "integer", "format": "int64" if wide else "int32"} | _bounds(argument)


def _human_int(argument: Argument) -> Node:
    words = [word for word in argument.words if word != "none" and not word.startswith("-")]
    patterns = [HUMAN_PATTERN, *(_any_case(word) for word in words)]
    return {
        "x-kubernetes-int-or-string": True,
        "anyOf": [{"type": "integer"}, {"type": "string"}],
        "minimum": -1 if argument.words else argument.minimum,
        "maxLength": 32,
        "pattern": f"^({'|'.join(patterns)}{'|-1' if argument.words else ''})$",
        "not": {"enum": [0]},
    }


def _any_case(word: str) -> str:
    """auto → [aA][uU][tT][oO]"""
    return "".join(f"[{letter}{letter.upper()}]" for letter in word)


def _text(argument: Argument) -> Node:
    allowed = [choice for choice in argument.choices if choice not in argument.refused]
    if "*" in argument.refused:
        allowed = [value for value in (argument.default, *argument.words.values()) if value]
    if argument.open_choices:
        return {"type": "string", "maxLength": LONGEST_NAME, "pattern": NAME_PATTERN}
    if allowed:
        return {"type": "string", "enum": allowed}
    if "*" in argument.refused:
        return {"type": "string", "maxLength": 0}
    # An empty text unsets an argument that has no value by default, and means nothing to any other.
    least = {} if argument.nullable and not argument.is_list else {"minLength": 1}
    if argument.is_list or argument.pattern:
        limited = {"type": "string", "maxLength": LONGEST_NAME} | least
        return limited | ({"pattern": f"^{argument.pattern}$"} if argument.pattern else {})
    longest = LONGEST_TEMPLATE if argument.name == "chat_template" else LONGEST_TEXT
    form = {"pattern": URL_PATTERN} if argument.kind is Kind.URL else {}
    return {"type": "string", "maxLength": longest} | least | form


def _bounds(argument: Argument) -> Node:
    """OpenAPI v3.0 writes an exclusive bound as a flag beside the bound."""
    bounds: Node = {}
    # Bounds are doubles to the API server: ±2⁶³ are none that an int64 could break, and 2⁶³ - 1 would round
    # up, wrap, and refuse every number.
    if argument.minimum is not None and argument.minimum > -LARGEST_INT64:
        bounds["minimum"] = argument.minimum
    if argument.above is not None:
        bounds |= {"minimum": argument.above, "exclusiveMinimum": True}
    if argument.maximum is not None and argument.maximum < LARGEST_INT64:
        bounds["maximum"] = argument.maximum
    return bounds


def _object(argument: Argument) -> Node:
    schema: Node = {"type": "object"}
    if argument.keys:
        schema["properties"] = {name: _key(key) for name, key in argument.keys.items()}
    if argument.open_keys:
        schema |= ANYTHING
    return schema


def _key(key: Key) -> Node:
    schema = _key_type(key.type)
    if key.choices:
        schema = {"type": "string", "enum": list(key.choices)}
    if key.minimum is not None:
        schema["minimum"] = key.minimum
    if key.maximum is not None:
        schema["maximum"] = key.maximum
    if key.nullable:
        schema["nullable"] = True
    return schema


def _key_type(name: str) -> Node:
    if name.startswith("list"):
        inner = name.removeprefix("list").strip("[]")
        items = _key_type(inner) if inner else dict(ANYTHING)
        return {"type": "array", "maxItems": 4 * MOST_ITEMS, "items": items}
    types: dict[str, Node] = {
        "bool": {"type": "boolean"},
        "int": {"type": "integer", "format": "int64"},
        "float": {"type": "number"},
        "str": {"type": "string", "maxLength": LONGEST_TEXT},
        "object": {"type": "object"} | ANYTHING,
    }
    return dict(types[name])
