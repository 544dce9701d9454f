"""The operator's chart on a real API server: install, upgrade, roll back, uninstall, and a second one."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e.ground.control_plane import ControlPlane
from e2e.helm.command import CRD, OPERATOR_CHART, Helm, chart_with, run_in, spec_fields
from e2e.helm.installed import established
from e2e.operators import until
from slipway_operator import permissions

DEMO = """
apiVersion: slipway.dev/v1alpha1
kind: InferenceService
metadata: {name: demo, namespace: default}
spec:
  model: {hub: {id: org/name}}
"""
RELEASED = sorted((Path(__file__).parent / "charts").glob("slipway-*.tgz"))


@pytest.fixture(scope="module")
def plane(binaries) -> Iterator[ControlPlane]:
    """A control plane of this module's own: these tests install and delete the CRD."""
    with ControlPlane(binaries) as plane:
        yield plane


@pytest.fixture(params=["helm", "helm3"])
def helm(request, binaries, plane, tmp_path) -> Iterator[Helm]:
    command = Helm(binaries[request.param], tmp_path / "helm", run_in(plane))
    yield command
    for release in command.releases():
        command("uninstall", release["name"], "--namespace", release["namespace"])
    plane.kubectl("delete", "crd", CRD, "--ignore-not-found")


def install(helm: Helm, release: str, *words: str | Path, chart: Path = OPERATOR_CHART) -> None:
    namespace = f"{release}-system"
    helm("install", release, chart, "--namespace", namespace, "--create-namespace", *words)


def upgrade(helm: Helm, release: str, *words: str | Path, chart: Path = OPERATOR_CHART) -> None:
    helm("upgrade", release, chart, "--namespace", f"{release}-system", *words)


def refused(helm: Helm, release: str, *words: str) -> str:
    namespace = f"{release}-system"
    return helm.refusal("install", release, OPERATOR_CHART, "-n", namespace, "--create-namespace", *words)


def may(plane, user: str, verb: str, resource: str, namespace: str) -> bool:
    """Whether `user` may; a resource such as deployments.apps, with /status behind it for a subresource."""
    name, _, part = resource.partition("/")
    subresource = ("--subresource", part) if part else ()
    question = ("auth", "can-i", verb, name, *subresource, "--as", user, "--namespace", namespace)
    return run_in(plane)("kubectl", *question).stdout.strip() == "yes"


def account(release: str) -> str:
    return f"system:serviceaccount:{release}-system:{release}-operator"


def granted() -> Iterator[tuple[str, str]]:
    """Each verb and resource of the operator's rules, but for kinds that this API server lacks."""
    for rule in (*permissions.SERVICE_RULES, *permissions.CLUSTER_RULES):
        if rule.group != "monitoring.coreos.com":
            for resource in rule.resources:
                name, slash, part = resource.partition("/")
                group = f".{rule.group}" if rule.group else ""
                yield from ((verb, f"{name}{group}{slash}{part}") for verb in rule.verbs)


def add_a_field(crd_spec: dict) -> None:
    spec_fields(crd_spec)["comment"] = {"type": "string", "maxLength": 64}


def test_an_installation_brings_the_crd_the_operator_and_its_rights(helm, plane):
    install(helm, "slipway")
    established(plane)
    plane.kubectl("get", "deployment,service,serviceaccount", "slipway-operator", "-n", "slipway-system")
    plane.kubectl("apply", "-f", "-", input=DEMO)
    for verb, resource in granted():
        assert may(plane, account("slipway"), verb, resource, "default"), (verb, resource)
    assert may(plane, account("slipway"), "update", "leases.coordination.k8s.io", "slipway-system")
    assert not may(plane, account("slipway"), "update", "leases.coordination.k8s.io", "default")
    assert not may(plane, account("slipway"), "get", "secrets", "default")


def test_an_upgrade_brings_the_new_crd_and_a_rollback_the_old(helm, plane, tmp_path):
    install(helm, "slipway")
    established(plane)
    newer = chart_with(OPERATOR_CHART, tmp_path, "99.0.0", add_a_field)
    upgrade(helm, "slipway", chart=newer)
    plane.kubectl("apply", "-f", "-", input=DEMO)
    patch = ("patch", "inferenceservices.slipway.dev", "demo", "--type=merge", "-p")
    kept = ("get", "inferenceservices.slipway.dev", "demo", "-o", "jsonpath={.spec.comment}")

    def comment_is_kept() -> bool:
        plane.kubectl(*patch, json.dumps({"spec": {"comment": "new"}}))
        return plane.kubectl(*kept) == "new"

    until(comment_is_kept, "the new field")
    helm("rollback", "slipway", "1", "--namespace", "slipway-system")
    fields = json.loads(plane.kubectl("get", "crd", CRD, "-o", "json"))["spec"]
    assert "comment" not in spec_fields(fields)
    assert plane.kubectl("get", "inferenceservices.slipway.dev", "demo", "-o", "name")


def test_uninstalling_keeps_the_crd_and_what_it_defines(helm, plane):
    install(helm, "slipway")
    established(plane)
    plane.kubectl("apply", "-f", "-", input=DEMO)
    helm("uninstall", "slipway", "--namespace", "slipway-system")
    assert "demo" in plane.kubectl("get", "inferenceservices.slipway.dev", "demo")
    assert run_in(plane)("kubectl", "get", "clusterrole", "slipway-operator").returncode != 0
    install(helm, "slipway")
    assert "demo" in plane.kubectl("get", "inferenceservices.slipway.dev", "demo")


def test_setting_crds_install_to_false_later_keeps_the_crd(helm, plane):
    install(helm, "slipway")
    established(plane)
    upgrade(helm, "slipway", "--set", "crds.install=false")
    established(plane)


def test_a_second_release_is_told_what_to_set(helm, plane):
    install(helm, "slipway")
    said = refused(helm, "other")
    assert "Release slipway in namespace slipway-system serves every namespace" in said
    assert "set namespaces={other-system}" in said


def test_a_release_that_finds_a_kept_crd_is_told_what_to_set_and_both_ways_work(helm, plane):
    install(helm, "slipway")
    helm("uninstall", "slipway", "--namespace", "slipway-system")
    said = refused(helm, "other")
    assert f"The CRD {CRD} is there already, owned by release slipway in namespace slipway-system" in said
    assert "set crds.install=false" in said
    install(helm, "other", "--set", "crds.install=false")
    helm("uninstall", "other", "--namespace", "other-system")
    done = run_in(plane)("bash", "-c", "kubectl " + said.partition("kubectl ")[2])
    assert done.returncode == 0, done.stderr
    install(helm, "other")
    assert "other" in plane.kubectl("get", "crd", CRD, "-o", "jsonpath={.metadata.annotations}")


def test_a_crd_applied_by_hand_is_nobodys_and_said_to_be(helm, plane):
    plane.kubectl("apply", "-f", "-", input=helm("template", "x", OPERATOR_CHART, "-s", "templates/crd.yaml"))
    assert "owned by release none: set crds.install=false" in refused(helm, "slipway")


def test_one_who_rules_some_namespaces_installs_without_any_right_beyond_them(helm, plane):
    plane.kubectl("apply", "-f", "-", input=helm("template", "x", OPERATOR_CHART, "-s", "templates/crd.yaml"))
    established(plane)
    for namespace in ("team-a", "team-b"):
        run_in(plane)("kubectl", "create", "namespace", namespace)
        plane.kubectl("apply", "-f", "-", input=rights_of_an_installer(namespace))
    helm(
        *("install", "models", OPERATOR_CHART, "--namespace", "team-a", "--kube-as-user", "installer"),
        *("--set", "namespaces={team-a,team-b}"),
    )
    robot = "system:serviceaccount:team-a:models-operator"
    assert may(plane, robot, "create", "deployments.apps", "team-b")
    assert not may(plane, robot, "list", "pods", "default")
    assert not may(plane, robot, "list", "nodes", "default")
    helm("uninstall", "models", "--namespace", "team-a", "--kube-as-user", "installer")


def rights_of_an_installer(namespace: str) -> str:
    """The namespace's admin, with what the operator needs there: nobody may hand out rights that he lacks."""
    rules = [rule.as_object() for rule in (*permissions.SERVICE_RULES, *permissions.LEASE_RULES)]
    subjects = [{"kind": "User", "name": "installer", "apiGroup": "rbac.authorization.k8s.io"}]
    group, metadata = "rbac.authorization.k8s.io", {"name": "installer", "namespace": namespace}
    api = {"apiVersion": f"{group}/v1"}

    def binding(name: str, kind: str, role: str) -> dict:
        reference = {"apiGroup": group, "kind": kind, "name": role}
        return {
            **api,
            "kind": "RoleBinding",
            "metadata": metadata | {"name": name},
            "roleRef": reference,
            "subjects": subjects,
        }

    items = [
        {**api, "kind": "Role", "metadata": metadata, "rules": rules},
        binding("installer", "Role", "installer"),
        binding("installer-admin", "ClusterRole", "admin"),
    ]
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": items})


@pytest.mark.parametrize(
    ("role", "allowed", "refused_verb"),
    [
        ("view", ("get", "list", "watch"), "create"),
        ("edit", ("get", "create", "patch", "delete"), "escalate"),
    ],
)
def test_people_see_and_change_services_by_their_usual_role(helm, plane, role, allowed, refused_verb):
    install(helm, "slipway")
    established(plane)
    run_in(plane)(
        "kubectl", "create", "rolebinding", f"{role}-person", f"--clusterrole={role}", f"--user={role}-person"
    )
    for verb in allowed:
        until(lambda verb=verb: may(plane, f"{role}-person", verb, CRD, "default"), f"{verb} for {role}")
    assert not may(plane, f"{role}-person", refused_verb, CRD, "default")
    assert not may(plane, f"{role}-person", "patch", f"{CRD}/status", "default")


@pytest.mark.parametrize("package", RELEASED, ids=lambda path: path.stem)
def test_a_released_chart_is_upgraded_to_this_one(helm, plane, package):
    install(helm, "slipway", chart=package)
    established(plane)
    plane.kubectl("apply", "-f", "-", input=DEMO)
    before = json.loads(plane.kubectl("get", "inferenceservices.slipway.dev", "demo", "-o", "json"))
    upgrade(helm, "slipway")
    established(plane)
    after = json.loads(plane.kubectl("get", "inferenceservices.slipway.dev", "demo", "-o", "json"))
    assert (before["metadata"]["uid"], before["spec"]) == (after["metadata"]["uid"], after["spec"])
    assert after["metadata"]["generation"] == before["metadata"]["generation"]


def test_there_is_a_released_chart_to_upgrade_from():
    assert RELEASED
