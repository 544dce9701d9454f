"""Each example starts as it is, or says what it waits for."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from e2e.failing import KIND, Case, Failures, explaining
from e2e.ground.node import Cluster
from e2e.images.release import Released
from e2e.operators import ROOT

EXAMPLES = {path.stem: path for path in sorted((ROOT / "examples").glob("*.yaml"))}
WITHOUT_CACHE = Case(
    summary="ClaimMissing: PersistentVolumeClaim model-cache does not exist",
    advice="Create it, or correct its name in spec.model.pvc, spec.model.cache or spec.volumes.",
)
WAITING = {
    "bucket": WITHOUT_CACHE,
    "claims": Case(
        summary="ClaimMissing: ResourceClaimTemplate two-gpus does not exist",
        advice="Create it, or correct its name in spec.devices.claims.",
    ),
    "gpu": WITHOUT_CACHE,
    "hub": Case(
        summary="NoNetwork: .*",
        advice="the hub did not answer: [Errno -3] Temporary failure in name resolution. Check the network",
    ),
}
STARTING = {"demo"}


@pytest.fixture(scope="module")
def failures(
    cluster: Cluster, released: Released, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Failures]:
    with explaining(cluster, tmp_path_factory.mktemp("examples")) as found:
        yield found


def test_every_example_is_of_one_kind_or_the_other() -> None:
    assert {*EXAMPLES} == {*WAITING} | STARTING


@pytest.mark.parametrize("name", sorted(STARTING))
def test_an_example_starts(failures: Failures, name: str) -> None:
    failures.namespace.kubectl("apply", "-f", str(EXAMPLES[name]))
    failures.until_summary(name, "Serving: .*", 240)
    failures.namespace.kubectl("delete", KIND, name)


@pytest.mark.parametrize("name", WAITING)
def test_an_example_says_what_it_waits_for(failures: Failures, name: str) -> None:
    failures.namespace.kubectl("apply", "-f", str(EXAMPLES[name]))
    failures.until_status(name, WAITING[name])
    failures.namespace.kubectl("delete", KIND, name)
