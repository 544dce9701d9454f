"""What starts ranks where the command leaves it open, and which place each has on a Ray cluster."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from slipway.dist.executor_choice import Surroundings, executor, ray_cluster
from slipway.dist.mesh import Mesh
from slipway.dist.placing import bundles_of_ranks, split_stages
from slipway.dist.ray import Cluster
from slipway.exits import MISSING_PACKAGE, Exit


@pytest.mark.parametrize(
    ("wanted", "ranks", "around", "starts"),
    [
        (None, 1, Surroundings(1, True, "10.0.0.1:6379"), "uni"),
        (None, 4, Surroundings(4, True, "10.0.0.1:6379"), "mp"),
        ("auto", 4, Surroundings(None, False, None), "mp"),
        ("auto", 8, Surroundings(4, True, "10.0.0.1:6379"), "ray"),
        ("auto", 8, Surroundings(4, True, "10.0.0.1:6379", hosts=2), "mp"),
        ("ray", 1, Surroundings(1, False, None), "ray"),
        ("mp", 8, Surroundings(4, True, "10.0.0.1:6379"), "mp"),
        ("external_launcher", 8, Surroundings(1, False, None), "external_launcher"),
    ],
)
def test_ranks_that_fit_here_start_here_and_others_on_ray(wanted, ranks, around, starts):
    assert executor(wanted, ranks, around) == starts


@pytest.mark.parametrize(
    ("around", "why"),
    [
        (Surroundings(2, True, None), "which has 2 GPUs, and no Ray cluster was found"),
        (Surroundings(1, False, "10.0.0.1:6379"), "which has 1 GPU, and the package ray is not installed"),
    ],
)
def test_ranks_without_a_place_are_told_of_both_ways(around, why):
    with pytest.raises(Exit, match=why) as refused:
        executor(None, 4, around)
    assert "4 ranks" in refused.value.message
    assert all(word in refused.value.hint for word in ("RAY_ADDRESS", "'.[ray]'", "--nnodes"))


def test_a_cluster_is_where_rays_own_commands_would_find_it(tmp_path: Path):
    environ = {"RAY_TMPDIR": str(tmp_path)}
    assert ray_cluster(environ) is None
    (tmp_path / "ray").mkdir()
    (tmp_path / "ray" / "ray_current_cluster").write_text("10.0.0.1:6379\n")
    assert ray_cluster(environ) == ray_cluster(environ | {"RAY_ADDRESS": "auto"}) == "10.0.0.1:6379"
    assert ray_cluster(environ | {"RAY_ADDRESS": "10.0.0.2:1"}) == "10.0.0.2:1"
    assert ray_cluster(environ | {"RAY_ADDRESS": "local"}) is None


def test_a_server_without_ray_is_told_of_its_extra(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(Exit, match="The Python package ray, which") as refused:
        Cluster({"RAY_ADDRESS": "10.0.0.1:6379"})
    assert refused.value.exit_code is MISSING_PACKAGE
    assert refused.value.hint == "Install it on every node: pip install '.[ray]' in a clone of Slipway."


def test_a_nodes_ranks_are_together_and_the_first_is_here():
    nodes = {0: "b", 1: "c", 2: "a", 3: "b", 4: "c", 5: "c", 6: "a"}
    assert bundles_of_ranks(Mesh(tp=7), nodes, "b") == [0, 3, 2, 6, 1, 4, 5]
    assert bundles_of_ranks(Mesh(tp=3), nodes, "c") == [1, 4, 5]
    assert bundles_of_ranks(Mesh(tp=2), nodes, "b", [3, 1]) == [3, 1]


def test_a_group_with_too_few_bundles_or_none_here_is_refused():
    with pytest.raises(
        Exit, match=r"A rank fits in 1 of the placement group's bundles, and 2 ranks want one each"
    ):
        bundles_of_ranks(Mesh(tp=2), {0: "a"}, "a")
    with pytest.raises(Exit, match=r"on the node b; its bundle in the placement group would be on a\."):
        bundles_of_ranks(Mesh(tp=2), {0: "a", 1: "a"}, "b")


def test_stages_over_several_nodes_are_told():
    assert split_stages(Mesh(pp=2, tp=2), ["a", "a", "b", "b"]) == []
    assert split_stages(Mesh(pp=2, tp=2), ["a", "a", "b", "c"]) == ["stage 1 (b, c)"]
