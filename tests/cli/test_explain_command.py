"""`slipway explain` on the command line."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
import yaml

from slipway.cli.main import main

EXAMPLES = Path(__file__).parents[2] / "examples"
DEMO = str(EXAMPLES / "demo.yaml")


def lines_of(capsys: pytest.CaptureFixture[str], *words: str) -> list[list[str]]:
    """The printed lines, each cut where two blanks are."""
    assert main(["explain", *words]) == 0
    return [line.split("  ") for line in capsys.readouterr().out.splitlines()]


def test_a_line_has_the_value_its_origin_and_its_reader(capsys):
    rows = [[cell.strip() for cell in row if cell.strip()] for row in lines_of(capsys, DEMO)]
    assert ["--max-num-seqs 32", "spec.engine.maxNumSeqs", "SchedulerConfig"] in rows
    assert ["--port 8000", "fixed: clients see spec.service.port", "Frontend"] in rows
    assert ["HF_HUB_OFFLINE=1", "spec.model: it is no hub's", "The running server"] in rows
    assert ["serve", "fixed: the command"] in rows


def test_a_value_that_is_too_wide_for_its_column_has_a_line_of_its_own(capsys):
    rows = lines_of(capsys, "-f", DEMO)
    index = next(number for number, row in enumerate(rows) if "--override-generation-config" in row[0])
    assert rows[index] == ["""--override-generation-config '{"temperature":0}'"""]
    assert rows[index + 1][0] == ""
    assert [cell.strip() for cell in rows[index + 1] if cell.strip()] == [
        "spec.engine.overrideGenerationConfig",
        "ModelConfig",
    ]


def test_json_has_every_value_as_the_container_has_it(capsys, tmp_path):
    document = yaml.safe_load(Path(DEMO).read_text())
    document["spec"]["engine"]["chatTemplate"] = "{{ '$' }}\n"
    document["spec"]["secrets"] = {"apiKey": {"name": "keys", "key": "api"}}
    path = tmp_path / "service.yaml"
    path.write_text(yaml.safe_dump(document))
    assert main(["explain", str(path), "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert list(printed) == ["service", "arguments", "environment"]
    template = next(one for one in printed["arguments"] if one["name"] == "chat_template")
    assert template["value"] == ["--chat-template", "{{ '$' }}\n"]
    assert template["from"] == {"source": "document", "field": "spec.engine.chatTemplate"}
    assert template["read_by"] == {"part": "Frontend", "status": "implemented"}
    key = printed["environment"][-1]["value"]
    assert key["valueFrom"] == {"secretKeyRef": {"name": "keys", "key": "api"}}
    assert main(["explain", str(path)]) == 0
    assert "'{{ '\"'\"'$'\"'\"' }}\\n'" in capsys.readouterr().out


def test_what_is_unset_is_listed_where_it_is_asked_for(capsys):
    main(["explain", DEMO])
    assert "max-num-batched-tokens" not in capsys.readouterr().out
    main(["explain", DEMO, "--all"])
    printed = capsys.readouterr().out
    assert "UNSET ARGUMENTS" in printed
    assert "\n--max-num-batched-tokens = " in printed
    assert "\nVLLM_LOGGING_LEVEL = " in printed
    main(["explain", DEMO, "--all", "--json"])
    assert {"unset_arguments", "unset_environment"} <= json.loads(capsys.readouterr().out).keys()


def test_what_has_no_effect_says_so_in_its_line_and_in_a_warning(capsys, tmp_path):
    path = tmp_path / "service.yaml"
    path.write_text(Path(DEMO).read_text().replace("maxNumSeqs: 32", "engineUseRay: true"))
    main(["explain", str(path)])
    told = capsys.readouterr()
    assert "nothing, accepted with a warning: the engine runs in a process of its own" in told.out
    assert "slipway explain: warning: --engine-use-ray" in told.err


def test_what_a_profile_adds_is_named_as_its(capsys, tmp_path):
    service, profile = tmp_path / "service.yaml", tmp_path / "profile.yaml"
    service.write_text(Path(DEMO).read_text().replace("spec:\n", "spec:\n  profile: shared\n", 1))
    head = {"apiVersion": "slipway.dev/v1alpha1", "kind": "ServingProfile", "metadata": {"name": "shared"}}
    profile.write_text(yaml.safe_dump({**head, "spec": {"env": [{"name": "TZ", "value": "UTC"}]}}))
    assert main(["explain", str(service), "--profile", str(profile)]) == 0
    assert "spec.env[TZ] of profile shared" in capsys.readouterr().out
    assert main(["explain", str(service)]) == 0
    assert "Add --profile" in capsys.readouterr().err


def test_a_document_may_come_from_standard_input(monkeypatch, capsys):
    monkeypatch.setattr("sys.stdin", io.StringIO(Path(DEMO).read_text()))
    assert main(["explain", "-"]) == 0
    assert "--max-num-seqs 32" in capsys.readouterr().out


def test_a_bad_document_is_refused_with_the_path(capsys, tmp_path):
    bad = tmp_path / "bad.yaml"
    bad.write_text(Path(DEMO).read_text().replace("maxModelLen", "maxModelLength"))
    assert main(["explain", str(bad)]) == 2
    assert "slipway explain: error: spec.engine.maxModelLength: there is no such field" in (
        capsys.readouterr().err
    )
