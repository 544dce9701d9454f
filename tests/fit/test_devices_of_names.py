"""Devices by their names, and by the labels of a node."""

from __future__ import annotations

from pathlib import Path

import pytest

from slipway.fit import UnknownDevice, named, of_labels
from slipway.fit.devices import FACTS, MAJOR, MEMORY, MINOR, PRODUCT

ROOT = Path(__file__).parents[2]
GIB = 1 << 30


@pytest.mark.parametrize("fact", FACTS, ids=[fact.name for fact in FACTS])
def test_each_is_found_by_its_own_name_and_gives_no_more_than_it_has(fact) -> None:
    device = named(fact.name)
    assert device.name == fact.name
    assert device.arch == (fact.arch if fact.arch < 120 else 89)
    assert 0.99 * fact.mib <= device.memory / (1 << 20) <= fact.mib
    assert fact.source.startswith("https://") or (ROOT / fact.source).is_file()


def test_12_x_is_planned_for_as_kernels_run_on_it() -> None:
    assert of_labels({PRODUCT: "NVIDIA-RTX-PRO-6000", MEMORY: "97887", MAJOR: "12", MINOR: "0"}).arch == 89


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("h100", "H100 80GB"),
        ("H100-80GB", "H100 80GB"),
        ("NVIDIA-H100-80GB-HBM3", "H100 80GB"),
        ("NVIDIA H200", "H200"),
        ("NVIDIA-A100-SXM4-40GB", "A100 40GB"),
        ("NVIDIA-A100-SXM4-80GB", "A100 80GB"),
        ("NVIDIA-L40S", "L40S"),
        ("Tesla-T4", "T4"),
        ("NVIDIA-GeForce-RTX-4090", "RTX 4090"),
        ("4090", "RTX 4090"),
        ("NVIDIA-A10G", "A10G"),
    ],
)
def test_what_people_the_driver_and_labels_write_means_the_same(name: str, meant: str) -> None:
    assert named(name).name == meant


def test_a_name_that_two_have_is_not_guessed() -> None:
    with pytest.raises(UnknownDevice, match=r"A100 is A100 80GB or A100 40GB\. Say which"):
        named("A100")


def test_an_unknown_name_gets_a_near_one_and_a_way_out() -> None:
    with pytest.raises(UnknownDevice, match=r"H10O 80GB is no device that is known\. Did you mean H100 80GB"):
        named("H10O 80GB")
    with pytest.raises(UnknownDevice, match="--device-memory"):
        named("abacus")


def test_what_labels_say_goes_before_the_table() -> None:
    labels = {PRODUCT: "NVIDIA-H100-80GB-HBM3-MIG-1g.10gb", MEMORY: "9984", MAJOR: "9", MINOR: "0"}
    device = of_labels(labels)
    assert (device.name, device.arch) == (labels[PRODUCT], 90)
    assert 9.6 * GIB < device.memory < 9984 << 20


def test_labels_without_memory_are_looked_up_by_product() -> None:
    assert of_labels({PRODUCT: "NVIDIA-L4"}) == named("L4")
    assert of_labels({PRODUCT: "NVIDIA-L4", MEMORY: "many"}) == named("L4")


def test_labels_without_capability_have_that_of_the_product() -> None:
    assert of_labels({PRODUCT: "NVIDIA-L4", MEMORY: "23034"}) == of_labels(
        {PRODUCT: "NVIDIA-L4", MEMORY: "23034", MAJOR: "8", MINOR: "9"}
    )
    assert of_labels({PRODUCT: "Orange-9", MEMORY: "1024"}).arch == 0


@pytest.mark.parametrize(
    "labels", [{}, {"kubernetes.io/arch": "amd64"}, {PRODUCT: "Orange-9"}, {PRODUCT: "NVIDIA-L4-MIG-1g.5gb"}]
)
def test_labels_that_say_too_little_are_refused(labels: dict[str, str]) -> None:
    with pytest.raises(UnknownDevice):
        of_labels(labels)


@pytest.mark.parametrize("fact", FACTS, ids=[fact.name for fact in FACTS])
def test_the_manual_has_the_table(fact) -> None:
    page = (ROOT / "docs" / "fit.md").read_text().replace("`", "")
    assert f"\n| {fact.name} | {fact.mib:,} MiB | {fact.source}" in page
