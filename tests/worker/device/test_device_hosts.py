"""Ranks with devices on two hosts: by the calls that NCCL gets, over gloo, from addresses of their own."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from e2e.ground.patience import scaled
from e2e.ground.ports import free_ports

from device_runs import SMALL, assert_same
from factory import make_model
from far_hosts import FIRST, far_ranks, second_host
from local_engine import LocalEngine, Output
from slipway.dist.hosts import listeners
from slipway.dist.ports import interface_of
from slipway.engine.config import EngineConfig
from slipway.engine.params import SamplingParams
from slipway.exits import ENGINE_DIED, Exit

pytestmark = pytest.mark.slow

WORK = [
    (tokens, SamplingParams(5, temperature=0.0, num_logprobs=2))
    for tokens in ([5, 9, 31, 7, 120, 44, 3, 17, 260], [40, 41], [7])
]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model("llama", tmp_path_factory.mktemp("models") / "llama", num_hidden_layers=2)


@pytest.fixture(scope="module")
def alone(model: Path) -> list[Output]:
    with LocalEngine(model, **SMALL, device="cuda") as engine:
        return engine.run(WORK)


@pytest.fixture
def served(model: Path, cluster_key: Path) -> Callable[[int, int], dict[str, Any]]:
    """What both hosts are told."""

    def fields(tensor: int, stages: int) -> dict[str, Any]:
        return {
            **SMALL,
            "model": str(model),
            "device": "cuda",
            "tensor_parallel_size": tensor,
            "pipeline_parallel_size": stages,
            "nnodes": 2,
            "master_addr": FIRST,
            "master_port": free_ports(2),
            "cluster_key_file": str(cluster_key),
            "use_tqdm_on_load": False,
        }

    return fields


@pytest.mark.parametrize(("tensor", "stages"), [(2, 1), (2, 2), (1, 2)])
def test_ranks_of_two_hosts_say_what_one_says_and_leave_no_port_open(
    served: Callable[..., dict[str, Any]], alone: list[Output], tensor: int, stages: int
) -> None:
    def listening(*pids: int) -> set[str]:
        found = subprocess.run(["ss", "-Hltnp"], capture_output=True, text=True, check=True).stdout
        return {line for line in found.splitlines() if any(f"pid={pid}," in line for pid in pids)}

    fields = served(tensor, stages)
    before = listening(os.getpid())  # other tests' in this process
    with second_host(fields) as other:
        with LocalEngine(**fields) as engine:
            assert_same(engine.run(WORK), alone)
            assert listening(os.getpid(), other.pid, *far_ranks(other)) <= before
        assert other.wait(timeout=scaled(30)) == ENGINE_DIED.code


def test_a_killed_far_rank_ends_both_hosts_with_its_name(served: Callable[..., dict[str, Any]]) -> None:
    fields = served(2, 1)
    with second_host(fields) as other, LocalEngine(**fields) as engine:
        engine.add(WORK[0][0], SamplingParams(40, temperature=0.0))
        engine.core.run_once()
        (rank,) = far_ranks(other)
        os.kill(rank, signal.SIGKILL)
        with pytest.raises(Exit, match=r"Rank 1 on 127\.0\.0\.3 ended"):
            engine.finish()
        other.wait(timeout=scaled(30))


def test_the_list_of_what_listens_names_torch_and_nccl() -> None:
    config = EngineConfig(
        model="m", device="cuda", pipeline_parallel_size=2, nnodes=2, master_addr=FIRST, master_port=9000
    )
    told = [str(one) for one in listeners(config)]
    assert told[0].startswith(f"{FIRST}, port 9000: ranks report")
    assert told[1].startswith(f"{FIRST}, port 9001: torch's store; not authenticated, not encrypted")
    assert [line.split(": ")[1].split(";")[0] for line in told[2:]] == ["gloo of rank 0", "NCCL of rank 0"]
    assert told[-1].endswith("open until the server ends")


def test_an_address_is_found_on_its_interface() -> None:
    lines = subprocess.run(["ip", "-o", "-4", "address"], capture_output=True, text=True, check=True).stdout
    seen = [line.split() for line in lines.splitlines()]
    assert {interface_of(row[3].partition("/")[0]) for row in seen} >= {"lo"}
    for _, name, _, address, *_ in seen:
        assert interface_of(address.partition("/")[0]) == name
    assert interface_of("::1") == "lo"
    assert interface_of("192.0.2.7") is None
