"""Help and version of every command."""

from __future__ import annotations

import subprocess
import sys

import pytest
from e2e.ground.patience import scaled

from slipway import __version__
from slipway.args.declare import Argument
from slipway.args.schema import ARGUMENTS, BENCH, RUN_BATCH, SERVE, Schema, help_text
from slipway.cli.main import COMMANDS, main

SCHEMAS = pytest.mark.parametrize("schema", [SERVE, RUN_BATCH], ids=["serve", "run-batch"])


@pytest.fixture
def show(capsys):
    def show(*argv: str) -> str:
        try:
            status = main(argv)
        except SystemExit as exit:  # argparse prints its help this way
            status = exit.code or 0
        assert status == 0
        return str(capsys.readouterr().out)

    return show


def flags_in(text: str) -> set[str]:
    """Flags at the start of an entry."""
    words = (line.split()[0].rstrip(",") for line in text.splitlines() if line.startswith("    --"))
    return set(words)


def flags_of(schema: Schema) -> set[str]:
    return {argument.flag for argument in schema.arguments.values() if not argument.positional}


@pytest.mark.parametrize("argv", [[], ["-h"], ["--help"]])
def test_the_overview_names_every_command(show, argv):
    shown = show(*argv)
    assert all(f"  {name} " in shown for name in COMMANDS)


@pytest.mark.parametrize("flag", ["-v", "--version"])
def test_the_version(show, flag):
    assert show(flag).strip() == __version__


def test_an_unknown_command_gets_a_near_match(capsys):
    assert main(["serv"]) == 2
    assert "'serv' is not a command. Did you mean serve?" in capsys.readouterr().err


@SCHEMAS
@pytest.mark.parametrize("flag", ["--help", "-h"])
def test_plain_help_shows_every_argument(show, schema, flag):
    assert flags_in(show(schema.command, flag)) == flags_of(schema)


@SCHEMAS
def test_help_listgroup_names_the_groups(show, schema):
    names = [line.split()[0] for line in show(schema.command, "--help=listgroup").splitlines()]
    assert names == [group.name for group in schema.groups]


@SCHEMAS
@pytest.mark.parametrize("topic", ["ModelConfig", "modelconfig", "MODELCONFIG"])
def test_help_of_a_group_ignores_case(show, schema, topic):
    expected = {argument.flag for argument in ARGUMENTS.values() if argument.group == "ModelConfig"}
    assert flags_in(show(schema.command, f"--help={topic}")) == expected


@SCHEMAS
@pytest.mark.parametrize("topic", ["max-num-seqs", "max_num_seqs", "--max-num-seqs", "MAX-NUM-SEQS"])
def test_help_of_an_argument_shows_it_alone(show, schema, topic):
    assert flags_in(show(schema.command, f"--help={topic}")) == {"--max-num-seqs"}


@SCHEMAS
@pytest.mark.parametrize("topic", ["max", "MAX", "prefix_caching", "prefix-caching"])
def test_help_of_a_keyword_shows_every_argument_that_contains_it(show, schema, topic):
    word = topic.lower().replace("_", "-")
    expected = {
        argument.flag
        for argument in schema.arguments.values()
        if any(word in part for part in (argument.flag, summary_of(argument)))
    }
    assert len(expected) > 1
    assert flags_in(show(schema.command, f"--help={topic}")) == expected


def summary_of(argument: Argument) -> str:
    return "-".join(help_text(argument).partition("\n\n")[0].lower().replace("_", "-").split())


@SCHEMAS
@pytest.mark.parametrize("topic", ["cache", "KV cache", "kv-cache"])
def test_help_of_a_keyword_finds_it_in_summaries_too(show, schema, topic):
    shown = flags_in(show(schema.command, f"--help={topic}"))
    assert {"--kv-cache-dtype", "--block-size"} <= shown
    assert "--max-num-seqs" not in shown


@SCHEMAS
def test_help_page_shows_everything(show, schema):
    assert flags_in(show(schema.command, "--help=page")) == flags_of(schema)


@SCHEMAS
def test_help_without_a_match_says_so_and_is_no_error(show, schema):
    assert "zebra' or mentions it" in show(schema.command, "--help=zebra")


def test_the_topic_may_follow_as_a_word(show):
    assert flags_in(show("serve", "--help", "max-num-seqs")) == {"--max-num-seqs"}


def test_help_wins_over_what_is_malformed(show):
    assert "usage: slipway serve" in show("serve", "--port", "eighty", "--help")


def test_a_no_form_is_looked_up_as_its_argument(show):
    assert flags_in(show("serve", "--help=no-enable-lora")) == {"--enable-lora"}


def test_an_entry_shows_spelling_bounds_and_fate(show):
    entry = show("serve", "--help=pipeline-parallel-size")
    assert "--pipeline-parallel-size, -pp N" in entry
    assert "[at least 1; default 1]" in entry
    assert "not supported yet: multimodal input" in show("serve", "--help=allowed-local-media-path")
    assert "--no-enable-prefix-caching" in show("serve", "--help=enable-prefix-caching")
    assert "has no effect: there is one block manager" in show("serve", "--help=use-v2-block-manager")


@pytest.mark.parametrize("command", [name for name in COMMANDS if name not in ("serve", "demo", "run-batch")])
def test_every_command_has_help(show, command):
    assert f"usage: slipway {command}" in show(command, "--help")


def test_the_demo_takes_what_serve_takes(show):
    assert flags_in(show("demo", "--help")) == flags_of(SERVE)


@pytest.mark.parametrize("kind", BENCH)
def test_every_measurement_shows_all_its_arguments_by_group_and_one_by_one(show, kind):
    schema = BENCH[kind]
    shown = show("bench", kind, "--help")
    assert shown.startswith(f"usage: slipway bench {kind} [--argument")
    assert flags_in(shown) == flags_of(schema) > {"--help", "--dry-run"}
    groups = show("bench", kind, "--help=listgroup").splitlines()
    assert [line.split()[0] for line in groups] == [group.name for group in schema.groups]
    for argument in schema.arguments.values():
        assert argument.flag in show("bench", kind, f"--help={argument.name}")


def test_the_measurements_are_listed(show):
    shown = show("bench", "--help")
    assert all(f"  {kind} " in shown for kind in BENCH)


LIGHT = [
    ["--help"],
    ["serve", "m", "--dry-run"],
    ["serve", "--help"],
    ["args", "--status"],
    ["bench", "--help"],
    ["bench", "serve", "--help"],
    ["bench", "throughput", "--dry-run"],
    ["collect-env"],
]
HEAVY = {"torch", "transformers", "numpy", "fastapi", "pydantic", "yaml", "msgspec", "tokenizers"}
ONE_AFTER_THE_OTHER = """
import sys
from slipway.cli.main import main

for argv in %r:
    print(f"{main(argv)} {argv} imports {sorted(%r & {*sys.modules})}", file=sys.stderr)
"""


def test_nothing_heavy_is_imported():
    """0.3 s for help leaves no room for torch, nor for anything that is not needed."""
    code = ONE_AFTER_THE_OTHER % (LIGHT, HEAVY)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=scaled(60))
    assert done.returncode == 0, done.stderr
    told = [line for line in done.stderr.splitlines() if " imports " in line]
    assert told == [f"0 {argv} imports []" for argv in LIGHT]


def test_the_overview_imports_no_schema():
    code = (
        "import sys; from slipway.cli.main import main; main(['--help']); "
        "print([name for name in sys.modules if name.startswith('slipway.args')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=scaled(60))
    assert done.stdout.splitlines()[-1] == "[]"
