"""What `slipway bench` declares: each option has a help text and acts."""

from __future__ import annotations

from pathlib import Path

import pytest

import slipway.bench
from slipway import envs
from slipway.api.configure import engine_config
from slipway.args import Resolved, resolve
from slipway.args.declare import Argument, Disposition
from slipway.args.schema import ARGUMENTS, BENCH, OF_ANSWERS, help_text

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


class Watched:
    """Arguments that know which of them were asked for."""

    def __init__(self, resolved: Resolved) -> None:
        self.resolved, self.given, self.read = resolved, resolved.given, set()

    def __getitem__(self, name: str) -> object:
        self.read.add(name)
        return self.resolved[name]

    def redacted(self) -> dict[str, object]:
        return self.resolved.redacted()


READ_WHILE_RESOLVED = {"config", "runner", "convert"}


@pytest.mark.parametrize("kind", ["latency", "throughput"])
def test_what_no_engine_reads_is_known_to_have_no_effect(kind):
    swapping = ["--preemption-mode", "swap", "--device", "cuda", "--enable-lora"]
    swapping += ["--enable-prompt-adapter", "--max-prompt-adapter-token", "8"]
    watched = Watched(resolve(swapping, {}, schema=BENCH[kind]))
    engine_config(watched, envs.read({}))
    read = watched.read - {"otlp_traces_endpoint"}  # whose spans the server sends, not the engine
    read |= {"data_parallel_size"}  # so many engines are started
    unread = {
        name
        for name, one in BENCH[kind].arguments.items()
        if name in ARGUMENTS and name not in read
        if one.disposition is Disposition.IMPLEMENT
        if not (one.unbuilt or one.refused or one.replacement or one.about_command)
        if not (one.short_for or one.parts or name in READ_WHILE_RESOLVED)
    }
    assert unread == set(OF_ANSWERS)
