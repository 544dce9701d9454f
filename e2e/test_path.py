"""The whole path: the chart, its operator's pod, the demo model's image volume, a streamed answer."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
import yaml

from e2e.ground.patience import at_most
from e2e.helm.command import MODEL_CHART, Helm, run_in
from e2e.installation import Installation, client, pods_of
from e2e.operators import ROOT, Namespace, Object, promptly, until

EXAMPLE = ROOT / "examples" / "demo.yaml"
QUESTION = [{"role": "user", "content": "What is the capital of France?"}]


@pytest.fixture(scope="module")
def namespace(installation: Installation) -> Iterator[Namespace]:
    """Admits restricted pods only, and has a Service whose name once filled pods with VLLM_ variables."""
    made = installation.namespace("path")
    made.kubectl("create", "service", "clusterip", "vllm", "--tcp=8000:8000")
    yield made
    installation.remove(made)


@pytest.fixture(scope="module")
def demo(namespace: Namespace) -> Object:
    """The example as the repository has it, applied and waited for as its reader would."""
    namespace.kubectl("apply", "-f", str(EXAMPLE))
    namespace.kubectl("wait", "inferenceservices/demo", "--for=condition=Ready", at_most(240))
    return namespace.the("inferenceservices", "demo")


def said(chunks: Any) -> list[str]:
    choices = [choice for chunk in chunks for choice in chunk.choices]
    return [choice.delta.content for choice in choices if choice.delta.content]


@pytest.mark.product
def test_the_example_answers_in_a_stream(demo: Object, namespace: Namespace) -> None:
    with client(namespace, "demo") as api:
        stream = api.chat.completions.create(
            model="demo", messages=QUESTION, max_tokens=24, temperature=0, stream=True
        )
        words = said(stream)
    assert len(words) > 3
    assert "Paris" in "".join(words)


@pytest.mark.product
def test_the_columns_tell_what_a_user_asks_first(demo: Object, namespace: Namespace) -> None:
    header, line = namespace.kubectl("get", "inferenceservices").splitlines()
    assert header.split() == ["NAME", "MODEL", "READY", "REASON", "URL", "AGE"]
    assert line.startswith("demo")
    assert "True" in line
    assert "http://demo.path.svc:8000" in line
    wide, more = namespace.kubectl("get", "slip", "-o", "wide").splitlines()
    assert wide.split()[-2:] == ["IMAGE", "REPLICAS"]
    assert demo["status"]["image"] in more


def test_a_service_of_a_dangerous_name_changes_nothing_in_the_environment(
    demo: Object, namespace: Namespace
) -> None:
    printed = namespace.kubectl("exec", "deployment/demo", "--", "env")
    names = {line.partition("=")[0] for line in printed.splitlines()}
    asked = {item["name"] for item in demo["spec"]["env"]}
    assert {name for name in names if name.startswith("VLLM_")} == asked
    assert not any(name.startswith("DEMO_") for name in names)


@pytest.mark.product
def test_the_pod_is_restricted_and_its_root_is_not_writable(demo: Object, namespace: Namespace) -> None:
    (pod,) = pods_of(namespace, "demo")
    container = pod["spec"]["containers"][0]
    assert container["securityContext"]["readOnlyRootFilesystem"]
    with pytest.raises(Exception, match="Read-only file system"):
        namespace.kubectl("exec", pod["metadata"]["name"], "--", "touch", "/opt/slipway/x")
    assert "uid=1001" in namespace.kubectl("exec", pod["metadata"]["name"], "--", "id")
    with pytest.raises(Exception, match="No such file"):
        namespace.kubectl("exec", pod["metadata"]["name"], "--", "ls", "/var/run/secrets/kubernetes.io")


def test_applying_the_same_file_again_writes_nothing(
    demo: Object, namespace: Namespace, installation: Installation
) -> None:
    kinds = "inferenceservices,deployments,replicasets,pods,services,controllerrevisions.apps"

    def versions() -> dict[str, str]:
        return {f"{item['kind']}/{item['metadata']['name']}": item["metadata"]["resourceVersion"]
                for item in namespace.all(kinds)}  # fmt: skip

    installation.rest(namespace, "demo")
    before, written = versions(), len(installation.writes())
    assert namespace.kubectl("apply", "-f", str(EXAMPLE)).strip().endswith("unchanged")
    count = installation.reconciled()
    namespace.kubectl("label", "inferenceservices", "demo", "seen=yes")  # an event, so that it looks again
    until(lambda: installation.reconciled() > count, "a reconciliation")
    after = versions()
    assert after.pop("InferenceService/demo") != before.pop("InferenceService/demo")  # the label
    assert after == before
    assert installation.writes()[written:] == []


@pytest.mark.product
def test_a_changed_argument_rolls_exactly_one_replica_set(demo: Object, namespace: Namespace) -> None:
    before = {item["metadata"]["name"] for item in namespace.all("replicasets")}
    namespace.kubectl(
        "patch", "inferenceservices/demo", "--type=merge", "-p", '{"spec":{"engine":{"maxNumSeqs":16}}}'
    )
    namespace.kubectl("wait", "inferenceservices/demo", "--for=condition=Ready=false", at_most(60))
    namespace.kubectl("wait", "inferenceservices/demo", "--for=condition=Ready", at_most(240))
    sets = {item["metadata"]["name"]: item for item in namespace.all("replicasets")}
    (new,) = sets.keys() - before
    assert "--max-num-seqs=16" in " ".join(arguments(sets[new])).replace("seqs 16", "seqs=16")
    assert {name: item["spec"]["replicas"] for name, item in sets.items()} == {
        name: int(name == new) for name in sets
    }


def arguments(replica_set: Object) -> list[str]:
    found: list[str] = replica_set["spec"]["template"]["spec"]["containers"][0]["args"]
    return found


def test_a_restart_asked_of_kubectl_replaces_the_pod_and_is_kept(
    demo: Object, namespace: Namespace, installation: Installation
) -> None:
    (before,) = pods_of(namespace, "demo")
    namespace.kubectl("rollout", "restart", "deployment/demo")
    namespace.kubectl("rollout", "status", "deployment/demo", at_most(240))
    installation.rest(namespace, "demo")
    (after,) = pods_of(namespace, "demo")
    assert after["metadata"]["uid"] != before["metadata"]["uid"]
    assert "kubectl.kubernetes.io/restartedAt" in after["metadata"]["annotations"]


def test_a_child_deleted_by_hand_is_back_within_five_seconds(demo: Object, namespace: Namespace) -> None:
    old = namespace.the("service", "demo")["metadata"]["uid"]
    namespace.kubectl("delete", "service", "demo")
    promptly(lambda: (new := namespace.get("service", "demo")) and new["metadata"]["uid"] != old, "it", 5)
    with client(namespace, "demo") as api:
        answer = api.chat.completions.create(model="demo", messages=QUESTION, max_tokens=8, temperature=0)
    assert "Paris" in (answer.choices[0].message.content or "")


def test_bad_input_is_refused_with_a_sentence_and_harms_nothing(demo: Object, namespace: Namespace) -> None:
    with client(namespace, "demo") as api:
        with pytest.raises(openai.NotFoundError, match="nobody"):
            api.chat.completions.create(model="nobody", messages=QUESTION)
        with pytest.raises(openai.BadRequestError, match="temperature"):
            api.chat.completions.create(model="demo", messages=QUESTION, temperature=-3)
        assert [model.id for model in api.models.list()] == ["demo"]


@pytest.mark.product
def test_deleting_it_removes_everything_that_it_made(demo: Object, namespace: Namespace) -> None:
    mine = ("-l", "app.kubernetes.io/managed-by=slipway")
    kinds = "deployments,replicasets,pods,services,poddisruptionbudgets,controllerrevisions.apps"
    assert namespace.all(kinds, *mine)
    namespace.kubectl("delete", "inferenceservices", "demo", at_most(60))
    until(lambda: namespace.all(kinds, *mine) == [], "nothing of it is left", 90)
    assert {item["metadata"]["name"] for item in namespace.all("services")} == {"vllm"}


@pytest.mark.parametrize("helm", ["helm", "helm3"])
def test_a_model_installed_by_its_chart_answers_when_helm_says_that_it_is_there(
    helm: str, installation: Installation, tmp_path: Path
) -> None:
    """`--wait` of Helm 4 reads the conditions; Helm 3 knows Kubernetes' own kinds only and waits for none."""
    namespace = installation.namespace(f"model-by-{helm}")
    values = tmp_path / "values.yaml"
    values.write_text(yaml.safe_dump(yaml.safe_load(EXAMPLE.read_text())["spec"]))
    command = Helm(installation.cluster.binaries[helm], tmp_path, run_in(installation.cluster))
    place = ("--namespace", namespace.name)
    try:
        command("install", "demo", MODEL_CHART, *place, "--values", values, "--wait", at_most(240))
        if helm == "helm":
            assert namespace.condition("demo", "Ready")["status"] == "True"
        namespace.kubectl("wait", "inferenceservices/demo", "--for=condition=Ready", at_most(240))
        with client(namespace, "demo") as api:
            answer = api.chat.completions.create(model="demo", messages=QUESTION, max_tokens=8, temperature=0)
        assert "Paris" in (answer.choices[0].message.content or "")
        command("uninstall", "demo", *place, "--wait")
        until(lambda: json.loads(namespace.kubectl("get", "pods", "-o", "json"))["items"] == [], "no pod", 90)
    finally:
        installation.remove(namespace)
