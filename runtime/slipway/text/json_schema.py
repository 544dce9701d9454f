"""JSON schemas in the form that llguidance compiles, with the meaning that they had or a narrower one.

Whatever it does not implement, and nothing here can say otherwise, it refuses by name; so what a grammar
accepts is valid by the schema. Keywords: JSON Schema drafts 7 and 2020-12, and what OpenAPI 3.0 says in
other words.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from slipway.text.errors import GrammarError
from slipway.text.number_bounds import check_constants, check_multiples, hold_bounds
from slipway.text.object_members import Members, check_sizes
from slipway.text.object_names import names_of, rust_pattern
from slipway.text.schema_references import MAX_DEPTH, ONLY_LISTS, definition, resolved, with_schemas

Json = Any
Schema = dict[str, Any]
Set = TypeVar("Set", set[str], frozenset[str])

MAX_NESTING = 200
"""Levels of the JSON, of which a schema within a schema takes two at most; the rest is values."""
MAX_BRANCHES = 256
MAX_WORK = 50_000
"""Comparisons of branches, and listed values looked at by their length, in one schema."""
MAX_LOOKS = 200_000
"""At schemas, to see whether their values end."""
WORK_CHARACTERS = 16
"""Of a value: comparing more of them is more work."""

FORMATS = frozenset(
    ("date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri")
)
"""That llguidance holds output to. Others are annotations, as the specification has it."""

_ANNOTATIONS = frozenset(
    (
        *("$anchor", "$comment", "$defs", "$id", "$schema", "default", "definitions", "description"),
        *("examples", "readOnly", "title", "writeOnly"),
    )
)
_COUNTS = frozenset(
    (
        *("maxContains", "maxItems", "maxLength", "maxProperties"),
        *("minContains", "minItems", "minLength", "minProperties"),
    )
)
_SAY_NOTHING: dict[str, Callable[[Schema, Json], bool]] = {
    "format": lambda schema, value: isinstance(value, str) and value not in FORMATS,
    "uniqueItems": lambda schema, value: value is False,
    "not": lambda schema, value: value is False,
    "propertyNames": lambda schema, value: value in (True, {}, {"type": "string"}),
    "unevaluatedItems": lambda schema, value: value in (True, {}),
    "unevaluatedProperties": lambda schema, value: value in (True, {}),
    "dependencies": lambda schema, value: value == {},
    "dependentRequired": lambda schema, value: value == {},
    "dependentSchemas": lambda schema, value: value == {},
    "minContains": lambda schema, value: "contains" not in schema,
    "maxContains": lambda schema, value: "contains" not in schema,
    "then": lambda schema, value: "if" not in schema,
    "else": lambda schema, value: "if" not in schema,
    "if": lambda schema, value: "then" not in schema and "else" not in schema,
    "x-guidance": lambda schema, value: True,  # llguidance's own switches are the server's
}
"""Keywords → whether one may be left out of its schema, which has the same instances then."""


def prepared(schema: Json, *, additional_properties: bool = True) -> Json:
    """The schema as llguidance shall see it.

    additional_properties  where false, objects that say nothing of them have no others than they list
    Raises GrammarError.
    """
    layer = [schema] if isinstance(schema, dict | list) else []
    for _ in range(MAX_NESTING):
        within = (one.values() if isinstance(one, dict) else one for one in layer)
        layer = [each for several in within for each in several if isinstance(each, dict | list)]
        if not layer:
            return _Preparing(resolved(schema), additional_properties).whole()
    raise GrammarError(f"the schema's JSON nests more than {MAX_NESTING} levels deep")


class _Preparing:
    def __init__(self, root: Json, additional_properties: bool) -> None:
        self._root = root
        self._additional_properties = additional_properties
        self._work = 0
        self._multiples: list[Schema] = []
        """Schemas with `multipleOf`."""
        self._rounded: list[Schema] = []
        """Schemas whose bounds brought them one."""
        self._combines = False
        """Two schemas may hold one value."""
        declared = root if isinstance(root, dict) else {}
        self._ref_stands_alone = "draft-0" in str(declared.get("$schema"))
        """Up to draft 7 nothing beside `$ref` counts."""

    def whole(self) -> Json:
        found = self.schema(self._root, 0)
        if self._combines and self._multiples:
            for schema in self._rounded:
                del schema["multipleOf"]
            check_multiples(self._multiples)
        self._check_ends(found)
        check_sizes(found)
        held = Members(found, closed=not self._additional_properties).held(found)
        check_sizes(held)
        return held

    def _check_ends(self, schema: Json) -> None:
        """Raises GrammarError where every value of a schema holds another of the same, without an end."""
        if not isinstance(schema, dict):
            return
        left = [f"#/$defs/{name}" for name in schema.get("$defs", {})]
        ends = _Ends(schema)
        while left:
            before = len(left)
            left = [name for name in reversed(left) if not ends.found(name)][::-1]
            if len(left) == before:
                raise GrammarError(
                    f"$ref {min(left)[:80]} requires itself again, so that no value has an end"
                )

    def schema(self, schema: Json, depth: int) -> Json:
        if isinstance(schema, bool):
            return schema
        if not isinstance(schema, dict):
            raise GrammarError(f"a schema is an object, true or false, and not {json.dumps(schema)[:80]}")
        if depth > MAX_DEPTH:
            raise GrammarError(f"schemas nest more than {MAX_DEPTH} levels deep")
        found = {key: self._value(key, value, depth + 1) for key, value in schema.items()}
        for key in [key for key in found if key in _SAY_NOTHING and _SAY_NOTHING[key](found, found[key])]:
            del found[key]
        if isinstance(found.get("pattern"), str):
            found["pattern"] = rust_pattern(found["pattern"])
        if isinstance(found.get("patternProperties"), dict):
            found["patternProperties"] = {
                rust_pattern(pattern): each for pattern, each in found["patternProperties"].items()
            }
        self._say_bounds(found)
        if hold_bounds(found):
            self._rounded.append(found)
        elif "multipleOf" in found:
            self._multiples.append(found)
        check_constants(found)
        self._combines |= _combines(found)
        self._say_properties(found)
        if "oneOf" in found:
            self._say_one_of(found)
        if isinstance(found.get("anyOf"), list):
            held = [each for each in found["anyOf"] if not _looks_around(each)]
            found["anyOf"] = held or found["anyOf"]
        return found

    def _value(self, key: str, value: Json, depth: int) -> Json:
        """A keyword's value with the schemas in it prepared."""
        if key in ONLY_LISTS and not isinstance(value, list):
            raise GrammarError(f"{key} is a list of schemas, and not {json.dumps(value)[:80]}")
        if key in _COUNTS and isinstance(value, float) and value.is_integer():
            return int(value)
        return with_schemas(key, value, lambda each: self.schema(each, depth))

    def _say_bounds(self, schema: Schema) -> None:
        """OpenAPI 3.0 and draft 4 say `exclusiveMinimum: true` beside `minimum`."""
        for exclusive, bound in (("exclusiveMinimum", "minimum"), ("exclusiveMaximum", "maximum")):
            if schema.get(exclusive) is True and bound in schema:
                schema[exclusive] = schema.pop(bound)
            elif isinstance(schema.get(exclusive), bool):
                del schema[exclusive]

    def _say_properties(self, schema: Schema) -> None:
        applied = schema.keys() & {"$ref", "$dynamicRef", "allOf", "anyOf", "oneOf", "if", "dependentSchemas"}
        if "unevaluatedProperties" in schema and not applied:
            value = schema.pop("unevaluatedProperties")
            schema.setdefault("additionalProperties", value)
        listed = schema.keys() & {"properties", "patternProperties"}
        names = schema.get("propertyNames")
        if isinstance(names, dict) and isinstance(names.get("$ref"), str) and len(names) == 1:
            names = self._referred(names["$ref"])
        if isinstance(names, dict) and not listed and (said := self._names(names)) is not None:
            del schema["propertyNames"]
            keyword, allowed = said
            schema[keyword] = dict.fromkeys(allowed, schema.get("additionalProperties", True))
            schema["additionalProperties"] = False
        if isinstance(schema.get("patternProperties"), dict):
            self._list_names(schema)

    def _list_names(self, schema: Schema) -> None:
        """Patterns of few names as those names, each of which an object has once."""
        found: dict[str, list[Json]] = {}
        for pattern, each in list(schema["patternProperties"].items()):
            names = names_of(pattern, lambda characters: self._spend(characters // WORK_CHARACTERS))
            self._spend(len(names or ()))
            if names is not None:
                del schema["patternProperties"][pattern]
                for name in names:
                    found.setdefault(name, []).append(each)
        if not schema["patternProperties"]:
            del schema["patternProperties"]
        if found:
            properties = schema.setdefault("properties", {})
            if not isinstance(properties, dict):
                raise GrammarError(
                    f"properties is an object of schemas, and not {json.dumps(properties)[:80]}"
                )
            for name, each in found.items():
                several = [properties[name], *each] if name in properties else each
                properties[name] = several[0] if len(several) == 1 else {"allOf": several}

    def _say_one_of(self, schema: Schema) -> None:
        """As `anyOf`, where no instance is of two branches."""
        branches = schema["oneOf"]
        if len(branches) > MAX_BRANCHES:
            raise GrammarError(f"oneOf is a list of at most {MAX_BRANCHES} schemas")
        alternatives = self._parted(branches, _types(schema, None))
        del schema["oneOf"]
        if "anyOf" not in schema:
            schema["anyOf"] = alternatives
        else:
            schema["allOf"] = [*schema.get("allOf", ()), {"anyOf": alternatives}]

    def _parted(self, branches: list[Json], types: set[str] | None) -> list[Json]:
        """The branches, so narrowed that no instance is of two. Raises GrammarError where one may be.

        types  that instances have by the schema around them; None: any
        """
        around = _Known(types)
        known = [around.both(self._known(branch, ())) for branch in branches]
        tagged: set[int] = set()
        for second in range(len(branches)):
            self._spend(second)
            for first in range(second):
                if not known[first].apart(known[second]):
                    tagged |= {first, second}
        if not tagged:
            return branches
        shared = set.intersection(*(set(known[index].tagged()) for index in tagged))
        for tag in sorted(shared):
            values = [value for index in tagged for value in known[index].tags[tag]]
            if len(values) == len(set(values)):
                needs = {"required": [tag]}
                return [
                    {"allOf": [branch, needs]} if index in tagged else branch
                    for index, branch in enumerate(branches)
                ]
        absent = _absent([known[index] for index in sorted(tagged)])
        if absent is not None:
            needs_of = dict(zip(sorted(tagged), absent, strict=True))
            return [
                {"allOf": [branch, {"properties": dict.fromkeys(sorted(needs_of[index]), False)}]}
                if index in tagged
                else branch
                for index, branch in enumerate(branches)
            ]
        first, second, *_ = sorted(tagged)
        raise GrammarError(
            f"oneOf: one value may be of more than one branch, such as {first} and {second}. Give them "
            "different types or a property with different const values, or say anyOf"
        )

    def _known(self, schema: Json, inside: tuple[str, ...]) -> _Known:
        """What each instance of a schema is known to be.

        inside  references that lead here
        """
        if not isinstance(schema, dict) or len(inside) > MAX_DEPTH:
            return _Known()
        self._spend(1)
        reference = schema.get("$ref")
        if not isinstance(reference, str):
            found = _Known()
        elif reference in inside:
            return _Known()
        else:
            found = self._known(self._referred(reference), (*inside, reference))
            if self._ref_stands_alone:
                return found
        values = self._values(schema)
        found = found.both(_Known(_types(schema, values), values).with_members(schema, self._values))
        every = schema["allOf"] if isinstance(schema.get("allOf"), list) else []
        self._spend(len(every))
        for each in every:
            found = found.both(self._known(each, inside))
        for keyword in ("anyOf", "oneOf"):
            if isinstance(some := schema.get(keyword), list) and some:
                self._spend(len(some))
                found = found.both(_Known.either([self._known(each, inside) for each in some]))
        return found

    def _values(self, schema: Schema) -> set[str] | None:
        """Those that `const` and `enum` allow, as JSON in one spelling; None where there is neither."""
        listed = [schema["const"]] if "const" in schema else schema.get("enum")
        values = {_spelled(value) for value in listed} if isinstance(listed, list) else None
        self._spend(1 + sum(1 + len(value) // WORK_CHARACTERS for value in values or ()))
        return values

    def _names(self, schema: Schema) -> tuple[str, list[str]] | None:
        """`propertyNames` as the keyword that lists them and its keys; None where it says more than that."""
        said = {key: value for key, value in schema.items() if key not in ("type", "title", "description")}
        if said.keys() <= {"const", "enum"} and (values := self._values(said)) is not None:
            names = [name for name in map(json.loads, sorted(values)) if isinstance(name, str)]
            return "properties", names
        if said.keys() == {"pattern"} and isinstance(said["pattern"], str):
            return "patternProperties", [said["pattern"]]
        if said and said.keys() <= {"minLength", "maxLength"}:
            least, most = said.get("minLength", 0), said.get("maxLength", "")
            if all(type(bound) is int for bound in said.values()):
                return "patternProperties", [f"^[\\s\\S]{{{least},{most}}}$"]
        return None

    def _spend(self, work: int) -> None:
        self._work += work
        if self._work > MAX_WORK:
            raise GrammarError(
                "oneOf, propertyNames and patternProperties have too many branches and values to look at; "
                "say anyOf, or list fewer"
            )

    def _referred(self, reference: str) -> Json:
        self._spend(1)
        return definition(self._root, reference)


@dataclass(frozen=True, slots=True)
class _Known:
    """What is known of a schema's instances, so that those of two may be told apart."""

    types: set[str] | None = None
    """That they can have; None: any."""
    values: set[str] | None = None
    """All of them, as JSON; None: too many to tell."""
    tags: dict[str, set[str]] = field(default_factory=dict)
    """Objects' properties whose values are listed."""
    required: frozenset[str] = frozenset()
    """Properties that objects have."""
    allowed: frozenset[str] | None = None
    """The only ones that they may have; None: others, too."""

    def with_members(self, schema: Schema, listed: Callable[[Schema], set[str] | None]) -> _Known:
        """listed  the values that a schema lists, as JSON; None where it lists none"""
        properties, required = schema.get("properties"), schema.get("required")
        properties = properties if isinstance(properties, dict) else {}
        tags = {
            name: values
            for name, each in properties.items()
            if isinstance(each, dict) and (values := listed(each)) is not None
        }
        closed = schema.get("additionalProperties") is False and not schema.get("patternProperties")
        return replace(
            self,
            tags=tags,
            required=frozenset(name for name in required if isinstance(name, str))
            if isinstance(required, list)
            else frozenset(),
            allowed=frozenset(name for name, each in properties.items() if each is not False)
            if closed
            else None,
        )

    def both(self, other: _Known) -> _Known:
        """Of the instances of two schemas together."""
        tags = self.tags | other.tags
        for name in self.tags.keys() & other.tags.keys():
            tags[name] = self.tags[name] & other.tags[name]
        return _Known(
            _shared(self.types, other.types),
            _shared(self.values, other.values),
            tags,
            self.required | other.required,
            _shared(self.allowed, other.allowed),
        )

    @staticmethod
    def either(several: Sequence[_Known]) -> _Known:
        """Of the instances of any."""
        shared = set.intersection(*(set(one.tagged()) for one in several))
        return _Known(
            _joined(one.types for one in several),
            _joined(one.values for one in several),
            {name: set().union(*(one.tags[name] for one in several)) for name in shared},
            frozenset.intersection(*(one.required for one in several)),
            _joined(one.allowed for one in several),
        )

    def tagged(self) -> dict[str, set[str]]:
        """The tags, which tell instances apart where they are objects alone."""
        return self.tags if self.types == {"object"} else {}

    def apart(self, other: _Known) -> bool:
        """Whether nothing is an instance of both."""
        if (types := _shared(self.types, other.types)) is not None and not types:
            return True
        if (values := _shared(self.values, other.values)) is not None and not values:
            return True
        return types == {"object"} and (self._lacks(other) or other._lacks(self))

    def _lacks(self, other: _Known) -> bool:
        return self.allowed is not None and not other.required <= self.allowed


def _absent(several: Sequence[_Known]) -> list[set[str]] | None:
    """For each the properties that it must lack so as to be none of the others, which require them.

    None where there are none.
    """
    found: list[set[str]] = []
    for one in several:
        if one.types != {"object"}:
            return None
        others = [other.required - one.required for other in several if other is not one]
        if not all(others):
            return None
        found.append({min(names) for names in others})
    return found


def _shared(one: Set | None, other: Set | None) -> Set | None:
    return other if one is None else one if other is None else one & other


def _joined(several: Iterable[Set | None]) -> Set | None:
    found: Set | None = None
    for one in several:
        if one is None:
            return None
        found = one if found is None else found | one
    return found


class _Ends:
    """Which definitions have a value that does not hold another of itself without an end."""

    def __init__(self, root: Schema) -> None:
        self._root = root
        self._found: set[str] = set()
        self._looked = 0

    def found(self, reference: str) -> bool:
        """Whether one has, by those that were found before."""
        if self._of(definition(self._root, reference), None):
            self._found.add(reference)
        return reference in self._found

    def _of(self, schema: Json, types: set[str] | None) -> bool:
        """types  that the value has by other schemas, too; None: any"""
        self._looked += 1
        if self._looked > MAX_LOOKS:
            raise GrammarError("too many $ref require each other; nest fewer")
        if not isinstance(schema, dict) or schema.keys() & {"const", "enum"}:
            return True
        if (own := _types(schema, None)) is not None:
            types = own if types is None else types & own
        if isinstance(schema.get("$ref"), str) and schema["$ref"] not in self._found:
            return False
        every, some = schema.get("allOf"), schema.get("anyOf")
        if isinstance(every, list) and not all(self._of(each, types) for each in every):
            return False
        if isinstance(some, list) and some and not any(self._of(each, types) for each in some):
            return False
        if not types or types - {"object", "array"}:
            return True
        return ("object" in types and self._object(schema)) or ("array" in types and self._array(schema))

    def _object(self, schema: Schema) -> bool:
        properties, required = schema.get("properties", {}), schema.get("required")
        if not isinstance(required, list) or not isinstance(properties, dict):
            return True
        others = schema.get("additionalProperties") if "patternProperties" not in schema else None
        return all(self._of(properties.get(name, others), None) for name in required if isinstance(name, str))

    def _array(self, schema: Schema) -> bool:
        least, items, first = schema.get("minItems"), schema.get("items"), schema.get("prefixItems", [])
        if isinstance(items, list):
            first, items = items, schema.get("additionalItems")
        if type(least) is not int or least < 1 or not isinstance(first, list):
            return True
        return all(
            self._of(each, None) for each in [*first[:least], *([items] if least > len(first) else [])]
        )


def _looks_around(schema: Json) -> bool:
    """Whether a schema has a pattern that no grammar can hold, as pydantic's of a Decimal."""
    pattern = schema.get("pattern") if isinstance(schema, dict) else None
    return isinstance(pattern, str) and re.search(r"\(\?<?[=!]", pattern) is not None


def _combines(schema: Schema) -> bool:
    """Whether several schemas within this one hold the same value."""
    applied = schema.keys() & {"$ref", "allOf", "anyOf", "oneOf"}
    several = isinstance(schema.get("allOf"), list) and len(schema["allOf"]) > 1
    return (
        several or "patternProperties" in schema or bool(applied and schema.keys() - applied - _ANNOTATIONS)
    )


def _types(schema: Schema, values: set[str] | None) -> set[str] | None:
    """Those that its instances have, or the values that it lists. An integer is a number; None where any
    type may come."""
    if values is not None:
        return {_type_of(json.loads(value)) for value in values}
    named = schema.get("type")
    named = [named] if isinstance(named, str) else named
    if not isinstance(named, list):
        return None
    return {"number" if name == "integer" else str(name) for name in named}


def _type_of(value: Json) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case int() | float():
            return "number"
        case str():
            return "string"
        case list():
            return "array"
    return "object"


def _spelled(value: Json) -> str:
    return json.dumps(_whole(value), sort_keys=True)


def _whole(value: Json) -> Json:
    """1.0 is 1."""
    match value:
        case float() if value.is_integer():
            return int(value)
        case list():
            return [_whole(each) for each in value]
        case dict():
            return {key: _whole(each) for key, each in value.items()}
    return value
