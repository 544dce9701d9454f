"""`slipway demo` as far as it goes without a model; the rest is served for real elsewhere."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from slipway.cli.demo import asks_for_no_model, serve_words
from slipway.cli.main import main


def dry_run(capsys, *words: str) -> dict:
    assert main(["demo", *words, "--dry-run"]) == 0
    return json.loads(capsys.readouterr().out.splitlines()[-1])


def test_a_dry_run_fetches_nothing(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("SLIPWAY_CACHE", str(tmp_path))
    resolved = dry_run(capsys)
    assert resolved["model"].startswith(str(tmp_path))
    assert resolved["load_format"] == "gguf"
    assert list(tmp_path.iterdir()) == []


def test_the_model_has_its_public_name_first(capsys):
    names = dry_run(capsys)["served_model_name"]
    assert names == ["HuggingFaceTB/SmolLM2-135M-Instruct", "demo"]


def test_what_the_user_gives_wins(capsys):
    drawn = ("--override-generation-config", '{"temperature": 0.7}')
    resolved = dry_run(capsys, "--port", "9000", "--served-model-name", "mine", *drawn)
    assert resolved["port"] == 9000
    assert resolved["override_generation_config"] == {"temperature": 0.7}
    assert resolved["served_model_name"] == ["mine"]


def test_the_model_itself_cannot_be_replaced(capsys):
    assert main(["demo", "other/model", "--dry-run"]) == 2
    assert "one value too many" in capsys.readouterr().err


def test_help_is_that_of_serve(capsys):
    assert main(["demo", "--help=max-num-seqs"]) == 0
    assert "--max-num-seqs" in capsys.readouterr().out


@pytest.mark.parametrize("words", [["--dry-run"], ["--dry_run"], ["-h"], ["--help=max"], ["--help"]])
def test_help_and_dry_runs_ask_for_no_model(words):
    assert asks_for_no_model(words)
    assert not asks_for_no_model(["--port", "1"])


def test_the_model_stands_apart_from_its_names():
    words = serve_words(Path("/x/model.gguf"), "name", ["--port", "1"])
    assert words[-3:] == ["/x/model.gguf", "--port", "1"]
    assert all(word.startswith("--") and "=" in word for word in words[:-3])
