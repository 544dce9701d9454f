"""From the dataclasses of the document to structural OpenAPI: types, bounds, forms and descriptions."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from functools import lru_cache
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from slipway.args.openapi import ANYTHING, Node
from slipway.service.crd.rules import quoted
from slipway.service.fields import Form, Range, camel, key_of, most_of, rest_of, types_of

LONGEST_TEXT = 4096
LONGEST_VALUE = 16384
"""Of a map's values, annotations among them, which no rule reads."""
MOST_ITEMS = 64
RULES = "x-kubernetes-validations"
OF_TEXT = "type(self) != string || "
"""Before a rule about text, where numbers stand too. The API server reckons such a text as long as a whole
request: these few rules take most of the cost that it allows, of which half is left."""


def object_node(
    cls: type, *, given: Mapping[str, Node] | None = None, without: frozenset[str] = frozenset()
) -> Node:
    """The schema of the dataclass `cls`: `given` are fields described elsewhere, `without` no part of it."""
    types, texts = types_of(cls), field_texts(cls)
    rest, _ = rest_of(cls) or ("", None)
    properties: Node = {}
    required = []
    for field in fields(cls):
        if field.name in (*without, rest):
            continue
        node = (given or {}).get(field.name) or node_of(types[field.name])
        text = _described(texts.get(field.name) or node.get("description", ""), field)
        properties[camel(field.name)] = ({"description": text} if text else {}) | {
            key: value for key, value in node.items() if key != "description"
        }
        if field.default is MISSING and field.default_factory is MISSING:
            required.append(camel(field.name))
    described = {"description": text} if (text := class_text(cls)) else {}
    return (
        {"type": "object"}
        | described
        | ({"required": required} if required else {})
        | {"properties": properties}
        | ({"x-kubernetes-preserve-unknown-fields": True} if rest else {})
    )


def node_of(wanted: Any) -> Node:
    """The schema of one annotated type."""
    origin, arguments = get_origin(wanted), get_args(wanted)
    if origin is Annotated:
        return _constrained(arguments[0], arguments[1:])
    if origin in (Union, UnionType):
        return _either([choice for choice in arguments if choice is not NoneType])
    if origin is Literal:
        return {"type": "string", "enum": list(arguments)}
    if origin is tuple:
        return _list(arguments[0])
    if origin is not None and issubclass(origin, Mapping):
        return _mapping(arguments[1])
    if isinstance(wanted, type) and is_dataclass(wanted):
        return object_node(wanted)
    plain: dict[Any, Node] = {
        str: {"type": "string", "maxLength": LONGEST_TEXT},
        int: {"type": "integer", "format": "int64"},
        float: {"type": "number"},
        bool: {"type": "boolean"},
        object: dict(ANYTHING),
    }
    return dict(plain[wanted])


def _constrained(wanted: Any, rules: tuple[object, ...]) -> Node:
    node = node_of(wanted)
    for rule in rules:
        match rule:
            case Form(words=words, numbers=numbers, longest=longest):
                node |= {"maxLength": longest} if longest else {}
                if rule.deep:
                    node |= {"description": _sentence(words), "pattern": anchored(rule)}
                    continue
                guard = OF_TEXT if numbers else ""
                node = _int_or_string() if numbers else node
                node |= {"description": _sentence(words), RULES: [_in_words(rule, guard)]}
            case Range(least, most):
                node |= {"minimum": least, "maximum": most}
                if most < 2**31:
                    node["format"] = "int32"
    return node


def _in_words(form: Form, guard: str) -> Node:
    """As a rule and not as a pattern: a pattern's message is the pattern, this one's are the words."""
    complaint = quoted(f'" is not {form.words}')
    return {
        "rule": f"{guard}self.matches(r'{anchored(form)}')",
        "message": f"it is not {form.words}",
        "messageExpression": f"'\"' + self + {complaint}",
    }


def _either(choices: list[Any]) -> Node:
    """One type, or several side by side: numbers and texts, or texts and objects, of which no schema can tell
    anything and which no rule can read."""
    if len(choices) == 1:
        return node_of(choices[0])
    if any(map(is_dataclass, choices)):
        return dict(ANYTHING)
    both = _int_or_string()
    for choice in choices:
        node = node_of(choice)
        for rule in node.get(RULES, ()):
            rule["rule"] = OF_TEXT + rule["rule"]
        both |= {key: value for key, value in node.items() if key not in ("type", "format")}
    return both


def _int_or_string() -> Node:
    return {"x-kubernetes-int-or-string": True, "anyOf": [{"type": "integer"}, {"type": "string"}]}


def _list(item: Any) -> Node:
    node: Node = {"type": "array", "maxItems": most_of(item, MOST_ITEMS)}
    if key := key_of(item):
        node |= {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": [camel(key)]}
    return node | {"items": node_of(item)}


def _mapping(value: Any) -> Node:
    if value is object:
        return {"type": "object"} | ANYTHING
    values = node_of(value)
    if values.get("maxLength") == LONGEST_TEXT:
        values["maxLength"] = LONGEST_VALUE
    return {"type": "object", "maxProperties": MOST_ITEMS, "additionalProperties": values}


def anchored(form: Form) -> str:
    """The form's pattern for the whole text, in the syntax that Python and RE2 share."""
    if "(?" in form.pattern.replace("(?:", ""):
        raise ValueError(f"{form.pattern} looks around, which the API server's RE2 cannot. Spell it out.")
    return f"^({form.pattern})$"


def at(root: Node, place: str) -> Node:
    """The node at a place such as `spec.files[].mountPath`; the root where the place is empty."""
    node = root
    for step in filter(None, place.split(".")):
        node = node["properties"][step.removesuffix("[]")]
        if step.endswith("[]"):
            node = node["items"]
    return node


def class_text(cls: type) -> str:
    """The docstring as one line; nothing where the dataclass made its own."""
    text = cls.__doc__ or ""
    return "" if text.startswith(f"{cls.__name__}(") else " ".join(text.split())


@lru_cache
def field_texts(cls: type) -> dict[str, str]:
    """Field → the string that stands after its declaration, as one line."""
    (body,) = ast.parse(textwrap.dedent(inspect.getsource(cls))).body
    assert isinstance(body, ast.ClassDef)
    found = {}
    for statement, following in zip(body.body, body.body[1:], strict=False):
        match statement, following:
            case (
                ast.AnnAssign(target=ast.Name(id=name)),
                ast.Expr(value=ast.Constant(value=str(text))),
            ):
                found[name] = " ".join(text.split())
    return found


def _described(text: str, field: Field[Any]) -> str:
    """The text, with the default that the operator takes where it says anything."""
    value = field.default
    if value is MISSING or value is None or value == ():
        return text
    shown = str(value).lower() if isinstance(value, bool) else value
    return f"{text} Default: {shown}.".strip()


def _sentence(words: str) -> str:
    return words[0].upper() + words[1:] + "."
