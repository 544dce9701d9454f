"""`slipway args`: what there is to set, and what becomes of it."""

from __future__ import annotations

import argparse
import json
import sys

from slipway import envs
from slipway.args import status
from slipway.args.check import check_setting
from slipway.args.errors import ArgumentError
from slipway.args.export import declarations
from slipway.args.help import spelling
from slipway.args.schema import SERVE, help_text
from slipway.metrics import METRICS


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """A list, a table of states, or a check of single settings."""
    parser.add_argument(
        "words",
        nargs="*",
        metavar="check KEY=VALUE",
        help="check settings: arguments as max-model-len, max_model_len or maxModelLen, and "
        "environment variables",
    )
    parser.add_argument(
        "--status",
        action="store_true",
        help="every argument, environment variable and metric: implemented, not built yet, "
        "accepted with a warning or refused, with the reason",
    )
    parser.add_argument(
        "--json",
        action="store_true",
        help="the declarations of all arguments, or with --status the table, as JSON",
    )


def run(arguments: argparse.Namespace) -> int:
    """Status 2 where a checked setting is not accepted."""
    match arguments.words:
        case []:
            show = _show_status if arguments.status else _show_list
            show(arguments.json)
            return 0
        case ["check", *settings] if settings:
            return max(_check(setting) for setting in settings)
    print("slipway args: error: write `slipway args check KEY=VALUE`.", file=sys.stderr)
    return 2


def _check(setting: str) -> int:
    try:
        print(check_setting(setting))
    except (ArgumentError, envs.InvalidEnvironment) as error:
        print(f"slipway args: error: {error}", file=sys.stderr)
        return 2
    return 0


def _show_list(as_json: bool) -> None:
    if as_json:
        print(json.dumps(declarations(), indent=2, ensure_ascii=False))
        return
    for group in SERVE.groups:
        print(f"{group.name}: {group.summary}")
        for argument in group.arguments:
            print(f"    {spelling(argument)}")
            print(f"        {help_text(argument).splitlines()[0]}")
        print()
    print("Environment variables:")
    for variable in envs.VARIABLES:
        print(f"    {variable.name}\n        {variable.summary}")
    print("\nMetrics:")
    for metric in METRICS:
        print(f"    {metric.name}\n        {metric.summary}")


def _show_status(as_json: bool) -> None:
    tables = {
        "arguments": status.arguments(),
        "environment variables": status.variables(),
        "metrics": status.metrics(),
    }
    if as_json:
        print(
            json.dumps(
                {
                    title: {entry.name: {"status": entry.status, "reason": entry.reason} for entry in entries}
                    for title, entries in tables.items()
                },
                indent=2,
                ensure_ascii=False,
            )
        )
        return
    print("\n".join(status.table(title, entries) for title, entries in tables.items()), end="")
