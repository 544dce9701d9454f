"""The manual's page on environment variables."""

from __future__ import annotations

from slipway.envs.environment import VARIABLES
from slipway.envs.variable import Category, Status, Variable

HEADINGS: dict[Category, str] = {
    "runtime": "The running server",
    "credential": "Credentials",
    "slipway": "Slipway's own",
    "distributed-internal": "Parts of a server that find each other",
    "other-hardware": "One kind of device",
    "debug/test": "Debugging and tests",
    "build-time": "Builds",
}
STATUSES: tuple[Status, ...] = (
    "implemented",
    "not built yet",
    "accepted with a warning",
    "refused",
)
IN_A_CLUSTER = {
    "allow": "yes",
    "allow-if-device": "yes, on {device}",
    "operator-default": "yes; the operator sets it otherwise",
    "operator-only": "no; the operator sets it",
    "secret-only": "from a Secret only",
    "reject": "no",
    "reject-unless-opt-in": "only where the operator permits it",
}
HEAD = """\
<!-- Generated from slipway.envs by `make generate`. -->
# Environment variables

An argument wins over the variable that says the same, with a warning where they differ. A variable that
is set and has no effect is reported at start with the reason; so is an unknown name that begins with
`VLLM_` or `SLIPWAY_`. Switches take 0 or 1.
"""


def manual() -> str:
    """The page docs/reference/environment.md."""
    documented = [variable for variable in VARIABLES if not variable.own]
    counts = ", ".join(f"{_count(status, documented)} {status}" for status in STATUSES)
    parts = [HEAD, f"{len(documented)} variables of vLLM's documents: {counts}.\n"]
    for category, heading in HEADINGS.items():
        chosen = sorted((v for v in VARIABLES if v.category == category), key=lambda v: v.name)
        parts.append(f"## {heading}\n\n" + "\n".join(map(_entry, chosen)))
    return "\n".join(parts)


def _count(status: Status, variables: list[Variable]) -> int:
    return sum(variable.status == status for variable in variables)


def _entry(variable: Variable) -> str:
    facts: list[str] = [variable.type]
    if variable.options:
        facts.append(", ".join(variable.options))
    if variable.unit:
        facts.append(f"in {variable.unit}")
    facts.append(f"default {_default(variable)}")
    rule = IN_A_CLUSTER[variable.action].format(device=variable.device)
    today = variable.status + (f": {variable.reason}" if variable.reason else "")
    lines = [f"### `{variable.name}`", "", variable.summary, "", f"- {'; '.join(facts)}"]
    if variable.prefer_argument:
        lines.append(f"- argument: `{variable.prefer_argument}`")
    lines.append(f"- today: {today}" + (f"; {variable.caveat}" if variable.caveat else ""))
    lines.append(f"- in `spec.env`: {rule} ({variable.action_reason})")
    return "\n".join((*lines, ""))


def _default(variable: Variable) -> str:
    if variable.effective_default:
        return variable.effective_default
    if variable.default is None:
        return "unset"
    if isinstance(variable.default, bool):
        return str(int(variable.default))
    return f"`{variable.default}`"
