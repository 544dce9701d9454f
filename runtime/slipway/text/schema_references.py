"""References of a JSON schema, each of which is made to lead to a definition of its own.

A reference may lead anywhere, `#/allOf/0/properties/x` for one, and other code rewrites those places.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any
from urllib.parse import unquote, urldefrag, urljoin

from slipway.text.errors import GrammarError

Json = Any
Schema = dict[str, Any]

MAX_DEPTH = 64
MAX_SCHEMAS = 50_000
"""Schemas within one, those that are repeated as definitions included."""

ONLY_LISTS = frozenset(("allOf", "anyOf", "oneOf", "prefixItems"))
_LISTS = ONLY_LISTS | {"items"}
_DEFINITIONS = frozenset(("$defs", "definitions"))
_MAPS = _DEFINITIONS | {"dependentSchemas", "patternProperties", "properties"}
_SINGLE = frozenset(
    (
        *("additionalItems", "additionalProperties", "contains", "else", "if", "items", "not"),
        *("propertyNames", "then", "unevaluatedItems", "unevaluatedProperties"),
    )
)
_DROPPED = _DEFINITIONS | {"$anchor", "$id"}


def with_schemas(key: str, value: Json, change: Callable[[Json], Json]) -> Json:
    """A keyword's value with each schema in it changed."""
    if key in _LISTS and isinstance(value, list):
        return [change(each) for each in value]
    if key in _MAPS and isinstance(value, dict):
        return {name: change(each) for name, each in value.items()}
    if key == "dependencies" and isinstance(value, dict):
        return {name: each if isinstance(each, list) else change(each) for name, each in value.items()}
    if key in _SINGLE:
        return change(value)
    return value


def resolved(root: Json) -> Json:
    """The schema with all references in the form `#/$defs/NAME`, and no other definitions or addresses.

    Raises GrammarError for a reference that leads nowhere.
    """
    return _Resolving(root).whole() if isinstance(root, dict) else root


def definition(root: Schema, reference: str) -> Json:
    """The schema to which a reference leads in a resolved schema."""
    return root["$defs"][reference.removeprefix("#/$defs/")]


class _Resolving:
    def __init__(self, root: Schema) -> None:
        self._root = root
        self._schemas = 0
        self._bases: dict[int, str] = {}
        """Addresses against which the references in a schema are resolved, by its identity."""
        self._resources: dict[str, Json] = {"": root}
        """Schemas with an address of their own."""
        self._anchors: dict[tuple[str, str], Json] = {}
        self._names: dict[tuple[str, str], str] = {}
        """Of definitions, by the address and the fragment that lead there."""
        self._targets: dict[str, Json] = {}
        self._index(root, "", 0)

    def whole(self) -> Schema:
        found: Schema = self._rewritten(self._root)
        definitions: Schema = {}
        while len(definitions) < len(self._targets):
            for name in self._targets.keys() - definitions.keys():
                definitions[name] = self._rewritten(self._targets[name])
        for name, target in self._targets.items():
            if target is self._root:
                found = {key: found[key] for key in found.keys() & {"$schema"}}
                found["$ref"] = f"#/$defs/{name}"
        if definitions:
            found["$defs"] = {name: definitions[name] for name in self._targets}
        return found

    def _index(self, schema: Json, base: str, depth: int) -> None:
        """Note the addresses and anchors of a schema and of all within it."""
        if not isinstance(schema, dict):
            return
        if depth > MAX_DEPTH:
            raise GrammarError(f"schemas nest more than {MAX_DEPTH} levels deep")
        self._spend()
        if depth and "$ref" in schema and "$id" in schema:
            raise GrammarError("$ref beside $id means different things in different drafts")
        if isinstance(address := schema.get("$id"), str):
            if address.startswith("#"):  # an anchor, up to draft 7
                self._anchors.setdefault((base, address[1:]), schema)
            else:
                base = _joined(base, urldefrag(address).url)
                self._resources.setdefault(base, schema)
        if isinstance(anchor := schema.get("$anchor"), str):
            self._anchors.setdefault((base, anchor), schema)
        self._bases[id(schema)] = base
        for key, value in schema.items():
            with_schemas(key, value, lambda each: self._index(each, base, depth + 1))

    def _rewritten(self, schema: Json) -> Json:
        if not isinstance(schema, dict):
            return schema
        self._spend()
        found = {
            key: with_schemas(key, value, self._rewritten)
            for key, value in schema.items()
            if key not in _DROPPED
        }
        if isinstance(reference := schema.get("$ref"), str):
            found["$ref"] = f"#/$defs/{self._name(reference, self._bases[id(schema)])}"
        return found

    def _name(self, reference: str, base: str) -> str:
        """The name of the definition to which a reference leads."""
        relative, _, fragment = reference.partition("#")
        address, fragment = _joined(base, relative), unquote(fragment)
        if (address, fragment) not in self._names:
            target = self._target(reference, address, fragment)
            plain = re.fullmatch(r"/(?:\$defs|definitions)/([A-Za-z0-9_.-]+)", fragment)
            wanted = plain.group(1) if plain else re.sub(r"[^A-Za-z0-9_.-]+", ".", address + fragment)
            name = wanted = wanted.strip(".")[-64:] or "root"
            number = len(self._targets)
            while name in self._targets:
                number += 1
                name = f"{wanted}-{number}"
            self._targets[name] = target
            self._names[address, fragment] = name
        return self._names[address, fragment]

    def _target(self, reference: str, address: str, fragment: str) -> Json:
        if address not in self._resources:
            raise GrammarError(
                f"$ref leads to {reference[:80]}, and nothing is fetched; put that schema into $defs"
            )
        if fragment and not fragment.startswith("/"):
            if (address, fragment) not in self._anchors:
                raise GrammarError(
                    f"$ref leads to the anchor {fragment[:80]}, which the schema does not have"
                )
            return self._anchors[address, fragment]
        found = self._resources[address]
        base = self._bases[id(found)]
        for part in fragment.split("/")[1:]:
            part = part.replace("~1", "/").replace("~0", "~")
            if isinstance(found, dict) and part in found:
                found = found[part]
            elif (
                isinstance(found, list)
                and re.fullmatch(r"0|[1-9][0-9]{0,5}", part)
                and int(part) < len(found)
            ):
                found = found[int(part)]
            else:
                raise GrammarError(f"$ref leads to #{fragment[:80]}, which the schema does not have")
            base = self._bases.get(id(found), base)
        if not isinstance(found, dict | bool):
            raise GrammarError(f"a schema is an object, true or false, and not {json.dumps(found)[:80]}")
        if isinstance(found, dict) and id(found) not in self._bases:  # behind a keyword of no schemas
            self._index(found, base, 0)
        return found

    def _spend(self) -> None:
        self._schemas += 1
        if self._schemas > MAX_SCHEMAS:
            raise GrammarError(
                f"the schema has more than {MAX_SCHEMAS:,} parts, with what $ref repeats of it"
            )


def _joined(base: str, relative: str) -> str:
    try:
        return urljoin(base, relative) if relative else base
    except ValueError:
        raise GrammarError(f"{relative[:80]} is not an address") from None
