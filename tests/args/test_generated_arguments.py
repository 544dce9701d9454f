"""What `make generate` writes from the argument schema."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from slipway import generate
from slipway.args.export import declarations
from slipway.args.manual import manual
from slipway.args.schema import ARGUMENTS, SERVE


def test_what_is_generated_is_not_stale(capsys):
    assert generate.main(["--check"]) == 0, capsys.readouterr().err


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with every file. What they contain is made once: it is a matter of the declarations alone."""
    folder, contents = tmp_path_factory.mktemp("generated"), generate.outputs()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(generate, "outputs", lambda: contents)
        assert generate.main([str(folder)]) == 0
        assert generate.main(["--check", str(folder)]) == 0
        yield folder


def test_a_stale_file_is_found_and_written(written, capsys):
    for name in generate.outputs():
        (written / name).write_text("old")
        assert generate.main(["--check", str(written)]) == 1
        assert capsys.readouterr().err == f"{name} is stale: run `make generate`.\n"
        assert generate.main([str(written)]) == 0
        assert generate.main(["--check", str(written)]) == 0


def test_the_manual_has_every_group_and_argument():
    text = manual()
    assert all(f"## {group.name}\n" in text for group in SERVE.groups)
    assert all(f"### `{argument.flag}`" in text for argument in ARGUMENTS.values())


def test_the_declarations_are_json_and_complete():
    groups = json.loads(json.dumps(declarations(), allow_nan=False))["groups"]
    found = [argument for group in groups for argument in group["arguments"]]
    assert [argument["name"] for argument in found] == list(ARGUMENTS)
    length = next(argument for argument in found if argument["name"] == "max_model_len")
    assert length["type"] == "human_int"
    assert length["minimum"] == 1
    assert length["field"] == "maxModelLen"
