"""What `make generate` writes from the argument schema."""

from __future__ import annotations

import json

import pytest

from slipway import generate
from slipway.args.export import declarations
from slipway.args.manual import manual
from slipway.args.schema import ARGUMENTS, SERVE


def test_what_is_generated_is_not_stale(capsys):
    assert generate.main(["--check"]) == 0, capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("name", generate.outputs())
def test_a_stale_file_is_found_and_written(name, tmp_path, capsys):
    assert generate.main([str(tmp_path)]) == 0
    assert generate.main(["--check", str(tmp_path)]) == 0
    (tmp_path / name).write_text("old")
    assert generate.main(["--check", str(tmp_path)]) == 1
    assert f"{name} is stale: run `make generate`." in capsys.readouterr().err
    assert generate.main([str(tmp_path)]) == 0
    assert generate.main(["--check", str(tmp_path)]) == 0


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
