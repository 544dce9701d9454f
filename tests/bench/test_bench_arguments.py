"""What `slipway bench` declares: each option has a help text and acts."""

from __future__ import annotations

from pathlib import Path

import pytest

import slipway.bench
from slipway.args.declare import Argument
from slipway.args.schema import ARGUMENTS, BENCH, help_text

OWN = {
    argument.name: argument
    for schema in BENCH.values()
    for argument in schema.arguments.values()
    if argument.group.startswith("Bench")
}
SOURCES = "".join(path.read_text() for path in Path(str(slipway.bench.__file__)).parent.glob("*.py"))


@pytest.mark.parametrize("argument", OWN.values(), ids=OWN)
def test_an_option_is_explained_and_read(argument: Argument):
    assert help_text(argument).endswith(".")
    assert f'"{argument.name}"' in SOURCES.replace("'", '"')


def test_no_argument_of_an_engine_has_the_name_of_an_option_beside_it():
    for kind in ("latency", "throughput"):
        own = {name for name, one in BENCH[kind].arguments.items() if one.group.startswith("Bench")}
        assert own & set(ARGUMENTS) == {"model"}
