"""A cluster without IPv4: the chart, the operator and a model as anywhere else."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from e2e.ground.build import Binaries
from e2e.ground.names import V6
from e2e.ground.node import Cluster
from e2e.ground.patience import at_most
from e2e.images.build import missing
from e2e.images.release import release
from e2e.installation import Installation, client, in_url, pods_of
from e2e.operators import ROOT, Namespace

EXAMPLE = ROOT / "examples" / "demo.yaml"
QUESTION = [{"role": "user", "content": "What is the capital of France?"}]


@pytest.fixture(scope="module")
def cluster(binaries: Binaries, carries_node: None) -> Iterator[Cluster]:
    """Control plane, node, pods and Services have addresses of IPv6 alone."""
    with Cluster(binaries, V6) as made:
        yield made


@pytest.fixture(scope="module")
def installation(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    assert missing() is None
    with Installation(cluster, release(cluster), tmp_path_factory.mktemp("helm")) as made:
        yield made


@pytest.fixture(scope="module")
def namespace(installation: Installation) -> Iterator[Namespace]:
    made = installation.namespace("six")
    made.kubectl("apply", "-f", str(EXAMPLE))
    made.kubectl("wait", "inferenceservices/demo", "--for=condition=Ready", at_most(240))
    yield made
    installation.remove(made)


def test_the_example_answers_at_an_address_of_ipv6(namespace: Namespace) -> None:
    service = namespace.the("service", "demo")["spec"]
    assert service["ipFamilies"] == ["IPv6"]
    assert ":" in service["clusterIP"]
    (pod,) = pods_of(namespace, "demo")
    assert [":" in one["ip"] for one in pod["status"]["podIPs"]] == [True]
    with client(namespace, "demo") as api:
        answer = api.chat.completions.create(model="demo", messages=QUESTION, max_tokens=24, temperature=0)
    assert "Paris" in str(answer.choices[0].message.content)


def test_metrics_and_probes_of_the_operator_and_the_model_answer_there(
    installation: Installation, namespace: Namespace
) -> None:
    operator = in_url(installation.pod()["status"]["podIP"])
    assert installation.cluster.fetch(f"http://{operator}:8080/readyz")
    assert installation.reconciled() > 0
    (pod,) = pods_of(namespace, "demo")
    assert b"vllm:" in installation.cluster.fetch(f"http://{in_url(pod['status']['podIP'])}:8000/metrics")
