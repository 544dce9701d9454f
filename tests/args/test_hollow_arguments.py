"""No argument is taken and then read by nobody: from its declaration a way leads to code that acts."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

from slipway.api.configure import Settings
from slipway.args.declare import Disposition
from slipway.args.schema import ARGUMENTS
from slipway.engine.config import EngineConfig

RUNTIME = Path(__file__).parents[2] / "runtime" / "slipway"
RESOLVED = {"arguments", "resolved"}
"""What the resolved arguments are called where they are read."""
READ_WHILE_RESOLVED = {"config", "model_tag", "dry_run", "help", "runner", "convert"}
READ_BY_COPIES_HERE = {"data_parallel_size_local"}
"""By a function of the arguments that the server calls, as their rules do."""
ONE_MEANING = {"scheduler_cls"}
"""Of these only such values are accepted as say what happens anyway; all others are refused."""
READ_OF_BOTH = "text/open.py"
"""Reads of the engine's configuration and of the API's settings alike, as `settings`."""


class Read(NamedTuple):
    """`whole.part`, or `whole["part"]` where it `is_item`, in the file `place`."""

    place: str
    whole: str
    part: str
    is_item: bool


@cache
def reads() -> tuple[Read, ...]:
    """All of the server's: what makes a pod of the arguments is no server."""
    found = []
    for path in RUNTIME.rglob("*.py"):
        place = path.relative_to(RUNTIME).as_posix()
        if place.startswith("service/"):
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            match node:
                case ast.Subscript(value=whole, slice=ast.Constant(value=str(part))):
                    found.append(Read(place, last_name(whole), part, True))
                case ast.Attribute(value=whole, attr=part, ctx=ast.Load()):
                    found.append(Read(place, last_name(whole), part, False))
    return tuple(found)


def last_name(node: ast.expr) -> str:
    """`front.settings` → settings"""
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name.lstrip("_")
    return ""


def arguments_read() -> set[str]:
    """Names of arguments in `arguments["name"]`, where the server is told what was resolved."""
    return {
        read.part
        for read in reads()
        if read.is_item and read.whole in RESOLVED and not read.place.startswith("args/")
    }


def fields_read(told: str) -> set[str]:
    """Attributes of what is called `config` or `settings`, wherever it is not filled in."""
    return {
        read.part
        for read in reads()
        if not read.is_item
        and read.whole in (told, "settings" if read.place == READ_OF_BOTH else told)
        and read.place != "api/configure.py"
    }


def test_every_implemented_argument_is_read_by_the_server() -> None:
    told = {*EngineConfig.__annotations__, *Settings.__annotations__}  # by name: the other test holds them
    read = arguments_read() | told | READ_WHILE_RESOLVED | READ_BY_COPIES_HERE
    hollow = {
        name
        for name, argument in ARGUMENTS.items()
        if argument.disposition is Disposition.IMPLEMENT
        and not (argument.unbuilt and not argument.unbuilt.works)
        and not (argument.replacement or argument.short_for or argument.parts)
        and name not in read
    }
    assert hollow == ONE_MEANING


@pytest.mark.parametrize(("name", "told"), [("config", EngineConfig), ("settings", Settings)])
def test_what_the_engine_and_the_api_are_told_is_read(name: str, told: type) -> None:
    assert set(told.__annotations__) - fields_read(name) == set()
