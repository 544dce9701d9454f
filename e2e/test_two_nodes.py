"""Two machines: replicas on both, one Service before them, and a machine that is taken away."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import openai
import pytest
import yaml

from e2e.ground.machine import Machine
from e2e.ground.node import Cluster
from e2e.ground.patience import at_most
from e2e.installation import Installation, client, in_url, pods_of
from e2e.operators import ROOT, Namespace, Object, until

QUESTION: Any = [{"role": "user", "content": "What is the capital of France?"}]
SPREAD = {"maxSkew": 1, "topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "ScheduleAnyway"}


@pytest.fixture(scope="module")
def second(cluster: Cluster) -> Iterator[Machine]:
    with cluster.second_node() as machine:
        yield machine


@pytest.fixture(scope="module")
def namespace(second: Machine, installation: Installation) -> Iterator[Namespace]:
    made = installation.namespace("two-nodes")
    document = yaml.safe_load((ROOT / "examples" / "demo.yaml").read_text())
    labels = {"matchLabels": {"app.kubernetes.io/instance": "demo"}}
    document["spec"] |= {
        "replicas": 2,
        "scheduling": {"topologySpreadConstraints": [{**SPREAD, "labelSelector": labels}]},
    }
    made.apply(document)
    made.kubectl("wait", "inferenceservices/demo", "--for=condition=Ready", at_most(240))
    yield made
    installation.remove(made)


def places(namespace: Namespace) -> list[str]:
    return sorted(str(pod["spec"].get("nodeName")) for pod in pods_of(namespace, "demo"))


def served(namespace: Namespace, pod: Object) -> float:
    """Requests that the pod has answered."""
    text = namespace.plane.fetch(f"http://{in_url(pod['status']['podIP'])}:8000/metrics").decode()
    lines = (line for line in text.splitlines() if line.startswith("vllm:request_success_total"))
    return sum(float(line.rpartition(" ")[2]) for line in lines)


def answer(api: openai.OpenAI) -> str:
    made = api.chat.completions.create(model="demo", messages=QUESTION, max_tokens=8, temperature=0)
    return str(made.choices[0].message.content)


def test_replicas_on_two_nodes_share_what_their_service_is_asked(namespace: Namespace) -> None:
    assert places(namespace) == ["node", "second"]
    pods = pods_of(namespace, "demo")

    def both_served() -> bool:
        # A connection of its own for each: the Service chooses by connection.
        with client(namespace, "demo") as api:
            assert "Paris" in answer(api)
        return all(served(namespace, pod) > 0 for pod in pods)

    until(both_served, "an answer from each of them")
    logs = [namespace.kubectl("logs", pod["metadata"]["name"]) for pod in pods]
    assert all("Started server process" in text for text in logs)


def test_a_node_that_is_drained_gives_its_replica_to_the_other_and_no_request_is_lost(
    namespace: Namespace, second: Machine, installation: Installation
) -> None:
    words = ("drain", second.name, "--delete-emptydir-data", "--ignore-daemonsets", at_most(150))
    drain = installation.cluster.popen(installation.cluster.binaries["kubectl"], *words)
    count = 0
    while drain.poll() is None:
        with client(namespace, "demo") as api:
            assert "Paris" in answer(api)
        count += 1
    assert drain.returncode == 0
    assert count > 3
    until(lambda: places(namespace) == ["node", "node"], "both on the first node", 120)
    namespace.kubectl("wait", "inferenceservices/demo", "--for=condition=Ready", at_most(120))
