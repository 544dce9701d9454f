"""The manual's page on arguments."""

from __future__ import annotations

from collections.abc import Iterable

from slipway.args.declare import Argument, Group
from slipway.args.foreign import FOREIGN
from slipway.args.help import facts_of, placeholder
from slipway.args.schema import SERVE, help_text
from slipway.args.status import IMPLEMENTED, arguments, counted, of_foreign, status_of

HEAD = """\
<!-- Generated from slipway.args by `make generate`. -->
# Arguments of `slipway serve`

{counts}.

`slipway args --status` prints the list, `slipway serve --help=WORD` looks one up, and
`slipway serve MODEL … --dry-run` prints what a command line resolves to.

## Spelling

- Dashes and underscores are the same in long names; `--flag=value` is `--flag value`, `-O3` is `-O 3`.
- A switch takes no value; where it has a `--no-` form, that turns it off. Of an argument given twice
  the last counts, unless it is one that is repeated for each item.
- Integers marked *human* may be written `1k` (1000), `1K` (1024), `25.6k` (25600), with k, m, g or K, M, G.
- A JSON object is given whole, `--hf-overrides '{{"a": {{"b": 1}}}}'`, or key by key, `--hf-overrides.a.b 1`;
  single keys are laid over the whole.
- A list takes several values, `--served-model-name one two`, or one JSON array.
- A configuration file (`--config FILE.yaml`) maps long names without dashes to values. The command line
  wins over it, and it wins over the defaults. `true` is the bare flag and `false` its `--no-` form.
- In a service document the same names stand under `spec.engine` in camelCase: `maxModelLen`.

## Groups

"""


OTHERS = """\
## Flags of vLLM that are no arguments here

Flags of vLLM 0.33. Of those that are refused, a value that asks for nothing passes, such as
`--decode-context-parallel-size 1`.

| flag | today | why |
| --- | --- | --- |
"""


def manual() -> str:
    """The page docs/reference/arguments.md."""
    total = f"{len(arguments())} arguments: {counted(arguments())}"
    links = "\n".join(
        f"- [{group.name}](#{group.name.lower()}): {group.summary.splitlines()[0]}" for group in SERVE.groups
    )
    sections = "\n".join(_section(group) for group in SERVE.groups)
    return f"{HEAD.format(counts=total)}{links}\n\n{sections}\n{_others()}"


def _others() -> str:
    """The flags of vLLM that are no arguments here."""
    rows = "\n".join(
        f"| `{entry.name}` | {entry.status} | {entry.reason} |" for entry in map(of_foreign, FOREIGN.values())
    )
    return f"{OTHERS}{rows}\n"


def _section(group: Group) -> str:
    entries = "\n".join(_entry(argument) for argument in group.arguments)
    return f"## {group.name}\n\n{group.summary}\n\n{entries}"


def _entry(argument: Argument) -> str:
    lines = [f"### `{argument.flag}`", "", f"`{_usage(argument)}`", "", help_text(argument), ""]
    lines += [f"- {fact}" for fact in _facts(argument)]
    return "\n".join(lines).rstrip() + "\n"


def _usage(argument: Argument) -> str:
    names = [argument.flag, *argument.aliases]
    if argument.negatable:
        names.append(f"--no-{argument.flag[2:]}")
    value = "" if argument.positional else placeholder(argument)
    return " | ".join(f"{name} {value}" if _takes(name, value) else name for name in names)


def _takes(name: str, value: str) -> bool:
    return bool(value) and not name.startswith("--no-")


def _facts(argument: Argument) -> Iterable[str]:
    for fact in facts_of(argument):
        yield f"human integer: {fact}" if fact.startswith("1k is") else fact
    if not argument.in_spec:
        yield "not part of `spec.engine`"
    if argument.security_sensitive:
        yield "**security**: it runs code or opens files that others chose"
    state = status_of(argument)
    if state.status != IMPLEMENTED or state.reason:
        yield f"today: {state.status}" + (f" ({state.reason})" if state.reason else "")
