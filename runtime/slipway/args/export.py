"""The declarations as JSON, for `slipway --print-schema` and `slipway args --json`."""

from __future__ import annotations

import json
from typing import Any

from slipway import __version__
from slipway.args.compatibility import DECIDING
from slipway.args.declare import Argument, Key
from slipway.args.schema import SERVE, help_text
from slipway.args.status import status_of


def declarations() -> dict[str, Any]:
    """Groups in order, each with its arguments. Facts that an argument does not have are left out."""
    return {
        "version": __version__,
        "groups": [
            {
                "name": group.name,
                "summary": group.summary,
                "arguments": [declaration(argument) for argument in group.arguments],
            }
            for group in SERVE.groups
        ],
    }


def declaration(argument: Argument) -> dict[str, Any]:
    """One argument: what was declared, the help, and what becomes of it."""
    status = status_of(argument)
    kind = str(argument.kind)
    facts: dict[str, Any] = {
        "name": argument.name,
        "flag": argument.flag,
        "group": argument.group,
        "type": f"list[{kind}]" if argument.is_list else kind,
        "default": argument.default,
        "help": help_text(argument),
        "disposition": str(argument.disposition),
        "status": status.status,
    }
    optional = {
        "reason": status.reason,
        "aliases": list(argument.aliases),
        "no_form": f"--no-{argument.flag[2:]}" if argument.negatable else "",
        "positional": argument.positional,
        "nullable": argument.nullable,
        "tri_state": argument.tri_state,
        "optional_value": argument.optional_value,
        "append": argument.append,
        "adds_up": argument.adds_up,
        "json_array": argument.json_array,
        "choices": list(argument.choices),
        "open_choices": argument.open_choices,
        "refused_values": dict(argument.refused),
        "values_without_effect": dict(argument.hollow),
        "words": sorted(argument.words),
        "minimum": argument.minimum,
        "exclusive_minimum": argument.above,
        "maximum": argument.maximum,
        "unit": argument.unit,
        "keys": {name: _key(key) for name, key in argument.keys.items()},
        "acting_keys": list(argument.acting_keys),
        "requires": list(argument.requires),
        "no_effect_without": list(argument.no_effect_without),
        "replacement": argument.replacement,
        "environment": list(argument.twins),
        "secret": argument.secret,
        "security_sensitive": argument.security_sensitive,
        "cuda_only": argument.cuda_only,
        "field": argument.camel if argument.in_spec else "",
    }
    return facts | {name: fact for name, fact in optional.items() if fact not in (None, False, "", [], {})}


def _key(key: Key) -> dict[str, Any]:
    facts = {
        "type": key.type,
        "choices": list(key.choices),
        "minimum": key.minimum,
        "maximum": key.maximum,
        "aliases": list(key.aliases),
        "nullable": key.nullable,
    }
    return {name: fact for name, fact in facts.items() if fact not in (None, False, [])}


def print_schema(*, short: bool) -> int:
    """`slipway --print-schema`; `short` is one line without texts, as images carry it in their label."""
    if short:
        print(short_schema())
    else:
        print(json.dumps(declarations(), indent=2, ensure_ascii=False))
    return 0


def short_schema() -> str:
    """What decides whether an image takes a value, in one line."""
    arguments = [
        {name: fact for name, fact in declaration(argument).items() if name in DECIDING}
        for argument in SERVE.arguments.values()
    ]
    schema = {"version": __version__, "groups": [{"arguments": arguments}]}
    return json.dumps(schema, separators=(",", ":"), ensure_ascii=False)
