"""Whether an image of another version takes the arguments of a document, by the schema that it carries.

The schema is what `slipway --print-schema` of the image prints, and without the texts its label LABEL. Names,
types, choices and bounds are judged by it; what several arguments mean together, the image alone knows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from slipway.args.status import REFUSED
from slipway.args.values import near

LABEL = "dev.slipway.schema"
"""Of an image: what `slipway --print-schema=short` prints."""

DECIDING = (
    *("flag", "no_form", "field", "type", "status", "choices", "open_choices", "words", "refused_values"),
    *("minimum", "exclusive_minimum", "maximum"),
)
"""Facts of an argument that are read here."""

Facts = Mapping[str, Any]
"""Of one argument, as `declaration` gives them."""


@dataclass(frozen=True, slots=True)
class ImageSchema:
    """The arguments that an image takes."""

    version: str
    fields: Mapping[str, Facts]
    """Those of `spec.engine`."""
    flags: frozenset[str]
    """Every spelling that its command line has."""


def read_schema(declared: Mapping[str, Any]) -> ImageSchema:
    """Raises ValueError for what no image prints."""
    try:
        listed = [one for group in declared["groups"] for one in group["arguments"]]
        return ImageSchema(
            str(declared["version"]),
            {one["field"]: one for one in listed if one.get("field")},
            frozenset(flag for one in listed for flag in (one["flag"], one.get("no_form", ""))),
        )
    except (KeyError, TypeError, AttributeError):
        raise ValueError(
            "it is not the schema of an image. Give what the image prints with --print-schema=short."
        ) from None


def misfits(schema: ImageSchema, engine: Mapping[str, object], words: Sequence[str]) -> Iterator[str]:
    """What the image would refuse: the place, and why.

    engine  of the document, by field
    words   the command line that stands for it, which the operator adds some to
    """
    for field, value in engine.items():
        if wrong := _wrong(schema, field, value):
            yield f"spec.engine.{field}: {wrong}"
    named = {word.partition("=")[0] for word in words if word.startswith("--")}
    for flag in sorted(named - schema.flags - {_flag(field) for field in engine}):
        yield f"{flag}: the operator gives it, and version {schema.version} does not have it."


def _wrong(schema: ImageSchema, field: str, value: object) -> str:
    """What is wrong with one field; empty where nothing is, or nothing that can be known here."""
    version, facts = f"version {schema.version}", schema.fields.get(field)
    if value is None:
        return ""
    if facts is None:
        return f"{version} does not have it.{near(field, schema.fields)}"
    if facts.get("status") == REFUSED:
        return f"{version} refuses it{_because(facts.get('reason'))}."
    is_list = str(facts["type"]).startswith("list[")
    if is_list != isinstance(value, list):
        return f"{version} takes {'a list' if is_list else 'one value'}."
    items = value if isinstance(value, list) else [value]
    return next(filter(None, (_unfit(facts, version, item) for item in items)), "")


def _unfit(facts: Facts, version: str, value: object) -> str:
    if isinstance(value, str) and value.lower() in facts.get("words", ()):
        return ""
    if value in facts.get("refused_values", ()):
        return f"{version} refuses {value!r}."
    choices = facts.get("choices", ())
    # A plugin brings others, and options may follow a name behind a colon.
    if choices and not facts.get("open_choices") and str(value).partition(":")[0] not in map(str, choices):
        return f"{version} takes one of {', '.join(map(str, choices))}, not {value!r}."
    if isinstance(value, bool) != (facts["type"].removeprefix("list[").removesuffix("]") == "bool"):
        return f"{version} takes {facts['type']}, not {value!r}."
    match value:
        case int() | float() if str(value) not in facts.get("words", ()):
            least, above, most = (facts.get(name) for name in ("minimum", "exclusive_minimum", "maximum"))
            if least is not None and value < least:
                return f"{version} takes {least} at least, not {value}."
            if above is not None and value <= above:
                return f"{version} takes more than {above}, not {value}."
            if most is not None and value > most:
                return f"{version} takes {most} at most, not {value}."
    return ""


def _because(reason: object) -> str:
    return f": {reason}" if reason else ""


def _flag(field: str) -> str:
    """maxModelLen → --max-model-len"""
    return "--" + "".join(f"-{letter.lower()}" if letter.isupper() else letter for letter in field)
