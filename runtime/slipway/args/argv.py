"""From `spec.engine` of a service document to the command line."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from slipway.args.command_line import is_flag
from slipway.args.declare import Argument, Kind
from slipway.args.errors import ArgumentError
from slipway.args.schema import CAMEL
from slipway.args.values import near


def render_argv(engine: Mapping[str, Any]) -> list[str]:
    """The whole command line of `settings`, which raises the same.

    Values are checked by `resolve(render_argv(engine), {})` and, in the cluster, by the schema of the CRD.
    """
    return [word for _, words in settings(engine) for word in words]


def settings(engine: Mapping[str, Any]) -> list[tuple[Argument, tuple[str, ...]]]:
    """Each argument with its words, in the order of the schema, so that equal specs give equal pods.

    Null gives none, nor does a false that leaving the flag out says. Raises ArgumentError for a field that
    `spec.engine` does not have.
    """
    for field in engine:
        if field not in CAMEL:
            raise ArgumentError(f"spec.engine has no field {field!r}.{near(field, CAMEL)}")
    wanted = ((one, engine[field]) for field, one in CAMEL.items() if engine.get(field) is not None)
    given = [(argument, tuple(_words(argument, value))) for argument, value in wanted]
    return [(argument, words) for argument, words in given if words]


def _words(argument: Argument, value: Any) -> list[str]:
    if argument.kind is Kind.BOOL:
        return _bool_words(argument, value)
    if isinstance(value, dict):
        return [argument.flag, _json(value)]
    if not isinstance(value, list):
        return _with_value(argument.flag, str(value))
    if argument.append:
        return [word for item in value for word in _with_value(argument.flag, str(item))]
    plain = [item for item in value if not isinstance(item, dict)]
    if argument.json_array or len(plain) != 1 or is_flag(str(plain[0])):
        return [f"{argument.flag}={_json(value)}"]
    return [argument.flag, str(plain[0])]


def _bool_words(argument: Argument, value: bool) -> list[str]:
    """False is a `--no-` form where there is one, and nothing where leaving the flag out says it."""
    if value:
        return [argument.flag]
    if argument.negatable:
        return [f"--no-{argument.flag[2:]}"]
    return [f"{argument.flag}=false"] if argument.optional_value else []


def _with_value(flag: str, value: str) -> list[str]:
    return [f"{flag}={value}"] if is_flag(value) or not value else [flag, value]


def _json(value: object) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False, sort_keys=True)
