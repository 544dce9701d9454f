"""What `spec.env` may hold, in CEL, from the registry of variables.

Refused here is what no cluster permits. What depends on its policy is the operator's to say
(`slipway.service.firewall`).
"""

from __future__ import annotations

from collections import defaultdict

from slipway import envs
from slipway.args.schema import ARGUMENTS
from slipway.envs import Variable
from slipway.envs.variable import TRUE_WORDS
from slipway.service.crd.rules import Rule, given, listed, quoted
from slipway.service.devices import VENDORS
from slipway.service.firewall import FETCH_SECRET, FROM_SECRETS

ITEM = "spec.env[]"
OF_OTHERS = ("spec.initContainers[].env[]", "spec.sidecars[].env[]")
"""Entries of containers that are no servers: what their variables mean is their own affair."""
NEVER = ("reject", "operator-only")
SOURCES = ("value", "secret", "configMap", "field")


def variable_rules() -> list[Rule]:
    """Rules for an entry, for the list, and between the list and the rest of the spec."""
    return [
        *(rule for item in (ITEM, *OF_OTHERS) for rule in (_one_source(item), _from_secrets_alone(item))),
        _known(),
        *_never(),
        _one_hub_token(),
        *(_one_place(place, names) for place, names in _places().items()),
        *(_for_devices(kind, names) for kind, names in _by_device().items()),
        *(_twin(variable) for variable in envs.VARIABLES if _has_twin(variable)),
    ]


def _one_source(item: str) -> Rule:
    count = " + ".join(f"(has(self.{source}) ? 1 : 0)" for source in SOURCES)
    message = f"needs exactly one of {', '.join(SOURCES[:-1])} and {SOURCES[-1]}"
    return Rule(item, f"{count} == 1", f"a variable {message}", f"self.name + ' {message}'", field=".name")


def _known() -> Rule:
    prefixed = " || ".join(f"self.name.startsWith('{prefix}')" for prefix in envs.PREFIXES)
    names = [variable.name for variable in envs.VARIABLES if variable.name.startswith(envs.PREFIXES)]
    message = "does not exist: the runtime has no such variable. `slipway args` lists all"
    return Rule(
        ITEM,
        f"!({prefixed}) || self.name in {listed(names)}",
        f"a VLLM_ or SLIPWAY_ variable of this name {message}",
        f"self.name + ' {message}'",
        field=".name",
    )


def _never() -> list[Rule]:
    """One rule for each reason, over all variables that share it."""
    by_reason: dict[str, list[str]] = defaultdict(list)
    for variable in envs.VARIABLES:
        if variable.action in NEVER:
            by_reason[variable.action_reason].append(variable.name)
        elif variable.status == "refused":
            by_reason[variable.reason].append(variable.name)
    return [_refused(reason, names) for reason, names in by_reason.items()]


def _refused(reason: str, names: list[str]) -> Rule:
    shown = ", ".join(names)
    return Rule(
        ITEM,
        f"!(self.name in {listed(names)})",
        f"{shown} may not be set: {reason}",
        f"self.name + {quoted(f' may not be set: {reason}')}",
        field=".name",
    )


def _from_secrets_alone(item: str) -> Rule:
    names = [variable.name for variable in envs.VARIABLES if variable.action == "secret-only"]
    message = "may not be set here: its value belongs into a Secret, named with secret: {name, key}"
    return Rule(
        item,
        f"has(self.secret) || !(self.name in {listed(names)})",
        f"a credential {message}",
        f"self.name + {quoted(' ' + message)}",
        field=".name",
    )


def _one_hub_token() -> Rule:
    older, name = "HUGGING_FACE_HUB_TOKEN", "HF_TOKEN"
    return Rule(
        "spec.env",
        f"!self.exists(e, e.name == '{older}') || !self.exists(e, e.name == '{name}')",
        f"{older} is {name}'s older name. Keep {name}",
    )


def _places() -> dict[str, list[str]]:
    """Field of the spec → the variables that it sets."""
    places: dict[str, list[str]] = defaultdict(list)
    for name, place in FROM_SECRETS.items():
        places[f"secrets.{place}"].append(name)
    return places | {"model.s3.secret": list(FETCH_SECRET)}


def _by_device() -> dict[str, list[str]]:
    """Kind of device → the variables that mean something on it alone."""
    kinds: dict[str, list[str]] = defaultdict(list)
    for variable in envs.VARIABLES:
        if variable.action == "allow-if-device" and variable.device:
            kinds[variable.device].append(variable.name)
    return kinds


def _for_devices(kind: str, names: list[str]) -> Rule:
    # Whether there are claims no rule can see: without a vendor the operator has the last word.
    allowed = {
        "cpu": f"!({given('devices.vendor')})",
        "cuda": "has(self.devices) && (!has(self.devices.vendor) || self.devices.vendor == 'nvidia')",
    }
    of_profile = f"has(self.profile) && !({given('devices.vendor')})"
    vendors = listed([vendor for vendor, facts in VENDORS.items() if facts.kind == kind])
    runs_there = allowed.get(kind, f"{given('devices.vendor')} && self.devices.vendor in {vendors}")
    return Rule(
        "spec",
        f"!has(self.env) || ({runs_there}) || ({of_profile}) || "
        f"!self.env.exists(e, e.name in {listed(names)})",
        f"{', '.join(names)}: for {kind} alone, and this service runs on something else",
        field=".env",
    )


def _one_place(place: str, names: list[str]) -> Rule:
    return Rule(
        "spec",
        f"!has(self.env) || !({given(place)}) || !self.env.exists(e, e.name in {listed(names)})",
        f"{' or '.join(names)} in env is what {place} sets. Keep one of them",
        field=".env",
    )


def _has_twin(variable: Variable) -> bool:
    argument = variable.prefer_argument and ARGUMENTS[_name(variable.prefer_argument)]
    return bool(argument and argument.in_spec) and variable.action not in (*NEVER, "secret-only")


def _twin(variable: Variable) -> Rule:
    """An argument and its twin in the environment may not say different things."""
    assert variable.prefer_argument
    field = f"self.engine.{ARGUMENTS[_name(variable.prefer_argument)].camel}"
    match variable.type:
        case "bool":
            differs = f"(e.value.lowerAscii() in {listed(sorted(TRUE_WORDS))}) != {field}"
        case "enum":
            differs = f"e.value.lowerAscii() != {field}.lowerAscii()"
        case _:
            differs = f"e.value != {field}"
    shown = field.removeprefix("self.")
    return Rule(
        "spec",
        f"!has(self.env) || !({given(shown)}) || "
        f"!self.env.exists(e, e.name == '{variable.name}' && has(e.value) && {differs})",
        f"{variable.name} in env and {shown} say different things. Keep {shown}",
        field=".env",
    )


def _name(flag: str) -> str:
    return flag.removeprefix("--").replace("-", "_")
