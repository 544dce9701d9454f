"""The operator's chart on a real API server: install, upgrade, roll back, uninstall, and a second one."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from e2e.ground.control_plane import ControlPlane
from e2e.helm.command import CRD, OPERATOR_CHART, REPOSITORY, Helm, chart_with, run_in, spec_fields
from e2e.helm.installed import established
from e2e.operators import define, undefine, until
from slipway_operator import permissions

DEMO = """
apiVersion: slipway.dev/v1alpha1
kind: InferenceService
metadata: {name: demo, namespace: default}
spec:
  model: {hub: {id: org/name}}
"""
INSTALLING = REPOSITORY / "docs" / "kubernetes" / "install.md"
RELEASED = sorted((Path(__file__).parent / "charts").glob("slipway-*.tgz"))


@pytest.fixture(scope="module")
def plane(binaries, carries_control_plane) -> Iterator[ControlPlane]:
    """A control plane of this module's own: these tests install and delete the CRD."""
    with ControlPlane(binaries) as plane:
        yield plane


@pytest.fixture(params=["helm", "helm3"])
def helm(request, binaries, plane, tmp_path) -> Iterator[Helm]:
    command = Helm(binaries[request.param], tmp_path / "helm", run_in(plane))
    yield command
    for release in command.releases():
        command("uninstall", release["name"], "--namespace", release["namespace"])
    undefine(plane)


def install(helm: Helm, release: str, *words: str | Path, chart: Path = OPERATOR_CHART) -> None:
    namespace = f"{release}-system"
    helm("install", release, chart, "--namespace", namespace, "--create-namespace", *words)


def upgrade(helm: Helm, release: str, *words: str | Path, chart: Path = OPERATOR_CHART) -> None:
    helm("upgrade", release, chart, "--namespace", f"{release}-system", *words)


def refused(helm: Helm, release: str, *words: str) -> str:
    namespace = f"{release}-system"
    return helm.refusal("install", release, OPERATOR_CHART, "-n", namespace, "--create-namespace", *words)


def may(plane: ControlPlane, user: str, verb: str, resource: str, namespace: str) -> bool:
    """Whether `user` may; a resource such as deployments.apps, with /status behind it for a subresource."""
    return not refusals(plane, user, [(verb, resource)], namespace)


def refusals(
    plane: ControlPlane, user: str, wishes: Iterable[tuple[str, str]], namespace: str
) -> list[tuple[str, str]]:
    """Those of the verbs and resources that `user` may not, by the API server's own word."""
    asked = list(wishes)
    reviews = [review(user, verb, resource, namespace) for verb, resource in asked]
    listed = json.dumps({"apiVersion": "v1", "kind": "List", "items": reviews})
    answers = plane.kubectl("create", "-f", "-", "-o", "jsonpath={.status.allowed} ", input=listed).split()
    return [wish for wish, answer in zip(asked, answers, strict=True) if answer != "true"]


def review(user: str, verb: str, resource: str, namespace: str) -> dict:
    name, _, part = resource.partition("/")
    plural, _, group = name.partition(".")
    attributes = {
        "verb": verb,
        "group": group,
        "resource": plural,
        "subresource": part,
        "namespace": namespace,
    }
    return {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SubjectAccessReview",
        "spec": {"user": user, "groups": ["system:authenticated"], "resourceAttributes": attributes},
    }


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
    assert refusals(plane, account("slipway"), granted(), "default") == []
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
    assert f"CRDs are there already: {CRD} (owned by release slipway in namespace slipway-system), " in said
    assert "Set crds.install=false" in said
    install(helm, "other", "--set", "crds.install=false")
    helm("uninstall", "other", "--namespace", "other-system")
    done = run_in(plane)("bash", "-c", "kubectl " + said.partition("kubectl ")[2])
    assert done.returncode == 0, done.stderr
    install(helm, "other")
    assert "other" in plane.kubectl("get", "crd", CRD, "-o", "jsonpath={.metadata.annotations}")


def test_a_crd_applied_by_hand_is_nobodys_and_said_to_be(helm, plane):
    define(plane)
    assert "(owned by release none). Set crds.install=false" in refused(helm, "slipway")


def test_a_release_for_the_cluster_is_told_of_one_for_a_namespace(helm):
    install(helm, "models", "--set", "namespaces={models-system}")
    said = refused(helm, "slipway", "--set", "crds.install=false")
    assert "Release models in namespace models-system serves namespace models-system already" in said
    said = refused(helm, "other", "--set", "namespaces={other-system,models-system}")
    assert "set `namespaces` here to others than its own" in said
    install(helm, "other", "--set", "namespaces={other-system}")
    upgrade(helm, "models", "--set", "namespaces={models-system},replicas=2")


def test_two_releases_see_each_other_whatever_they_are_called(helm):
    install(helm, "models", "--set", "namespaces={models-system},fullnameOverride=for-a-lease")
    said = refused(helm, "slipway", "--set", "crds.install=false,nameOverride=lease")
    assert "Release models in namespace models-system serves namespace models-system already" in said
    upgrade(helm, "models", "--set", "namespaces={models-system},nameOverride=lease")
    said = refused(helm, "other", "--set", "namespaces={models-system},fullnameOverride=other")
    assert "set `namespaces` here to others than its own" in said
    helm("uninstall", "models", "--namespace", "models-system")
    install(helm, "slipway", "--set", "fullnameOverride=everywhere")
    said = refused(helm, "other", "--set", "fullnameOverride=elsewhere")
    assert "Release slipway in namespace slipway-system serves every namespace" in said


def test_an_admin_of_namespaces_installs_for_them_once_the_page_is_followed(helm, plane):
    """RBAC lets nobody hand out rights that he lacks, and `admin` lacks most of the operator's."""
    prepare, by_hand = commands_of("One operator for the cluster, or for some namespaces")
    for namespace in ("team-a", "team-b"):
        run_in(plane)("kubectl", "create", "namespace", namespace)
        run_in(plane)(
            "kubectl", "create", "rolebinding", "admins", "-n", namespace, "--clusterrole=admin", "--user=ann"
        )
    scope = ("--namespace", "team-a", "--kube-as-user", "ann", "--set", "namespaces={team-a,team-b}")
    assert "is attempting to grant RBAC permissions not currently held" in helm.refusal(
        "install", "early", OPERATOR_CHART, *scope
    )
    helm("uninstall", "early", "--namespace", "team-a")
    assert run_in(plane)("bash", "-euc", f"cd {REPOSITORY}; {prepare}").returncode == 0
    established(plane)
    until(
        lambda: may(plane, "ann", "create", "leases.coordination.k8s.io", "team-a"), "the aggregated rights"
    )
    words = shlex.split(by_hand.replace("helm/slipway", str(OPERATOR_CHART)))
    helm(*words[1:], "--kube-as-user", "ann")
    helm("upgrade", "slipway", OPERATOR_CHART, *scope)
    robot = "system:serviceaccount:team-a:slipway-operator"
    assert may(plane, robot, "create", "deployments.apps", "team-b")
    assert not may(plane, robot, "list", "pods", "default")
    assert not may(plane, robot, "list", "nodes", "default")
    for right in documents_of("One operator for the cluster, or for some namespaces"):
        plane.kubectl("apply", "-f", "-", "--as", "ann", input=right)
    assert may(plane, "ann", "create", CRD, "team-a")
    ben = ("--as", "ben", "--as-group", "team-a")
    until(lambda: "yes" in plane.kubectl("auth", "can-i", "create", CRD, "-n", "team-a", *ben), "ben's right")
    helm("uninstall", "slipway", "--namespace", "team-a", "--kube-as-user", "ann")
    plane.kubectl("delete", "clusterrole", "slipway-installer")


def commands_of(heading: str) -> list[str]:
    return blocks_of(heading, "sh")


def documents_of(heading: str) -> list[str]:
    return blocks_of(heading, "yaml")


def blocks_of(heading: str, language: str) -> list[str]:
    """The blocks of a language in a section of the page on installing."""
    section = INSTALLING.read_text(encoding="utf-8").partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    return re.findall(rf"^```{language}\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("helm", ["helm"], indirect=True)
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
    wishes = [(verb, CRD) for verb in allowed]
    until(lambda: not refusals(plane, f"{role}-person", wishes, "default"), f"the rights of {role}")
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
