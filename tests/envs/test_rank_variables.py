"""Variables by which ranks find each other, and those of a launcher."""

from __future__ import annotations

import pytest

from slipway.args import ArgumentError, resolve
from slipway.envs import InvalidEnvironment, Launched, check, read

TORCHRUN = {
    "RANK": "3",
    "LOCAL_RANK": "1",
    "WORLD_SIZE": "4",
    "MASTER_ADDR": "10.0.0.1",
    "MASTER_PORT": "29400",
}
LAUNCHER = ["m", "--distributed-executor-backend", "external_launcher"]
FOUR = [*LAUNCHER, "-tp", "2", "-pp", "2"]
RAY = ["m", "--distributed-executor-backend", "ray", "-tp", "2"]
NODES = ["m", "-n", "2", "-tp", "2"]


def test_what_ranks_will_read_is_typed():
    environment = read(
        {
            "VLLM_HOST_IP": "10.0.0.1",
            "VLLM_PORT": "4000",
            "VLLM_RAY_BUNDLE_INDICES": "1,0",
            "VLLM_DP_SIZE": "2",
        }
    )
    assert (environment.host_ip, environment.port, environment.dp_size) == ("10.0.0.1", 4000, 2)
    assert environment.ray_bundle_indices == (1, 0)
    assert read({}).port is None


def test_what_a_launcher_says_is_read_where_there_is_one():
    assert Launched.of(TORCHRUN) == Launched(3, 4, 1, "10.0.0.1", 29400)
    assert resolve(FOUR, TORCHRUN)["headless"]
    assert not resolve(FOUR, TORCHRUN | {"RANK": "0"})["headless"]
    malformed = {"RANK": "gold", "MASTER_PORT": "http"}
    assert not resolve(["m"], malformed)["headless"]
    read(malformed)


@pytest.mark.parametrize(
    ("changed", "variable", "sentence"),
    [
        (
            {"RANK": "", "MASTER_PORT": "tcp://10.0.0.9:80"},
            "MASTER_PORT",
            "--distributed-executor-backend external_launcher is told by variables which rank this is, and "
            "MASTER_PORT, RANK are not set. Start this command with a launcher that sets them, as torchrun "
            "does, or use mp.",
        ),
        (
            {"RANK": "4"},
            "RANK",
            "RANK=4 is none of WORLD_SIZE=4: they count from 0 to 3. Correct what the launcher sets.",
        ),
        (
            {"RANK": "-1"},
            "RANK",
            "RANK=-1 is not a whole number of at least 0. Number of the process among all that the launcher "
            "has started. Correct it or unset it.",
        ),
    ],
)
def test_a_launcher_that_says_too_little_ends_the_start(changed, variable, sentence):
    with pytest.raises(InvalidEnvironment) as caught:
        resolve(FOUR, TORCHRUN | changed)
    assert caught.value.variable == variable
    assert str(caught.value) == sentence


@pytest.mark.parametrize(
    ("argv", "sentence"),
    [
        (
            [*LAUNCHER, "-tp", "2"],
            "The launcher started WORLD_SIZE=4 processes, and --tensor-parallel-size 2 × "
            "--pipeline-parallel-size 1 asks for 2. Start as many.",
        ),
        (
            [*LAUNCHER, "-tp", "2", "-dp", "2"],
            "--data-parallel-size 2 is not for --distributed-executor-backend external_launcher: a launcher "
            "starts the ranks of one engine. Start a server for each copy, or use mp.",
        ),
    ],
)
def test_a_launcher_starts_as_many_as_the_engine_has(argv, sentence):
    with pytest.raises(ArgumentError) as caught:
        resolve(argv, TORCHRUN)
    assert caught.value.message == sentence


@pytest.mark.parametrize("stages", ["3", "2,2,2"])
def test_each_stage_has_a_number_of_layers(stages):
    with pytest.raises(InvalidEnvironment) as caught:
        resolve(["m", "-pp", "2"], {"VLLM_PP_LAYER_PARTITION": stages})
    count = stages.count(",") + 1
    assert str(caught.value) == (
        f"VLLM_PP_LAYER_PARTITION={stages} says how many layers each of {count} stages has, and "
        "--pipeline-parallel-size 2 asks for 2. Give one number for each stage."
    )
    resolve(["m", "-pp", str(count)], {"VLLM_PP_LAYER_PARTITION": stages})


@pytest.mark.parametrize("bundles", ["0", "1,1", "0,1,2"])
def test_each_rank_has_a_bundle_of_its_own(bundles):
    with pytest.raises(InvalidEnvironment) as caught:
        resolve(RAY, {"VLLM_RAY_BUNDLE_INDICES": bundles})
    assert str(caught.value) == (
        f"VLLM_RAY_BUNDLE_INDICES={bundles} must name a bundle for each rank, all different, and "
        "--tensor-parallel-size 2 × --pipeline-parallel-size 1 asks for 2."
    )
    resolve(RAY, {"VLLM_RAY_BUNDLE_INDICES": "5,3"})


def test_each_copy_that_ray_places_has_a_bundle_of_its_own() -> None:
    copies = ["m", "--data-parallel-size", "2", "--data-parallel-backend", "ray"]
    assert resolve(copies, {"VLLM_RAY_BUNDLE_INDICES": "1,0"})
    with pytest.raises(InvalidEnvironment, match="for each copy, all different, and --data-parallel-size 2"):
        resolve(copies, {"VLLM_RAY_BUNDLE_INDICES": "0"})


def test_what_is_rays_alone_warns_without_it():
    said = "VLLM_RAY_PER_WORKER_GPUS has no effect without --distributed-executor-backend ray."
    assert resolve(["m"], {"VLLM_RAY_PER_WORKER_GPUS": "0.5"}).warnings == (said,)
    assert not resolve(["m"], {"VLLM_RAY_PER_WORKER_GPUS": "1"}).warnings
    assert said not in resolve(RAY, {"VLLM_RAY_PER_WORKER_GPUS": "0.5"}).warnings


@pytest.mark.parametrize("address", ["0.0.0.0", "::"])
def test_ranks_on_several_hosts_listen_on_one_address(address):
    with pytest.raises(InvalidEnvironment, match="is every address of this host") as caught:
        resolve(NODES, {"VLLM_HOST_IP": address})
    assert caught.value.variable == "VLLM_HOST_IP"
    resolve(NODES, {"VLLM_HOST_IP": "10.0.0.1"})
    resolve(["m", "-tp", "2"], {"VLLM_HOST_IP": address})


def test_a_switch_of_rays_graphs_says_why_it_has_no_effect():
    assert check({"VLLM_USE_RAY_SPMD_WORKER": "1"}) == [
        "VLLM_USE_RAY_SPMD_WORKER=1 has no effect: Ray only starts ranks, which then talk among themselves: "
        "no plan and no tensor goes by it."
    ]
