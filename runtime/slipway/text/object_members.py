"""Which members objects may have: no others than they list, or none that repeats a listed name.

llguidance lets a free name be written with escapes, as another spelling of a listed one, and counts each
time that a name is written. So free names are said by a pattern, and counts as names.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any

from slipway.text.errors import GrammarError
from slipway.text.object_names import all_but, beginning
from slipway.text.schema_references import definition, with_schemas

Json = Any
Schema = dict[str, Any]

MAX_CHOICES = 64
"""Ways to choose the members that a count asks for."""
MAX_WORK = 20_000
"""Schemas looked at in one schema, those that a `$ref` repeats included."""
MAX_COMPARISONS = 5_000_000
"""Of the names in one schema, each object's with each other, and of its patterns by the third power.

llguidance takes 0.4 s for 1,000 names in one object and 1.3 s for 2,000, and for patterns 0.1 s for 100,
1.5 s for 200 and 15 s for 300.
"""

_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


@dataclass(frozen=True, slots=True)
class _Names:
    """What a schema, and those that hold the same object, say of its members."""

    listed: tuple[str, ...] = ()
    patterns: tuple[str, ...] = ()
    lists: bool = False
    """By `properties` or `patternProperties`."""
    others: bool = False
    """It says what other members are."""

    def __or__(self, other: _Names) -> _Names:
        return _Names(
            tuple(dict.fromkeys(self.listed + other.listed)),
            tuple(dict.fromkeys(self.patterns + other.patterns)),
            self.lists or other.lists,
            self.others or other.others,
        )

    def __bool__(self) -> bool:
        return bool(self.listed or self.patterns or self.lists)


@dataclass(slots=True)
class Members:
    """Of the schemas within one, whose references lead to parts of it.

    closed  objects have no others than they list, where their schema does not say
    """

    root: Json
    closed: bool
    _work: int = 0
    _inside: list[str] = field(default_factory=list)
    """References that are being written out."""
    _known: dict[int, _Names] = field(default_factory=dict)
    """By the identity of a schema within the root."""

    def held(self, schema: Json) -> Json:
        """The schema of a whole value."""
        if not isinstance(schema, dict):
            return schema
        self._spend()
        found = self._with_children(schema)
        own, parts = self._own(schema), self._parts(schema)
        named = [own, *map(self._names, parts)]
        unions = schema["anyOf"] if isinstance(schema.get("anyOf"), list) else []
        alternatives = list(map(self._names, unions))
        speakers = sum(map(bool, named))
        if speakers == 0 or (speakers == 1 and not any(alternatives)):
            if isinstance(schema.get("allOf"), list):
                found["allOf"] = list(map(self.held, schema["allOf"]))
            if unions:
                found["anyOf"] = list(map(self.held, unions))
            return self._finished(found, own)
        return self._joined(schema, found, named, alternatives)

    def _joined(
        self, schema: Schema, found: Schema, named: list[_Names], alternatives: list[_Names]
    ) -> Schema:
        """Several schemas list members of one object: they are open, and one more bounds them together."""
        every = _Names()
        for names in named:
            every |= names
        found.pop("$ref", None)
        found.pop("allOf", None)
        conjuncts = list(map(self._opened, self._parts(schema)))
        if any(alternatives):
            found["anyOf"] = [
                {"allOf": [self._opened(branch), *self._bounds(every | names)]}
                for branch, names in zip(schema["anyOf"], alternatives, strict=True)
            ]
        else:
            conjuncts += self._bounds(every)
            if isinstance(schema.get("anyOf"), list):
                found["anyOf"] = list(map(self._opened, schema["anyOf"]))
        if conjuncts:
            found["allOf"] = conjuncts
        _check_counts(found)
        return found

    def _bounds(self, names: _Names) -> list[Schema]:
        """Schemas of objects with no others than these, or of those with no second spelling of them."""
        _check_spellings(names)
        known: Schema = {"properties": dict.fromkeys(names.listed, True)}
        known["patternProperties"] = dict.fromkeys(names.patterns, True)
        if names.others or not self.closed:
            known["patternProperties"] |= _free(names, True)
        return [known | {"additionalProperties": False}]

    def _finished(self, found: Schema, own: _Names) -> Json:
        """A schema that alone says what members its objects have."""
        _check_spellings(own)
        required = _required(found)
        others = found.get("additionalProperties", not (self.closed and own.lists))
        properties = found.get("properties")
        if properties is not None and not isinstance(properties, dict):
            return found  # which llguidance refuses
        if own and "additionalProperties" not in found:
            found["properties"] = (properties or {}) | {
                name: True for name in required if name not in (properties or {})
            }
        elif own and others is not False:
            found["properties"] = (properties or {}) | {
                name: others for name in required if name not in (properties or {})
            }
        if own and others is not False:
            found["patternProperties"] = found.get("patternProperties", {}) | _free(own, others)
        if own:
            found["additionalProperties"] = False
        if others is not False or own.patterns:
            _check_counts(found)
            if own:
                _say_least(found)
        elif "additionalProperties" in found:
            _say_counts(found)
        return found

    def _opened(self, schema: Json) -> Json:
        """A schema that holds an object together with others, its references written out."""
        if not isinstance(schema, dict):
            return schema
        self._spend()
        found = self._with_children(schema)
        if isinstance(schema.get("anyOf"), list):
            found["anyOf"] = list(map(self._opened, schema["anyOf"]))
        parts = self._parts(schema)
        reference = schema.get("$ref")
        if parts and isinstance(reference, str):
            if reference in self._inside:
                raise GrammarError(f"$ref {reference[:80]} leads back to itself beside other keywords")
            del found["$ref"]
            self._inside.append(reference)
            found["allOf"] = list(map(self._opened, parts))
            self._inside.pop()
        elif parts:
            found["allOf"] = list(map(self._opened, parts))
        _check_counts(found)
        return found

    def _with_children(self, schema: Schema) -> Schema:
        """A copy, the schemas of members and items held; `allOf` and `anyOf` as they are."""
        return {
            key: value if key in ("allOf", "anyOf") else with_schemas(key, value, self.held)
            for key, value in schema.items()
        }

    def _parts(self, schema: Schema) -> list[Json]:
        """Those that hold the same value: of `allOf`, and what `$ref` leads to."""
        parts = list(schema["allOf"]) if isinstance(schema.get("allOf"), list) else []
        if isinstance(schema.get("$ref"), str):
            parts.insert(0, definition(self.root, schema["$ref"]))
        return parts

    def _names(self, schema: Json, depth: int = 0) -> _Names:
        """Those that it and the schemas of the same object list, whichever of `anyOf` holds."""
        if not isinstance(schema, dict) or depth > 32:
            return _Names()
        if (known := self._known.get(id(schema))) is not None:
            return known
        found = self._own(schema)
        self._spend(1 + len(found.listed) // 16)
        unions = schema["anyOf"] if isinstance(schema.get("anyOf"), list) else []
        for part in [*self._parts(schema), *unions]:
            found |= self._names(part, depth + 1)
        if depth == 0:  # deeper ones may leave names out
            self._known[id(schema)] = found
        return found

    def _own(self, schema: Schema) -> _Names:
        properties, patterns = schema.get("properties"), schema.get("patternProperties")
        listed = tuple(properties) if isinstance(properties, dict) else ()
        return _Names(
            tuple(dict.fromkeys((*listed, *_required(schema)))),
            tuple(patterns) if isinstance(patterns, dict) else (),
            lists=isinstance(properties, dict) or isinstance(patterns, dict),
            others="additionalProperties" in schema or "unevaluatedProperties" in schema,
        )

    def _spend(self, work: int = 1) -> None:
        self._work += work
        if self._work > MAX_WORK:
            raise GrammarError("allOf and $ref repeat too many schemas; list the properties in one place")


def check_sizes(schema: Json) -> None:
    """Raises GrammarError where llguidance would compare too many names of objects."""
    comparisons = 0

    def look(schema: Json) -> None:
        nonlocal comparisons
        if not isinstance(schema, dict):
            return
        listed, patterns = schema.get("properties"), schema.get("patternProperties")
        names = set(_required(schema)).union(listed if isinstance(listed, dict) else ())
        several = len(patterns) if isinstance(patterns, dict) else 0
        comparisons += len(names) ** 2 + several**3
        if comparisons > MAX_COMPARISONS:
            raise GrammarError(
                "objects have too many names or patterns of names to compare, in properties, required, "
                f"propertyNames and patternProperties: one of {len(names):,} names and {several:,} patterns"
            )
        for key, value in schema.items():
            with_schemas(key, value, look)

    look(schema)


def _required(schema: Schema) -> list[str]:
    required = schema.get("required")
    return [name for name in required if isinstance(name, str)] if isinstance(required, list) else []


def _free(names: _Names, others: Json) -> Schema:
    """`patternProperties` of the names that are not listed; none where patterns have no common beginning,
    from which they could be told."""
    prefixes = list(map(beginning, names.patterns))
    return {all_but(names.listed, prefixes): others} if all(prefixes) else {}


def _check_spellings(names: _Names) -> None:
    """Raises GrammarError where a listed name has control characters and a pattern may match it.

    llguidance keeps patterns from one spelling of the name alone: of its `\\n`, and not of its `\\u000a`.
    """
    prefixes = tuple(map(beginning, names.patterns)) if any(map(_CONTROL.search, names.listed)) else ()
    for name in names.listed:
        if prefixes and name.startswith(prefixes) and _CONTROL.search(name):
            raise GrammarError(
                f"the property {json.dumps(name)[:80]} has control characters, and patternProperties may "
                "match it; begin their patterns with other text"
            )


def _count(schema: Schema, keyword: str) -> int | None:
    count = schema.get(keyword)
    return count if type(count) is int and count >= 0 else None


def _check_counts(schema: Schema) -> None:
    """Raises GrammarError where a name that is written twice could satisfy `minProperties`."""
    least = _count(schema, "minProperties")
    if least is None:
        return
    required = len(set(_required(schema)))
    if least <= required:
        del schema["minProperties"]
    elif least > required + 1:
        raise GrammarError(
            f"minProperties is {least}, and a grammar cannot tell whether a name is written twice: list the "
            f"names in properties with additionalProperties false, require them, or ask for {required + 1}"
        )


def _say_least(schema: Schema) -> None:
    """One member more than are required: one of those that are listed, or one that is not.

    llguidance counts members only where all that are listed are required.
    """
    required = _required(schema)
    optional = [name for name, each in schema.get("properties", {}).items() if each is not False]
    optional = [name for name in optional if name not in required]
    if not optional or "minProperties" not in schema or "maxProperties" in schema:
        return
    if len(optional) > MAX_CHOICES:
        raise GrammarError(
            f"minProperties leaves more than {MAX_CHOICES} choices among {len(optional)} properties; require "
            "some of them, or leave it out"
        )
    another = {"properties": dict.fromkeys(optional, False), "minProperties": schema.pop("minProperties")}
    some = [_first(optional, (name,)) for name in optional]
    schema["allOf"] = [*schema.get("allOf", ()), {"anyOf": [*some, another]}]


def _say_counts(schema: Schema) -> None:
    """The counts of an object that lists all its members, by the names that it has or lacks."""
    least, most = _count(schema, "minProperties"), _count(schema, "maxProperties")
    if least is None and most is None:
        return
    required = list(dict.fromkeys(_required(schema)))
    names = [name for name, each in schema.get("properties", {}).items() if each is not False]
    optional = [name for name in names if name not in required]
    for keyword, count in (("minProperties", least), ("maxProperties", most)):
        if count is not None:
            del schema[keyword]
    if least is not None and least > len(names):
        raise GrammarError(f"minProperties is {least}, and the schema has {len(names)} properties")
    if most is not None and most < len(required):
        raise GrammarError(f"maxProperties is {most}, and the schema requires {len(required)} properties")
    said = []
    if least is not None and least > len(required):
        chosen = _chosen("minProperties", optional, least - len(required))
        said.append({"anyOf": [_first(optional, names) for names in chosen]})
    if most is not None and most < len(names):
        chosen = _chosen("maxProperties", optional, most - len(required))
        said.append({"anyOf": [_without(optional, names) for names in chosen]})
    if said:
        schema["allOf"] = [*schema.get("allOf", ()), *said]


def _chosen(keyword: str, names: Sequence[str], count: int) -> Iterable[tuple[str, ...]]:
    if math.comb(len(names), count) > MAX_CHOICES:
        raise GrammarError(
            f"{keyword} leaves more than {MAX_CHOICES} choices among {len(names)} properties; require some "
            "of them, or leave it out"
        )
    return combinations(names, count)


def _first(names: Sequence[str], chosen: Sequence[str]) -> Schema:
    """These are there, and up to the last of them no others."""
    before = names[: names.index(chosen[-1])]
    absent = {name: False for name in before if name not in chosen}
    return {"required": list(chosen), "properties": absent}


def _without(names: Sequence[str], chosen: Sequence[str]) -> Schema:
    return {"properties": {name: False for name in names if name not in chosen}}
