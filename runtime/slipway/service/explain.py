"""Every argument and variable of the server that a document becomes: its value, whence, and what reads it."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from typing import Any

from slipway import envs
from slipway.args import status
from slipway.args.schema import ARGUMENTS, SERVE
from slipway.envs.manual import HEADINGS
from slipway.service.engine import resolved_of
from slipway.service.fields import camel
from slipway.service.origin import Entry, Origin, Setting, Source, derived
from slipway.service.pod import as_given, command, environment
from slipway.service.profile import PARTS, ServingProfile, with_profile
from slipway.service.spec import ServiceSpec

OTHERS = "libraries and the system"
"""What reads a variable that Slipway does not."""
DEFAULT = Origin(Source.DEFAULT)


@dataclass(frozen=True, slots=True)
class Reader:
    """What reads a setting, and what becomes of it there."""

    part: str
    """Group of the argument, or of the one that a variable stands for; else the variable's in the manual."""
    status: str
    reason: str


@dataclass(frozen=True, slots=True)
class Explained:
    """One argument or variable.

    `value` is what the container has, words or an entry of `env`; of what is unset, what the server takes.
    """

    name: str
    value: Any
    text: str
    """The value with its name, on one line."""
    origin: Origin
    reader: Reader


@dataclass(frozen=True, slots=True)
class Explanation:
    """The server's container, in its order."""

    arguments: list[Explained]
    environment: list[Explained]


def explain(spec: ServiceSpec, profile: ServingProfile | None = None) -> Explanation:
    """What the container has. Raises InvalidService."""
    whole = with_profile(spec, profile)
    made = Explanation(
        [_argument(setting) for setting in command(whole)],
        [_variable(entry) for entry in environment(whole)],
    )
    return _placed(made, spec, whole)


def explain_unset(spec: ServiceSpec, profile: ServingProfile | None = None) -> Explanation:
    """What it has not: every other argument, and every other variable that would have an effect."""
    whole = with_profile(spec, profile)
    settings, entries = command(whole), environment(whole)
    return _placed(
        Explanation(
            list(_unset_arguments(whole, {setting.argument for setting in settings}, entries)),
            list(_unset_variables({entry.name for entry in entries})),
        ),
        spec,
        whole,
    )


def _argument(setting: Setting) -> Explained:
    name, words = setting.argument, list(setting.words)
    return Explained(name, words, _one_line(shlex.join(words)), setting.origin, _reads_argument(name))


def _variable(entry: Entry) -> Explained:
    env, name = dict(entry.env), entry.name
    match env:
        case {"valueFrom": {"secretKeyRef": key}}:
            text = f"{name} = key {key['key']} of Secret {key['name']}"
        case {"valueFrom": {"configMapKeyRef": key}}:
            text = f"{name} = key {key['key']} of ConfigMap {key['name']}"
        case {"valueFrom": {"fieldRef": field}}:
            text = f"{name} = {field['fieldPath']} of the pod"
        case _:
            env["value"] = as_given(env.get("value", ""))
            text = f"{name}={shlex.quote(env['value'])}"
    return Explained(name, env, _one_line(text), entry.origin, _reads_variable(name))


def _one_line(text: str) -> str:
    return "\\n".join(text.splitlines())


def _reads_argument(name: str) -> Reader:
    if not name:
        return Reader("", status.IMPLEMENTED, "")
    argument = ARGUMENTS[name]
    found = status.status_of(argument)
    return Reader(argument.group, found.status, found.reason)


def _reads_variable(name: str) -> Reader:
    variable = envs.BY_NAME.get(name)
    if variable is None:
        return Reader(OTHERS, status.IMPLEMENTED, "")
    part = HEADINGS[variable.category]
    if (flag := variable.prefer_argument) and (twin := SERVE.find(flag.removeprefix("--"))):
        part = f"{twin.group}, as {flag}"
    return Reader(part, variable.status, variable.reason)


def _unset_arguments(spec: ServiceSpec, given: set[str], entries: list[Entry]) -> Iterator[Explained]:
    """As the server has them. What only a Secret knows is null."""
    resolved = resolved_of(spec)
    for name, value in resolved.redacted().items():
        argument = ARGUMENTS[name]
        if name in given or argument.positional:
            continue
        origin = DEFAULT
        if twin := next((entry for entry in entries if entry.name in argument.twins), None):
            origin = derived(twin.origin.field, f"{twin.name} says the same")
        elif value != argument.default:
            origin = derived("", "follows from other arguments")
        yield Explained(name, value, _default(argument.flag, value), origin, _reads_argument(name))


def _unset_variables(given: set[str]) -> Iterator[Explained]:
    for variable in envs.VARIABLES:
        name, value = variable.name, variable.default
        if name not in given and variable.status == status.IMPLEMENTED:
            yield Explained(name, value, _default(name, value), DEFAULT, _reads_variable(name))


def _default(name: str, value: Any) -> str:
    return f"{name} = {json.dumps(value, ensure_ascii=False)}"


def _placed(made: Explanation, spec: ServiceSpec, whole: ServiceSpec) -> Explanation:
    """The same, with the origins that are the profile's: where the document itself has another value."""

    def of_profile(origin: Origin) -> bool:
        path = origin.field.removeprefix("spec.").replace("[", ".[").split(".")
        return path[0] in map(camel, PARTS) and _at(spec, path) != _at(whole, path)

    def placed(one: Explained) -> Explained:
        origin = replace(one.origin, source=Source.PROFILE)
        return replace(one, origin=origin) if of_profile(one.origin) else one

    return Explanation(list(map(placed, made.arguments)), list(map(placed, made.environment)))


def _at(node: Any, path: list[str]) -> Any:
    """What stands at a path such as env, [NAME]."""
    for key in path:
        if key.startswith("["):
            node = next((item for item in node if item.name == key[1:-1]), None)
        else:
            node = next(getattr(node, one.name) for one in fields(node) if camel(one.name) == key)
    return node
