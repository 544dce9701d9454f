"""What an image of another version is known to refuse, from the schema that it prints."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from typing import Any

import pytest

from slipway import __version__
from slipway.args.argv import render_argv
from slipway.args.compatibility import misfits, read_schema
from slipway.args.declare import Argument, Kind
from slipway.args.export import declarations, short_schema
from slipway.args.schema import CAMEL
from slipway.cli.main import main

OWN: dict[str, Any] = json.loads(short_schema())


def values(argument: Argument) -> Iterator[object]:
    """Some that this version takes."""
    allowed = [choice for choice in argument.choices if choice not in argument.refused]
    items: list[object] = [*allowed, *(word for word in argument.words if word != "none")]
    match argument.kind:
        case Kind.BOOL:
            items = [True, False]
        case Kind.INT | Kind.HUMAN_INT | Kind.FLOAT if not items or argument.words:
            items += [bound for bound in (argument.minimum, argument.maximum) if bound is not None] or [1]
        case Kind.JSON:
            items = [{"a": 1}]
        case _ if not items:
            items = ["text"]
    yield from ([item] for item in items) if argument.is_list else items


def altered(name: str, **facts: Any) -> dict[str, Any]:
    """This version's schema with other facts of one argument; None takes one away."""
    schema = copy.deepcopy(OWN)
    (arguments,) = (group["arguments"] for group in schema["groups"])
    (one,) = (one for one in arguments if one.get("field") == name)
    one |= facts
    for fact in [fact for fact, value in facts.items() if value is None]:
        del one[fact]
    return schema | {"version": "0.0.9"}


def without(field: str) -> dict[str, Any]:
    (arguments,) = (group["arguments"] for group in OWN["groups"])
    left = [one for one in arguments if one.get("field") != field]
    return {"version": "0.0.9", "groups": [{"arguments": left}]}


def refused(schema: dict[str, Any], words: tuple[str, ...] = (), **engine: object) -> list[str]:
    return list(misfits(read_schema(schema), engine, [*words, *render_argv(engine)]))


@pytest.mark.parametrize("schema", [OWN, declarations()], ids=["short", "long"])
def test_a_version_takes_what_it_takes(schema):
    read = read_schema(schema)
    assert read.version == __version__
    for field, argument in CAMEL.items():
        if argument.disposition == "refuse":
            continue
        for value in (*values(argument), None):
            assert list(misfits(read, {field: value}, render_argv({field: value}))) == [], field


def test_the_label_is_one_line_of_json_and_no_more_than_a_registry_takes(capsys):
    assert main(["--print-schema=short"]) == 0
    printed = capsys.readouterr().out
    assert printed == short_schema() + "\n"
    assert len(printed) < 32768


@pytest.mark.parametrize(
    ("schema", "engine", "said"),
    [
        (
            without("maxNumSeqs"),
            {"maxNumSeqs": 8},
            "spec.engine.maxNumSeqs: version 0.0.9 does not have it.",
        ),
        (
            altered("dtype", choices=["auto", "half"]),
            {"dtype": "bfloat16"},
            "spec.engine.dtype: version 0.0.9 takes one of auto, half, not 'bfloat16'.",
        ),
        (
            altered("seed", maximum=7),
            {"seed": 8},
            "spec.engine.seed: version 0.0.9 takes 7 at most, not 8.",
        ),
        (
            altered("gpuMemoryUtilization", exclusive_minimum=0.5),
            {"gpuMemoryUtilization": 0.5},
            "spec.engine.gpuMemoryUtilization: version 0.0.9 takes more than 0.5, not 0.5.",
        ),
        (
            altered("servedModelName", type="str"),
            {"servedModelName": ["a"]},
            "spec.engine.servedModelName: version 0.0.9 takes one value.",
        ),
        (
            altered("enforceEager", type="int"),
            {"enforceEager": True},
            "spec.engine.enforceEager: version 0.0.9 takes int, not True.",
        ),
        (
            altered("enforceEager", status="refused"),
            {"enforceEager": True},
            "spec.engine.enforceEager: version 0.0.9 refuses it.",
        ),
    ],
)
def test_what_another_version_does_not_take_is_named_with_the_field(schema, engine, said):
    (sentence,) = refused(schema, **engine)
    assert sentence.startswith(said)


def test_a_flag_of_the_operators_own_is_named_by_itself():
    schema = altered("device", field=None, flag="--other")
    (sentence,) = refused(schema, ("model", "--device", "cuda", "--port", "8000"))
    assert sentence == "--device: the operator gives it, and version 0.0.9 does not have it."


def test_a_form_that_was_added_later_is_named():
    schema = altered("enablePrefixCaching", no_form=None)
    (sentence,) = refused(schema, enablePrefixCaching=False)
    assert sentence.startswith("--no-enable-prefix-caching: ")


@pytest.mark.parametrize(
    "declared", [{}, {"version": "1", "groups": 3}, {"groups": []}, {"version": 1, "groups": [[]]}]
)
def test_what_is_no_schema_is_said_to_be_none(declared):
    with pytest.raises(ValueError, match="Give what the image prints with --print-schema=short"):
        read_schema(declared)
