"""The YAML file of `--config`: long option names without dashes, and their values."""

from __future__ import annotations

import json
import os
from typing import Any

from slipway.args import foreign, values
from slipway.args.command_line import Written, read_item, read_list
from slipway.args.declare import Argument, Kind
from slipway.args.errors import ArgumentError
from slipway.args.objects import merge_key
from slipway.args.schema import SERVE, Schema

REFUSED = {
    "config": "A configuration file cannot name another one.",
    "help": "Ask for help on the command line.",
    "dry_run": "Give --dry-run on the command line.",
}


def found(path: str, folder: str) -> str:
    """The file as it is named, or the one of that name in the folder where only that exists."""
    there = os.path.join(os.path.expanduser(folder), path)
    return there if not os.path.exists(path) and os.path.exists(there) else path


def read(path: str, schema: Schema = SERVE) -> Written:
    """Raises ArgumentError where the file, a key or a value is not understood."""
    written = Written()
    first_spelling: dict[str, str] = {}
    for key, value in _load(path).items():
        if not isinstance(key, str):
            raise ArgumentError(f"{path}: the key {key!r} is not text.", "config")
        if schema.find(key.partition(".")[0]) is None and (row := foreign.find(key.partition(".")[0])):
            written.foreign[row.name] = value if isinstance(value, str) else json.dumps(value)
            continue
        argument, dotted, negated = _named(key, path, schema)
        target = f"{argument.name}.{dotted}"
        if target in first_spelling:
            raise ArgumentError(
                f"{path} gives {first_spelling[target]} and {key}, which are the same.", argument.name
            )
        first_spelling[target] = key
        _put(written, argument, dotted, not value if negated else value, f"{key} in {path}")
    return written


def _load(path: str) -> dict[Any, Any]:
    if not path.endswith((".yaml", ".yml")):
        raise ArgumentError(f"--config {path}: the name must end in .yaml or .yml.", "config")
    import yaml  # only here: without --config nothing needs it

    class Loader(yaml.SafeLoader):
        """Refuses a key that stands twice, of which PyYAML would keep the last."""

        def construct_mapping(self, node: Any, deep: bool = False) -> Any:
            keys = [key.value for key, _ in node.value]
            for key in keys:
                if keys.count(key) > 1:
                    raise ArgumentError(f"{path} gives {key} twice.", "config")
            return super().construct_mapping(node, deep)

    try:
        with open(path, encoding="utf-8") as file:
            loaded = yaml.load(file, Loader)  # a SafeLoader: builds no objects
    except OSError as error:
        raise ArgumentError(
            f"--config {path} cannot be read: {error.strerror}. Check the path.", "config"
        ) from None
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError, ValueError) as error:
        if isinstance(error, ArgumentError):
            raise
        raise ArgumentError(f"--config {path} is not YAML: {error}", "config") from None
    if loaded is None:
        return {}
    if not isinstance(loaded, dict):
        raise ArgumentError(
            f"--config {path} holds no map. Write lines such as `max-model-len: 4096`.", "config"
        )
    return loaded


def _named(key: str, path: str, schema: Schema) -> tuple[Argument, str, bool]:
    """The argument of a key, the key inside it where there is a dot, and whether it is a no- form."""
    stem, _, dotted = key.partition(".")
    argument, negated = schema.find(stem), False
    if argument is None and stem.replace("-", "_").startswith("no_"):
        argument, negated = schema.find(stem[3:]), True
        if argument is not None and not argument.negatable:
            argument = None
    if argument is None:
        raise schema.unknown(stem.lstrip("-"), f"{key} in {path}")
    if argument.name in REFUSED:
        raise ArgumentError(f"{key} in {path}: {REFUSED[argument.name]}", argument.name)
    return argument, dotted, negated


def _put(written: Written, argument: Argument, dotted: str, value: Any, place: str) -> None:
    """Null leaves the argument alone, and so does false where the flag has no form that says it."""
    if value is None:
        return
    if dotted:
        if not argument.is_json:
            raise ArgumentError(f"{place}: {argument.flag} takes no keys.", argument.name)
        merged: dict[str, Any] = {}
        merge_key(merged, tuple(dotted.split(".")), value)
        for name, inner in merged.items():
            written.put_key(argument, name, inner, place)
        return
    if value is False and argument.kind is Kind.BOOL:
        if argument.negatable or argument.optional_value:
            written.put(argument, False, place)
        return
    if value is True and argument.optional_value:
        written.put(argument, True, place)
    elif argument.is_list:
        written.put(argument, _list(argument, value, place), place)
    else:
        written.put(argument, values.from_yaml(argument, value, place), place)


def _list(argument: Argument, value: Any, place: str) -> list[Any] | None:
    if isinstance(value, list):
        return [read_item(argument, item, place) for item in value]
    if isinstance(value, str):
        bare = argument.json_array and not value.lstrip().startswith("[")
        return [value] if bare else read_list(argument, [value], place)
    return [read_item(argument, value, place)]
