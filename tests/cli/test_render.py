"""`slipway render` on the command line."""

from __future__ import annotations

import io
import shlex
from pathlib import Path

import pytest
import yaml

from slipway.cli.main import main

EXAMPLES = Path(__file__).parents[2] / "examples"
DEMO = str(EXAMPLES / "demo.yaml")
GPU = str(EXAMPLES / "gpu.yaml")


def test_kubernetes_objects_are_printed_as_yaml(capsys):
    assert main(["render", "-f", DEMO]) == 0
    printed = list(yaml.safe_load_all(capsys.readouterr().out))
    assert [one["kind"] for one in printed] == ["Deployment", "Service"]


def test_the_podman_line_is_one_command_of_a_shell(capsys):
    assert main(["render", "-f", DEMO, "--target", "podman", "--image", "local/runtime"]) == 0
    words = shlex.split(capsys.readouterr().out.replace("\\\n", " "))
    assert words[:3] == ["podman", "run", "--rm"]
    assert words[words.index("local/runtime") + 1] == "serve"


def test_a_quadlet_unit_is_printed_as_it_is_saved(capsys):
    assert main(["render", "-f", DEMO, "--target", "quadlet", "--image", "local/runtime"]) == 0
    assert "\n[Container]\nImage=local/runtime\n" in capsys.readouterr().out


def test_a_compose_file_is_printed_as_it_is_saved(capsys):
    assert main(["render", DEMO, "--target", "compose", "--image", "local/runtime"]) == 0
    assert yaml.safe_load(capsys.readouterr().out)["services"]["demo"]["image"] == "local/runtime"


def test_a_monitor_is_printed_where_the_cluster_has_the_kind(capsys):
    main(["render", "-f", GPU])
    left_out = capsys.readouterr()
    assert "ServiceMonitor" not in left_out.out
    assert "--has ServiceMonitor" in left_out.err
    main(["render", "-f", GPU, "--has", "ServiceMonitor"])
    assert "kind: ServiceMonitor" in capsys.readouterr().out


def chosen(tmp_path: Path, name: str) -> list[str]:
    """Arguments for the demo, which chooses `shared`, and a profile of this name."""
    service, profile = tmp_path / "service.yaml", tmp_path / "profile.yaml"
    document = yaml.safe_load(Path(DEMO).read_text())
    document["spec"]["profile"] = "shared"
    service.write_text(yaml.safe_dump(document))
    head = {"apiVersion": "slipway.dev/v1alpha1", "kind": "ServingProfile", "metadata": {"name": name}}
    profile.write_text(yaml.safe_dump({**head, "spec": {"scheduling": {"nodeSelector": {"pool": "a"}}}}))
    return ["render", "-f", str(service), "--profile", str(profile)]


def test_what_a_profile_adds_is_printed_where_it_is_at_hand(tmp_path, capsys):
    arguments = chosen(tmp_path, "shared")
    assert main(arguments) == 0
    assert "pool: a" in capsys.readouterr().out
    assert main(arguments[:3]) == 0
    without = capsys.readouterr()
    assert "pool: a" not in without.out
    assert "what shared adds is left out. Add --profile" in without.err
    assert main(chosen(tmp_path, "other")) == 2
    assert "the document chooses shared, and" in capsys.readouterr().err
    assert main(["render", "-f", DEMO, "--profile", DEMO]) == 2
    assert "is no ServingProfile of slipway.dev/v1alpha1 with a name" in capsys.readouterr().err


def test_a_document_may_come_from_standard_input(monkeypatch, capsys):
    monkeypatch.setattr("sys.stdin", io.StringIO(Path(DEMO).read_text()))
    assert main(["render", "-f", "-"]) == 0
    assert "kind: Deployment" in capsys.readouterr().out


def test_a_bad_document_is_refused_with_the_path(tmp_path, capsys):
    bad = tmp_path / "bad.yaml"
    bad.write_text(Path(DEMO).read_text().replace("maxModelLen", "maxModelLength"))
    assert main(["render", "-f", str(bad)]) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert "spec.engine.maxModelLength: there is no such field. Did you mean maxModelLen" in told.err


@pytest.mark.parametrize("content", [None, b"\xff\xfe"])
def test_a_file_that_cannot_be_read_is_named(tmp_path, capsys, content):
    path = tmp_path / "service.yaml"
    if content is not None:
        path.write_bytes(content)
    assert main(["render", "-f", str(path)]) == 2
    assert str(path) in capsys.readouterr().err
