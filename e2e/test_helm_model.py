"""The chart of one model, with the operator at work: what `helm install --wait` says is true."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial

import pytest

from e2e.ground.control_plane import ControlPlane
from e2e.ground.patience import at_most, scaled
from e2e.helm.command import MODEL_CHART, OPERATOR_CHART, Helm, run_in
from e2e.helm.installed import children, established, is_ready, operator_of, serve, service
from e2e.operators import forbidden_in, requests_of, until

VALUES = ("--set", "model.hub.id=org/name,engine.maxModelLen=4096,resources.memory=1Gi")
SCOPES = {"cluster-wide": "replicas=0", "namespace-only": "replicas=0,namespaces={default}"}


@pytest.fixture(scope="module")
def plane(binaries, carries_control_plane) -> Iterator[ControlPlane]:
    with ControlPlane(binaries) as plane:
        yield plane


@pytest.fixture(scope="module", params=SCOPES)
def operator(request, plane, binaries, tmp_path_factory) -> Iterator[str]:
    """The operator as the chart installs it, for the whole cluster, then for one namespace; its user."""
    folder = tmp_path_factory.mktemp("operator")
    helm = Helm(binaries["helm"], folder, run_in(plane))
    place = ("--namespace", "slipway-system", "--create-namespace")
    helm("install", "slipway", OPERATOR_CHART, *place, "--set", SCOPES[request.param])
    established(plane)
    with operator_of(plane, folder, "slipway") as user:
        yield user
    helm("uninstall", "slipway", "--namespace", "slipway-system")


@pytest.fixture
def helm(binaries, plane, operator, tmp_path) -> Iterator[Helm]:
    command = Helm(binaries["helm"], tmp_path, run_in(plane))
    yield command
    for release in command.releases():
        if release["namespace"] == "default":
            command("uninstall", release["name"])
            # The next one of this name must not take them for its own.
            gone = partial(children, plane, "deployments,replicasets,pods", release["name"])
            until(lambda: not gone(), f"nothing of {release['name']} is left")  # noqa: B023


@pytest.fixture
def helm3(binaries, plane, helm, tmp_path) -> Helm:
    return Helm(binaries["helm3"], tmp_path / "three", run_in(plane))


def test_an_installation_that_waits_ends_when_the_model_is_ready_and_not_before(helm, plane):
    waiting = plane.popen(*helm.argv("install", "first", MODEL_CHART, *VALUES, "--wait", at_most(120)))
    until(lambda: children(plane, "deployments", "first"), "the Deployment")
    until(lambda: service(plane, "first")["status"]["observedGeneration"] == 1, "the status")
    assert waiting.poll() is None
    assert not is_ready(plane, "first")
    serve(plane, "first")
    assert waiting.wait(scaled(120)) == 0
    assert is_ready(plane, "first")


def test_an_installation_that_waits_fails_where_the_model_never_is_ready(helm, plane):
    said = helm.refusal("install", "never", MODEL_CHART, *VALUES, "--wait", "--timeout=6s")
    assert "not ready" in said or "deadline" in said
    assert not is_ready(plane, "never")


def test_helm_3_does_not_wait_and_names_the_command_that_does(helm3, plane):
    said = helm3("install", "third", MODEL_CHART, *VALUES, "--wait", at_most(120))
    line = next(line for line in said.splitlines() if "kubectl wait" in line)
    assert not is_ready(plane, "third")
    serve(plane, "third")
    plane.kubectl(*line.split()[1:])
    assert is_ready(plane, "third")


def test_an_upgrade_changes_the_resource_and_uninstalling_leaves_nothing(helm, plane):
    helm("install", "fourth", MODEL_CHART, *VALUES)
    until(lambda: children(plane, "deployments", "fourth"), "the Deployment")
    helm("upgrade", "fourth", MODEL_CHART, *VALUES, "--set", "engine.maxModelLen=8192")
    assert service(plane, "fourth")["spec"]["engine"] == {"maxModelLen": 8192}

    def arguments_follow() -> bool:
        pod = children(plane, "deployments", "fourth")[0]["spec"]["template"]["spec"]
        return "8192" in json.dumps(pod["containers"][0]["args"])

    until(arguments_follow, "the new argument")
    helm("uninstall", "fourth")
    for kind in ("deployments", "services", "configmaps", "controllerrevisions", "pods"):
        until(lambda kind=kind: not children(plane, kind, "fourth"), f"the end of the {kind}")


def test_what_the_api_server_refuses_helm_reports_with_the_rule(helm):
    both = ("--set", "model.hub.id=org/name,model.path=/models/one")
    assert "exactly one of" in helm.refusal("install", "fifth", MODEL_CHART, *both)
    assert "vllm" in helm.refusal("install", "vllm", MODEL_CHART, *VALUES)


def test_a_name_of_its_own_is_taken(helm, plane):
    helm("install", "sixth", MODEL_CHART, *VALUES, "--set", "name=named,replicas=0")
    assert service(plane, "named")["metadata"]["labels"]["app.kubernetes.io/instance"] == "sixth"


def test_the_rights_that_the_chart_gives_are_all_that_the_operator_asks_for(helm, plane, operator):
    helm("install", "seventh", MODEL_CHART, *VALUES, "--set", "replicas=2")
    serve(plane, "seventh", 2)
    until(lambda: is_ready(plane, "seventh"), "the service's readiness")
    helm("uninstall", "seventh")
    until(lambda: not children(plane, "deployments", "seventh"), "the end of the Deployment")
    assert forbidden_in(requests_of(plane, operator)) == set()
