"""One setting, `KEY=VALUE`, looked at alone: for `slipway args check` and for the operator."""

from __future__ import annotations

import json

from slipway import envs
from slipway.args.command_line import parse
from slipway.args.declare import Argument, Kind
from slipway.args.errors import ArgumentError
from slipway.args.objects import check_object
from slipway.args.schema import CAMEL, SERVE
from slipway.args.values import near


def check_setting(setting: str) -> str:
    """What the setting means, in one line. The key is a flag, a field of `spec.engine`, or a variable.

    Raises ArgumentError or InvalidEnvironment where it is unknown, with near matches, or malformed.
    """
    key, equals, value = setting.partition("=")
    if key in envs.BY_NAME or key.startswith(("VLLM_", "SLIPWAY_")):
        return _check_variable(key, value)
    argument = CAMEL.get(key) or SERVE.find(key.lstrip("-"))
    if argument is None:
        known = [*SERVE.long_names(), *CAMEL, *envs.BY_NAME]
        raise ArgumentError(f"{key} is neither an argument nor a variable.{near(key, known)}")
    return _check_argument(argument, value if equals else None)


def _check_variable(name: str, value: str) -> str:
    if name not in envs.BY_NAME:
        raise ArgumentError(envs.unknown(name))
    meant = envs.BY_NAME[name].parse(value)
    warnings = envs.check({name: value})
    return f"{name} = {json.dumps(meant)}" + "".join(f"; {warning}" for warning in warnings)


def _check_argument(argument: Argument, value: str | None) -> str:
    if argument.positional:
        return f"{argument.name} = {json.dumps(value)}"
    bare = value is None or (argument.kind is Kind.BOOL and value.lower() == "true")
    no = argument.kind is Kind.BOOL and argument.negatable and (value or "").lower() == "false"
    word = f"--no-{argument.flag[2:]}" if no else argument.flag
    written = parse([word if bare or no else f"{argument.flag}={value}"])
    meant = written.values[argument.name]
    warnings: list[str] = []
    if isinstance(meant, dict):
        meant = check_object(argument, meant, argument.flag, warnings.append)
    shown = "***" if argument.secret else json.dumps(meant, ensure_ascii=False)
    return f"{argument.name} = {shown}" + "".join(f"; {warning}" for warning in warnings)
