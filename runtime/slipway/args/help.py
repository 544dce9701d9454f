"""Help of the commands whose arguments are declared, in five forms."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Iterable

from slipway.args.declare import LARGEST_INT32, Argument, Disposition, Group, Kind
from slipway.args.schema import Schema, help_text

FORMS = "--help=listgroup, =GROUP, =ARGUMENT, =KEYWORD and =page narrow it or page it."


def show(schema: Schema, topic: str) -> int:
    """Print what `--help=topic` asks for; "" is everything. Always status 0."""
    if topic.lower() == "page":
        import pydoc

        pydoc.pager(full(schema))
    else:
        print(text(schema, topic))
    return 0


def text(schema: Schema, topic: str) -> str:
    """Reserved word, then group, then argument, then keyword; case, dash, underscore and space are one."""
    word = _spelled(topic).lstrip("-")
    if not topic:
        return full(schema)
    if word == "listgroup":
        return list_groups(schema)
    for group in schema.groups:
        if group.name.lower() == word:
            return one_group(group)
    found = schema.find(word.removeprefix("no-")) or schema.find(word)
    if found is not None:
        return describe(found)
    matches = [argument for argument in schema.arguments.values() if word in _searched(argument)]
    if matches:
        return "\n\n".join(map(describe, matches))
    return (
        f"No group and no argument of `slipway {schema.command}` is called {topic!r} or mentions it.\n{FORMS}"
    )


def _searched(argument: Argument) -> str:
    """Its name and its summary, in the spelling of a topic."""
    summary, _, _ = help_text(argument).partition("\n\n")
    return _spelled(f"{argument.name} {summary}")


def _spelled(text: str) -> str:
    return "-".join(text.lower().replace("_", "-").split())


def full(schema: Schema) -> str:
    """Usage and every group."""
    usage = f"usage: slipway {schema.command} {schema.operands}[--argument [VALUE]]..."
    an_object = "hf-overrides" if schema.of_engine else "extra-body"
    notes = (
        "Dashes and underscores are the same in long names. Integers marked so may be written 1k "
        f"(1000), 1K (1024) or 25.6k. JSON objects are also given key by key: --{an_object}.key VALUE."
    )
    groups = [one_group(group) for group in schema.groups]
    return "\n\n".join([usage, _wrapped(f"{notes} {FORMS}"), *groups])


def list_groups(schema: Schema) -> str:
    """Names of the groups, and what each is about."""
    width = max(len(group.name) for group in schema.groups)
    return "\n".join(f"{group.name:<{width}}  {group.summary.splitlines()[0]}" for group in schema.groups)


def one_group(group: Group) -> str:
    """A group with all its arguments."""
    title = f"{group.name}: {group.summary}"
    return "\n\n".join([_wrapped(title), *map(describe, group.arguments)])


def describe(argument: Argument) -> str:
    """Spelling, text and bounds of one argument."""
    paragraphs = [" ".join(part.split()) for part in help_text(argument).split("\n\n")]
    facts = "; ".join([*facts_of(argument), *_fate(argument)])
    if facts:
        paragraphs.append(f"[{facts}]")
    body = "\n".join(_wrapped(paragraph, 8) for paragraph in paragraphs)
    return f"    {spelling(argument)}\n{body}"


def spelling(argument: Argument) -> str:
    """`--tensor-parallel-size, -tp N`"""
    names = [argument.flag, *argument.aliases]
    if argument.negatable:
        names.insert(1, f"--no-{argument.flag[2:]}")
    joined = ", ".join(names)
    value = placeholder(argument)
    return f"{joined} {value}" if value and not argument.positional else joined


def placeholder(argument: Argument) -> str:
    """What stands for the value in a usage line."""
    match argument.kind:
        case Kind.BOOL:
            value = "TRUE|FALSE" if argument.optional_value else ""
        case Kind.INT | Kind.HUMAN_INT:
            value = "N"
        case Kind.FLOAT:
            value = "X"
        case Kind.JSON | Kind.STR_OR_JSON:
            value = "NAME=PATH|JSON" if argument.item_pair else "JSON"
        case Kind.STR:
            value = "NAME" if argument.choices else "TEXT"
        case kind:
            value = kind.upper()
    if argument.json_array:
        return "JSON"
    if argument.optional_value:
        return f"[{value}]"
    return f"{value} ..." if argument.is_list and not argument.append else value


def facts_of(argument: Argument) -> Iterable[str]:
    """Choices, bounds and default, as short phrases."""
    if argument.choices:
        yield "one of " + ", ".join(map(str, argument.choices))
    yield from _bounds(argument)
    if argument.unit:
        yield f"in {argument.unit}"
    if argument.kind is Kind.HUMAN_INT:
        yield "1k is 1000, 1K is 1024"
    if argument.keys:
        yield "keys " + ", ".join(argument.keys)
    if argument.requires:
        yield "needs " + ", ".join(f"--{name.replace('_', '-')}" for name in argument.requires)
    if argument.twins:
        yield "environment " + ", ".join(argument.twins)
    if argument.default not in (None, False, [], {}) and argument.kind is not Kind.JSON:
        yield f"default {_shown(argument.default)}"


def _fate(argument: Argument) -> Iterable[str]:
    """What becomes of the argument, where it is not simply done."""
    match argument.disposition:
        case Disposition.WARN:
            yield f"has no effect: {argument.reason}"
        case Disposition.REFUSE:
            yield f"refused: {argument.reason}"
    if argument.cuda_only:
        yield "acts on CUDA only"
    if argument.unbuilt:
        lacks = argument.unbuilt
        yield f"has no effect: {lacks.idle}" if lacks.tunes else f"not supported yet: {lacks.feature}"


def _bounds(argument: Argument) -> Iterable[str]:
    if argument.above is not None:
        yield f"above {argument.above:g}"
    if argument.minimum is not None and argument.minimum > -LARGEST_INT32:
        yield f"at least {argument.minimum:g}"
    if argument.maximum is not None and argument.maximum < LARGEST_INT32:
        yield f"at most {argument.maximum:g}"


def _shown(value: object) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)


def _wrapped(paragraph: str, indent: int = 0) -> str:
    width = min(max(shutil.get_terminal_size((100, 24)).columns, 60), 120)
    return textwrap.fill(
        paragraph,
        width,
        initial_indent=" " * indent,
        subsequent_indent=" " * indent,
        break_on_hyphens=False,
        break_long_words=False,
    )
