"""What a rule is, and the kinds of rules of which there are several."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from slipway.args.declare import Argument
from slipway.args.schema import ARGUMENTS
from slipway.args.values import near

Values = Mapping[str, Any]
Given = frozenset[str]
Finding = Callable[[Values, Given], str | None]


@dataclass(frozen=True, slots=True)
class Rule:
    """`finds` returns a sentence where the rule is broken.

    A rule that only `warns` names a setting without effect or a hazard. `cel` is the same rule over
    `spec.engine`, where every field that it reads is one; `message` is what the API server says.
    """

    argument: str
    finds: Finding
    warns: bool = False
    cel: str = ""
    message: str = ""


def flag(name: str) -> str:
    return ARGUMENTS[name].flag


def camel(*names: str) -> tuple[str, ...] | None:
    """Their fields in `spec.engine`, where all of them are in it."""
    arguments = [ARGUMENTS[name] for name in names]
    return tuple(a.camel for a in arguments) if all(a.in_spec for a in arguments) else None


def _asked(values: Values, name: str) -> bool:
    """Given a value that says something, itself or through the key that replaced it."""
    target, _, key = ARGUMENTS[name].replacement.partition(".")
    return bool(values[name]) or bool(key and (values[target] or {}).get(key) is not None)


def needs(argument: Argument, needed: str) -> Rule:
    """Refused without the other."""

    def finds(values: Values, given: Given) -> str | None:
        if not values[argument.name] or _asked(values, needed):
            return None
        return f"{argument.flag} needs {flag(needed)}. Give both, or neither."

    fields = camel(argument.name, needed)
    cel = ""
    if fields:
        asks = f"has(self.{fields[0]})" + (f" && self.{fields[0]}" if argument.kind == "bool" else "")
        cel = f"!({asks}) || has(self.{fields[1]})"
        target, _, key = ARGUMENTS[needed].replacement.partition(".")
        if key:
            config = ARGUMENTS[target].camel
            cel += f" || (has(self.{config}) && has(self.{config}.{key}))"
    return Rule(argument.name, finds, cel=cel, message=f"{argument.camel} needs {ARGUMENTS[needed].camel}")


def without_effect(argument: Argument, needed: str) -> Rule:
    """A setting of something that is not on."""

    def finds(values: Values, given: Given) -> str | None:
        if argument.name not in given or not values[argument.name] or values[needed]:
            return None
        return f"{argument.flag} has no effect without --{needed.replace('_', '-')}."

    return Rule(argument.name, finds, warns=True)


def at_most(lower: str, upper: str, why: str) -> Rule:
    """One number may not exceed another, where both are known."""

    def finds(values: Values, given: Given) -> str | None:
        low, high = values[lower], values[upper]
        if low is None or high is None or low <= high:
            return None
        return (
            f"{flag(lower)} {low} is larger than {flag(upper)} {high}: {why} "
            "Lower the first or raise the second."
        )

    cel = ""
    if camel(lower, upper):
        guards, terms = [], []
        for argument in (ARGUMENTS[lower], ARGUMENTS[upper]):
            field = f"self.{argument.camel}"
            if argument.default is None:
                guards.append(f"!has({field}) || ")
                terms.append(field)
            else:
                terms.append(f"(has({field}) ? {field} : {argument.default})")
        cel = f"{''.join(guards)}{terms[0]} <= {terms[1]}"
    message = f"{ARGUMENTS[lower].camel} may not exceed {ARGUMENTS[upper].camel}"
    return Rule(lower, finds, cel=cel, message=message)


def known_or_plugin(argument: Argument) -> Rule:
    """A name outside the list needs the plugin that may define it."""

    def finds(values: Values, given: Given) -> str | None:
        name = values[argument.name]
        if name is None or name in argument.choices or values[argument.extended_by]:
            return None
        return (
            f"{argument.flag} {name!r} is not one of {', '.join(argument.choices)}."
            f"{near(name, argument.choices)} Another name needs {flag(argument.extended_by)}."
        )

    names = ", ".join(f"'{name}'" for name in argument.choices)
    plugin = ARGUMENTS[argument.extended_by].camel
    return Rule(
        argument.name,
        finds,
        cel=f"!has(self.{argument.camel}) || has(self.{plugin}) || self.{argument.camel} in [{names}]",
        message=f"{argument.camel} is not a known name, and no {plugin} is given",
    )
