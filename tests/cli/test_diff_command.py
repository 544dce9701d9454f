"""`slipway diff` on the command line."""

from __future__ import annotations

import io
import json
from pathlib import Path

import yaml

from slipway.cli.main import main

DEMO = Path(__file__).parents[2] / "examples" / "demo.yaml"


def edited(folder: Path, **fields: object) -> str:
    """The demo with fields of its spec replaced, as a file."""
    document = yaml.safe_load(DEMO.read_text())
    document["spec"] |= fields
    path = folder / "new.yaml"
    path.write_text(yaml.safe_dump(document))
    return str(path)


def test_nothing_to_change_is_status_0(capsys):
    assert main(["diff", str(DEMO), str(DEMO)]) == 0
    assert capsys.readouterr().out == "demo: nothing changes\n"


def test_a_restart_is_told_with_its_cause_and_status_1(tmp_path, capsys):
    new = edited(tmp_path, engine={"maxModelLen": 4096}, replicas=2)
    assert main(["diff", str(DEMO), new]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "demo: pods restart, because of"
    assert "  spec.engine.maxModelLen 2048 → 4096" in lines
    assert "demo: 1 → 2 pods" in lines
    assert "Deployment demo: changed" in lines
    assert "Service demo: unchanged" in lines
    assert "PodDisruptionBudget demo: created" in lines


def test_scaling_restarts_nothing(tmp_path, capsys):
    assert main(["diff", str(DEMO), edited(tmp_path, replicas=0)]) == 1
    assert capsys.readouterr().out.startswith("demo: no pod restarts\ndemo: 1 → 0 pods\n")


def test_pods_that_start_later_differ(tmp_path, capsys):
    new = edited(tmp_path, suspend=True, resources={"memory": "3Gi"})
    assert main(["diff", str(DEMO), new]) == 1
    assert capsys.readouterr().out.startswith("demo: the next pods differ, because of\n")


def test_json_has_the_same(tmp_path, capsys):
    assert main(["diff", str(DEMO), edited(tmp_path, service={"type": "NodePort"}), "--json"]) == 1
    kind = {"path": "spec.type", "before": "ClusterIP", "after": "NodePort"}
    assert json.loads(capsys.readouterr().out) == {
        "service": "demo",
        "restart": False,
        "because": [],
        "replicas": {"before": 1, "after": 1},
        "objects": [
            {"kind": "Deployment", "name": "demo", "change": "unchanged", "fields": []},
            {"kind": "Service", "name": "demo", "change": "changed", "fields": [kind]},
        ],
    }


def test_one_document_may_come_from_standard_input(tmp_path, monkeypatch, capsys):
    other = edited(tmp_path, replicas=2)
    for words in (["-", other], [other, "-"]):
        monkeypatch.setattr("sys.stdin", io.StringIO(DEMO.read_text()))
        assert main(["diff", *words]) == 1
    assert "PodDisruptionBudget demo: deleted" in capsys.readouterr().out
    assert main(["diff", "-", "-"]) == 2
    assert "standard input has one document" in capsys.readouterr().err


def test_profiles_are_matched_to_the_documents_by_their_names(tmp_path, capsys):
    profile = tmp_path / "profile.yaml"
    head = {"apiVersion": "slipway.dev/v1alpha1", "kind": "ServingProfile", "metadata": {"name": "shared"}}
    profile.write_text(yaml.safe_dump({**head, "spec": {"env": [{"name": "TZ", "value": "UTC"}]}}))
    new = edited(tmp_path, profile="shared")
    assert main(["diff", str(DEMO), new, "--profile", str(profile)]) == 1
    assert "env[TZ] absent → " in capsys.readouterr().out
    assert main(["diff", new, str(DEMO)]) == 2
    assert "what shared adds decides. Add --profile" in capsys.readouterr().err
    assert main(["diff", new, new]) == 0
    assert "what shared adds is left out. Add --profile" in capsys.readouterr().err
    assert main(["diff", str(DEMO), str(DEMO), "--profile", str(profile)]) == 2
    assert "the document chooses none, and" in capsys.readouterr().err


def test_a_document_that_cannot_be_accepted_is_status_2_and_named(tmp_path, capsys):
    bad = edited(tmp_path, engine={"maxModelLength": 1})
    assert main(["diff", str(DEMO), bad]) == 2
    assert "slipway diff: error: spec.engine.maxModelLength: there is no such field" in (
        capsys.readouterr().err
    )


def test_what_runs_was_admitted_and_what_is_new_must_be(tmp_path, capsys):
    code = edited(tmp_path, engine={"trustRemoteCode": True})
    assert main(["diff", code, str(DEMO)]) == 1
    assert main(["diff", str(DEMO), code]) == 2
    assert "policy.allowCode" in capsys.readouterr().err
    assert main(["diff", str(DEMO), code, "--allow-code"]) == 1
