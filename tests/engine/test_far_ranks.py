"""Ranks of one engine on two hosts, which are two loopback addresses here: their memory is not shared."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from e2e.ground.patience import scaled
from e2e.ground.ports import free_ports

from far_hosts import FIRST, far_ranks, second_host
from local_engine import LocalEngine, Output
from lora_folder import lora_folder
from slipway.dist import rendezvous
from slipway.dist.beats import Heartbeats
from slipway.engine.messages import AdapterRef
from slipway.engine.params import SamplingParams
from slipway.exits import ENGINE_DIED, RANKS_MISSING, WORKER_KILLED, Exit

pytestmark = pytest.mark.slow

TinyModels = Callable[[str], Path]


def prompts(count: int = 3) -> list[list[int]]:
    random = np.random.default_rng(7)
    return [random.integers(3, 500, 20 + 9 * number).tolist() for number in range(count)]


@pytest.fixture
def common(tiny_models: TinyModels, cluster_key: Path) -> dict[str, Any]:
    """What both hosts are told."""
    return {
        "model": str(tiny_models("llama")),
        "dtype": "float32",
        "threads": 1,
        "tensor_parallel_size": 2,
        "nnodes": 2,
        "master_addr": FIRST,
        "master_port": free_ports(2),
        "cluster_key_file": str(cluster_key),
        "use_tqdm_on_load": False,
        "max_num_seqs": 32,
    }


def said(node: subprocess.Popen[str]) -> str:
    assert node.stdout is not None
    return node.stdout.read()


def run(engine: LocalEngine, requests: list[list[int]]) -> list[Output]:
    return engine.run([(tokens, SamplingParams(24, temperature=0.0, num_logprobs=2)) for tokens in requests])


@pytest.mark.parametrize("size", [2, 4])
def test_ranks_of_two_hosts_draw_what_those_of_one_draw_to_the_bit(size: int, common: dict[str, Any]) -> None:
    common["tensor_parallel_size"] = size
    with LocalEngine(**(common | {"nnodes": 1})) as near:
        expected = run(near, prompts())
    with second_host(common) as other:
        with LocalEngine(**common) as engine:
            assert len(far_ranks(other)) == size // 2
            assert run(engine, prompts()) == expected
        assert other.wait(timeout=scaled(30)) == ENGINE_DIED.code
        assert "EngineDied Node 0 has ended, or cannot be reached" in said(other)


def test_fully_sharded_adapters_of_two_hosts_are_those_of_one_to_the_bit(
    common: dict[str, Any], tmp_path: Path
) -> None:
    """What is told of A · x is as long as rows with an adapter are many."""
    folder = lora_folder(Path(common["model"]), tmp_path / "it", rank=3)
    ref = AdapterRef(1, "it", str(folder))
    common |= {"max_loras": 1, "fully_sharded_loras": True}

    def said_by(engine: LocalEngine) -> list[Output]:
        params = SamplingParams(24, temperature=0.0, num_logprobs=2)
        asked = [(tokens, one) for tokens in prompts() for one in (ref, None)]
        names = [engine.add(tokens, params, adapter=one) for tokens, one in asked]
        engine.finish()
        return [engine.output(name) for name in names]

    with LocalEngine(**(common | {"nnodes": 1})) as near:
        expected = said_by(near)
    assert expected[0].tokens != expected[1].tokens
    with second_host(common) as other:
        with LocalEngine(**common) as engine:
            assert said_by(engine) == expected
        assert other.wait(timeout=scaled(30)) == ENGINE_DIED.code


def staged(common: dict[str, Any], tensor: int, stages: int, nodes: int) -> dict[str, Any]:
    """Over so many hosts."""
    ranks = {"tensor_parallel_size": tensor, "pipeline_parallel_size": stages, "nnodes": nodes}
    return common | ranks | {"master_port": free_ports(2 + tensor * stages)}


@pytest.mark.parametrize(("tensor", "stages", "nodes"), [(1, 2, 2), (2, 2, 2), (2, 2, 4)])
def test_stages_of_several_hosts_draw_what_those_of_one_draw_to_the_bit(
    tensor: int, stages: int, nodes: int, common: dict[str, Any]
) -> None:
    fields = staged(common, tensor, stages, nodes)
    with LocalEngine(**(fields | {"nnodes": 1})) as near:
        expected = run(near, prompts())
    with ExitStack() as hosts:
        others = [hosts.enter_context(second_host(fields, node)) for node in range(1, nodes)]
        with LocalEngine(**fields) as engine:
            assert run(engine, prompts()) == expected
        for other in others:
            assert other.wait(timeout=scaled(30)) == ENGINE_DIED.code


def test_no_port_between_hosts_is_open_while_they_serve(common: dict[str, Any]) -> None:
    with second_host(common) as other, LocalEngine(**common) as engine:
        run(engine, prompts(1))
        found = subprocess.run(["ss", "-Hltnp"], capture_output=True, text=True, check=True).stdout
        ours = [f"pid={pid}," for pid in (os.getpid(), other.pid, *far_ranks(other))]
        assert [line for line in found.splitlines() if any(pid in line for pid in ours)] == []


@pytest.mark.parametrize(("tensor", "stages"), [(2, 1), (1, 2)])
def test_a_killed_far_rank_ends_both_hosts_with_its_name(
    tensor: int, stages: int, common: dict[str, Any]
) -> None:
    fields = staged(common, tensor, stages, 2)
    with second_host(fields) as other:
        with LocalEngine(**fields) as engine:
            engine.add(prompts(1)[0], SamplingParams(400, temperature=0.0))
            engine.core.run_once()
            (rank,) = far_ranks(other)
            os.kill(rank, signal.SIGKILL)
            with pytest.raises(Exit, match=r"Rank 1 on 127\.0\.0\.3 ended\.") as caught:
                engine.finish()
            assert caught.value.exit_code is ENGINE_DIED
        assert other.wait(timeout=scaled(30)) == WORKER_KILLED.code
        assert f"WorkerKilled Rank 1 (process {rank}) ended with SIGKILL" in said(other)


def test_a_far_rank_that_stands_still_is_found_by_its_silence(
    common: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Heartbeats, "silence", 2.0)
    with second_host(common) as other, LocalEngine(**common) as engine:
        engine.add(prompts(1)[0], SamplingParams(400, temperature=0.0))
        engine.core.run_once()
        (rank,) = far_ranks(other)
        os.kill(rank, signal.SIGSTOP)
        with pytest.raises(Exit, match=r"Rank 1 on 127\.0\.0\.3 was not heard for [23] s"):
            engine.finish()


def test_a_host_that_is_told_to_end_ends_its_ranks_and_the_engine(common: dict[str, Any]) -> None:
    with second_host(common) as other, LocalEngine(**common) as engine:
        run(engine, prompts(1))
        (rank,) = far_ranks(other)
        other.terminate()
        assert other.wait(timeout=scaled(30)) == 0
        assert not Path(f"/proc/{rank}").exists()
        with pytest.raises(Exit, match=r"Rank 1 on 127\.0\.0\.3 ended"):
            run(engine, prompts(1))


def test_a_first_host_that_gives_up_waiting_says_who_is_missing_and_ends_who_has_come(
    common: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rendezvous, "PATIENCE", 3.0)
    common |= {"nnodes": 4, "tensor_parallel_size": 4}
    with second_host(common) as other:
        with pytest.raises(Exit, match="rank 2 of node 2, rank 3 of node 3 have not come"):
            LocalEngine(**common)
        assert other.wait(timeout=scaled(30)) == RANKS_MISSING.code
        assert "Node 0 ended before all ranks had come" in said(other)
