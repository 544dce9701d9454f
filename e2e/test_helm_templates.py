"""What both versions of Helm make of the charts, without a cluster."""

from __future__ import annotations

import json

import pytest
import yaml

from e2e.ground.programs import KUBERNETES
from e2e.helm.command import MODEL_CHART, OPERATOR_CHART, VALUES, Helm, chart_of, golden_of, run_here
from slipway import __version__
from slipway.metrics.alerts import prometheus_rule
from slipway.metrics.dashboard import dashboard


@pytest.fixture(params=["helm", "helm3"])
def helm(request, binaries, tmp_path) -> Helm:
    return Helm(binaries[request.param], tmp_path, run_here)


@pytest.mark.parametrize("values", VALUES, ids=lambda path: path.stem)
def test_the_documents_are_those_of_the_golden_file(helm, values):
    golden = yaml.safe_load_all(golden_of(values).read_text(encoding="utf-8"))
    assert helm.rendered(values) == list(golden)


@pytest.mark.parametrize("values", VALUES, ids=lambda path: path.stem)
def test_helm_lint_finds_nothing(helm, values):
    said = helm("lint", "--strict", "--quiet", chart_of(values), "--values", values)
    assert "[ERROR]" not in said
    assert "[WARNING]" not in said


@pytest.mark.parametrize(
    ("setting", "field"),
    [
        ("crd.install=false", "crd"),
        ("crds.instal=false", "instal"),
        ("namespaces=team-a", "namespaces"),
        ("namespaces={Team_A}", "namespaces"),
        ("image.digest=sha256:12", "digest"),
        ("replicas=20", "replicas"),
        ("openshift=maybe", "openshift"),
        ("fullnameOverride=Slipway", "fullnameOverride"),
        ("monitoring.dashboards.enabled=true", "dashboards"),
        ("monitoring.serviceMonitor.interval=often", "interval"),
        ("policy.allowcode=true", "allowcode"),
    ],
)
def test_a_wrong_value_of_the_operator_is_refused_by_name(helm, setting, field):
    assert field in helm.refusal("template", "sample", OPERATOR_CHART, "--set", setting)


@pytest.mark.parametrize(
    ("setting", "field"),
    [
        ("replicas=1", "model"),
        ("modle.hub.id=org/name", "modle"),
        ("model.hub.id=org/name,engine.maxModelLenn=12", "maxModelLenn"),
        ("model.hub.id=org/name,engine.gpuMemoryUtilization=7", "gpuMemoryUtilization"),
        ("model.hub.id=org/name,replicas=-1", "replicas"),
    ],
)
def test_a_wrong_value_of_a_model_is_refused_by_name(helm, setting, field):
    assert field in helm.refusal("template", "sample", MODEL_CHART, "--set", setting)


def templated(helm: Helm, *words: str) -> str:
    """The operator's chart as one text."""
    return helm("template", "sample", OPERATOR_CHART, "--kube-version", KUBERNETES, *words)


def test_openshift_is_told_from_its_api_group_unless_a_value_says_otherwise(helm):
    def flagged(*words: str) -> bool:
        return "openshift: true\n" in templated(helm, *words)

    there = ("--api-versions", "security.openshift.io/v1")
    assert not flagged()
    assert flagged(*there)
    assert flagged("--set", "openshift=true")
    assert not flagged(*there, "--set", "openshift=false")


def test_dashboard_and_alerts_are_the_declared_ones(helm):
    settings = "monitoring.dashboard.enabled=true,monitoring.alerts.enabled=true"
    text = templated(helm, "--set", settings)
    documents = [
        one for one in yaml.safe_load_all(text) if one and "settings.yaml" not in one.get("data", ())
    ]
    made = {one["kind"]: one for one in documents}
    assert json.loads(made["ConfigMap"]["data"]["dashboard.json"]) == dashboard()
    assert made["ConfigMap"]["metadata"]["labels"]["grafana_dashboard"] == "1"
    assert made["PrometheusRule"]["spec"] == prometheus_rule()["spec"]


def test_a_name_of_one_s_own_stands_for_all_but_what_is_cluster_wide(helm):
    text = templated(helm, "--set", "fullnameOverride=models,replicas=2")
    made = [one for one in yaml.safe_load_all(text) if one and "namespace" in one["metadata"]]
    assert {one["metadata"]["name"] for one in made} == {"models", "models-lease", "models-test"}
    assert 'leaseName: "models"\n' in text


def test_both_charts_are_packaged_and_show_their_values(helm, tmp_path):
    for chart in (OPERATOR_CHART, MODEL_CHART):
        helm("package", chart, "--destination", tmp_path)
        package = tmp_path / f"{chart.name}-{__version__}.tgz"
        assert helm("show", "values", package).strip() == (chart / "values.yaml").read_text().strip()


def test_a_chart_may_be_part_of_another(helm, tmp_path):
    """Helm hands `global` to parts, and a closed schema has to let it in."""
    parent = tmp_path / "parent"
    parent.mkdir()
    (parent / "Chart.yaml").write_text(
        "apiVersion: v2\nname: parent\nversion: 1.0.0\ndependencies:\n"
        f"  - {{name: slipway, version: {__version__}, repository: 'file://{OPERATOR_CHART}'}}\n"
    )
    (parent / "values.yaml").write_text("global: {team: a}\nslipway: {replicas: 2}\n")
    helm("dependency", "build", "--skip-refresh", parent)
    assert "replicas: 2" in helm("template", "sample", parent)
