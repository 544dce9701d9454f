"""Ranks that share a model's matrices on devices: as processes, by the calls that NCCL gets, over gloo."""

from __future__ import annotations

import ctypes
import json
import multiprocessing
import os
import signal
import subprocess
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from e2e.ground.patience import scaled

import device_rank
from device_runs import SMALL
from factory import model_folders
from local_engine import LocalEngine
from made_adapter import Made
from slipway.engine.config import DraftConfig, EngineConfig
from slipway.engine.link import Allocate, Question
from slipway.engine.messages import AdapterRef
from slipway.engine.params import SamplingParams
from slipway.engine.planned import check_ranks_on_devices
from slipway.engine.ranked import RankedWorker
from slipway.engine.team import Team
from slipway.exits import DEVICE_UNAVAILABLE, Exit
from slipway.worker.device import joining
from slipway.worker.device.meeting import Meeting, Met
from slipway_kernels.collective import Peers, all_reduce
from slipway_kernels.cpu import RankLeft

Models = Callable[[str], Path]
FORKING = multiprocessing.get_context("forkserver")
FORKING.set_forkserver_preload([device_rank.__name__])  # imports take a rank longer than what it computes
LAYERS = 2
PROMPTS = [[5, 9, 31, 7, 120, 44, 3, 17, 260], [40, 41], [7]]
GREEDY = {"max_tokens": 4, "temperature": 0.0}
WORK = [(prompt, GREEDY) for prompt in PROMPTS]


@dataclass
class Said:
    """What each rank has told of its run."""

    ranks: list[dict[str, Any]]

    def one(self, name: str) -> Any:
        """Which is the same of all ranks."""
        first, *others = (rank[name] for rank in self.ranks)
        assert all(other == first for other in others), name
        return first

    @property
    def steps(self) -> list[list[list[Any]]]:
        """The calls of each step, the same on every rank."""
        calls, ends = self.one("calls"), self.one("steps")
        return [calls[begin:end] for begin, end in pairwise(ends)]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Models:
    sizes: dict[str, Any] = {"num_hidden_layers": LAYERS}
    names = {name: (name, sizes) for name in ("llama", "qwen2_moe", "gemma2")}
    names["gemma2"] = ("gemma2", sizes | {"head_dim": 24, "sliding_window": 6})
    odd = {"vocab_size": 503, "num_attention_heads": 6, "num_key_value_heads": 3, "hidden_size": 48}
    names["odd"] = ("llama", sizes | odd)
    return model_folders(tmp_path_factory.mktemp("shared"), names)


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., Said]:
    def ranks(model: Path, size: int = 2, **job: Any) -> Said:
        settings = SMALL | job.pop("settings", {})
        variables = job.pop("variables", {})
        told = {
            "model": str(model),
            "size": size,
            "settings": settings,
            "work": WORK,
            "graphs": [],
            "peers": False,
        }
        (tmp_path / "job.json").write_text(json.dumps(told | job))
        job_file = tmp_path / "job.json"
        processes = [
            FORKING.Process(target=device_rank.main, args=(job_file, rank, variables)) for rank in range(size)
        ]
        for process in processes:
            process.start()
        try:
            for process in processes:
                process.join(scaled(240))
            assert [process.exitcode for process in processes] == [0] * size
        finally:
            for process in processes:
                process.kill()
        return Said([msgspec.json.decode((tmp_path / f"said{rank}").read_bytes()) for rank in range(size)])

    return ranks


def alone(model: Path, **fields: Any) -> list[list[int]]:
    adapter = fields.pop("adapter", None)
    with LocalEngine(model, **(SMALL | {"device": "cuda"} | fields)) as engine:
        names = [engine.add(tokens, SamplingParams(**GREEDY), adapter=adapter) for tokens in PROMPTS]
        engine.finish()
        return [engine.output(name).tokens for name in names]


def expected_calls(rows: int, drawn: int, hidden: int, widest: int) -> list[list[Any]]:
    """Embedding, attention and feed-forward of each layer, logits, tokens."""
    sums = [["all_reduce", [rows, hidden], "torch.float32"]] * (1 + 2 * LAYERS)
    return [*sums, ["all_gather", [drawn, widest], "torch.float32"], ["broadcast", [drawn], "torch.int32"]]


@pytest.mark.parametrize("name", ["llama", "qwen2_moe", "gemma2"])
def test_ranks_together_say_what_one_does_by_the_same_calls(
    models: Models, run: Callable[..., Said], name: str
) -> None:
    model = models(name)
    said = run(model)
    assert said.one("tokens") == alone(model)
    config = json.loads((model / "config.json").read_text())
    for step in said.steps:
        (_, (rows, _), _), (_, (drawn, _), _) = step[0], step[-2]
        assert step == expected_calls(rows, drawn, config["hidden_size"], config["vocab_size"] // 2)


def test_ranks_with_experts_of_their_own_add_up_the_same(models: Models, run: Callable[..., Said]) -> None:
    model = models("qwen2_moe")
    said = run(model, settings={"enable_expert_parallel": True})
    assert said.one("tokens") == alone(model)
    assert {len(step) for step in said.steps} == {1 + 2 * LAYERS + 2}


def test_heads_and_tokens_that_do_not_divide_are_some_ranks(models: Models, run: Callable[..., Said]) -> None:
    model = models("odd")
    said = run(model)
    assert said.one("tokens") == alone(model)
    assert {tuple(call[1][1:]) for call in said.one("calls") if call[0] == "all_gather"} == {(256,)}


def test_key_heads_are_repeated_where_ranks_are_more(models: Models, run: Callable[..., Said]) -> None:
    model = models("llama")
    assert json.loads((model / "config.json").read_text())["num_key_value_heads"] == 2
    assert run(model, size=4).one("tokens") == alone(model)


def test_adapters_add_before_the_sum(models: Models, run: Callable[..., Said], tmp_path: Path) -> None:
    """To every product, the embedding and the head; they send nothing more."""
    model = models("llama")
    one = Made(model, tmp_path / "adapter", seed=1, r=4, lora_alpha=8)
    one.everywhere()
    ref: AdapterRef = one.save()
    served = {"max_loras": 1, "max_lora_rank": 4}
    adapter = {"number": ref.number, "name": ref.name, "folder": ref.folder}
    said = run(model, settings=served, adapter=adapter)
    assert said.one("tokens") == alone(model, adapter=ref, **served) != alone(model)
    assert {len(step) for step in said.steps} == {1 + 2 * LAYERS + 2}


@pytest.mark.parametrize("peers", [False, True])
def test_adapters_of_which_ranks_share_both_matrices_meet_once_more_for_each_product(
    models: Models, run: Callable[..., Said], tmp_path: Path, peers: bool
) -> None:
    """In graphs, too: A · x of queries, keys and values as one, of what attention makes, and so on."""
    model = models("llama")
    ref: AdapterRef = Made(model, tmp_path / "adapter", seed=1, r=3).everywhere(3).save()
    served = {"max_loras": 1, "max_lora_rank": 4}
    adapter = {"number": ref.number, "name": ref.name, "folder": ref.folder}
    said = run(
        model, settings=served | {"fully_sharded_loras": True}, adapter=adapter, graphs=[1, 4], peers=peers
    )
    assert said.one("tokens") == alone(model, adapter=ref, **served) != alone(model)
    assert said.one("replayed") > 0
    sums = 1 + 2 * LAYERS + 4 * LAYERS
    assert said.one("rounds") - said.one("rounds before") == (sums * len(said.steps) if peers else 0)
    hidden = json.loads((model / "config.json").read_text())["hidden_size"]
    for step in said.steps:
        *added_up, joined, agreed = step
        assert [joined[0], agreed[0]] == ["all_gather", "broadcast"]
        rows = 0 if peers else added_up[0][1][0]
        widths = [hidden, *[3 * 4, 4, hidden, 2 * 4, 4, hidden] * LAYERS]
        expected = [["all_reduce", [rows, width], "torch.float32"] for width in widths]
        assert added_up == ([] if peers else expected)


def test_steps_in_graphs_send_the_same_and_captures_nothing(models: Models, run: Callable[..., Said]) -> None:
    """Each rank captures when it has time: what runs before a capture must not wait for the others."""
    model = models("llama")
    said = run(model, graphs=[1, 4])
    assert said.one("replayed") > 0
    assert said.one("tokens") == alone(model)
    assert {len(step) for step in said.steps} == {1 + 2 * LAYERS + 2}
    of_largest_step = [name for name, *_ in said.one("before")]  # once the ranks have met; no capture sent
    assert of_largest_step == ["all_reduce"] * (1 + 2 * LAYERS) + ["all_gather", "broadcast", "all_gather"]


def test_a_rank_with_graphs_and_one_without_send_as_many_rows(
    models: Models, run: Callable[..., Said]
) -> None:
    model = models("llama")
    said = run(model, graphs=[4], graphed=[0], settings={"max_num_seqs": 8})
    assert said.one("tokens") == alone(model)
    assert {tuple(step[0][1]) for step in said.steps} == {(4, 64), (8, 64)}
    assert [one["replayed"] > 0 for one in said.ranks] == [True, False]


def test_peers_that_reach_each_other_add_up_without_the_group(
    models: Models, run: Callable[..., Said]
) -> None:
    model = models("llama")
    said = run(model, graphs=[1, 4], peers=True)
    assert said.one("tokens") == alone(model)
    assert {tuple(call[0] for call in step) for step in said.steps} == {("all_gather", "broadcast")}
    assert said.one("rounds") == (1 + 2 * LAYERS) * (1 + len(said.steps))


def test_one_rank_that_cannot_reach_a_peer_has_all_use_the_group(
    models: Models, run: Callable[..., Said]
) -> None:
    said = run(models("llama"), peers=True, unreached=1, work=WORK[1:2])
    assert {len(step) for step in said.steps} == {1 + 2 * LAYERS + 2}
    assert said.one("rounds") == 0


def test_peers_are_left_to_the_group_where_the_user_says_so(models: Models, run: Callable[..., Said]) -> None:
    said = run(models("llama"), peers=True, settings={"disable_custom_all_reduce": True}, work=WORK[1:2])
    assert {len(step) for step in said.steps} == {1 + 2 * LAYERS + 2}
    assert said.one("rounds") == 0


@pytest.mark.parametrize("skip", ["0", "1"])
def test_what_a_peer_wrote_must_arrive_unless_the_user_trusts_the_driver(
    models: Models, run: Callable[..., Said], skip: str
) -> None:
    said = run(
        models("llama"), peers=True, misread=1, variables={"VLLM_SKIP_P2P_CHECK": skip}, work=WORK[1:2]
    )
    assert (said.one("rounds") > 0) == (skip == "1")


def test_an_engine_starts_its_ranks_and_says_what_one_does(models: Models) -> None:
    model = models("llama")
    seeded = SamplingParams(4, temperature=0.9, top_k=20, seed=3, repetition_penalty=1.2, num_logprobs=1)
    work = [(prompt, seeded) for prompt in PROMPTS]
    found = []
    for size in (1, 2):
        with LocalEngine(model, **(SMALL | {"device": "cuda", "tensor_parallel_size": size})) as engine:
            found.append([output.tokens for output in engine.run(work)])
    assert found[0] == found[1]


def test_ranks_of_a_host_listen_to_nobody_once_they_have_met(models: Models) -> None:
    with LocalEngine(models("llama"), **SMALL, device="cuda", tensor_parallel_size=2) as engine:
        found = subprocess.run(["ss", "-Hltnp"], capture_output=True, text=True, check=True).stdout
        ours = [os.getpid(), *(other.pid for other in engine.worker.team.ranks.values())]
        assert [line for line in found.splitlines() if any(f"pid={pid}," in line for pid in ours)] == []


@pytest.mark.parametrize("method", ["ngram", "draft model"])
def test_what_guesses_guesses_the_same_on_every_rank(models: Models, method: str) -> None:
    model = models("llama")
    draft = None if method == "ngram" else DraftConfig(method="draft_model", model=str(model))
    greedy = SamplingParams(8, temperature=0.0)
    found = []
    for size in (1, 2):
        settings = SMALL | {"device": "cuda", "tensor_parallel_size": size, "num_drafts": 2, "draft": draft}
        with LocalEngine(model, **settings) as engine:
            outputs = engine.run([([5, 9, 5, 9, 5, 9, 5], greedy), ([40, 41], greedy)])
            speculated = [one.speculated for one in engine.hub.stats if one.speculated]
        assert sum(one.proposed for one in speculated) > 0
        # A target that guesses its own tokens guesses right.
        assert draft is None or sum(one.accepted for one in speculated) > 0
        found.append([output.tokens for output in outputs])
    assert found[0] == found[1]


def test_a_killed_rank_ends_the_engine_with_its_name(models: Models) -> None:
    settings = SMALL | {"device": "cuda", "tensor_parallel_size": 2}
    with LocalEngine(models("llama"), **settings) as engine:
        engine.add(PROMPTS[0], SamplingParams(40, temperature=0.0))
        engine.core.run_once()
        assert isinstance(engine.worker, RankedWorker)
        (rank,) = [other.pid for other in engine.worker.team.ranks.values()]
        os.kill(rank, signal.SIGKILL)
        with pytest.raises(Exit, match=rf"Rank 1 \(process {rank}\) ended with SIGKILL"):
            engine.finish()


def test_a_rank_that_fails_where_all_meet_ends_the_engine(
    models: Models, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This one waits for it, and would for as long as torch does."""
    tell = Team.ask

    def broken(self: Team, question: Question, ranks: Iterable[int] | None = None) -> list[Future[int]]:
        return tell(self, Allocate(-1) if isinstance(question, Allocate) else question, ranks)

    monkeypatch.setattr(Team, "ask", broken)
    with pytest.raises(Exit, match="size must be non-negative"):
        LocalEngine(models("llama"), **SMALL, device="cuda", tensor_parallel_size=2)


def test_a_rank_that_is_left_meets_nobody() -> None:
    begun, never = threading.Event(), threading.Event()

    def meet() -> Met:
        begun.set()
        never.wait()
        raise AssertionError

    meeting = Meeting(meet)
    leaving = threading.Thread(target=lambda: (begun.wait(), meeting.leave()))
    leaving.start()
    with pytest.raises(RankLeft):
        meeting.wait()
    leaving.join()
    never.set()


def test_ranks_that_find_too_few_devices_are_told_both_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    check_ranks_on_devices(EngineConfig(model="m", tensor_parallel_size=3))
    with pytest.raises(Exit, match=r"--tensor-parallel-size 4: .* torch finds 3 for them") as caught:
        check_ranks_on_devices(EngineConfig(model="m", tensor_parallel_size=4))
    assert caught.value.exit_code is DEVICE_UNAVAILABLE
    assert caught.value.argument == "tensor_parallel_size"
    of_a_node = {"pipeline_parallel_size": 4, "nnodes": 2, "node_rank": 1}
    check_ranks_on_devices(EngineConfig(model="m", **of_a_node))
    told = r"--pipeline-parallel-size 4 over --nnodes 2: each of 2 ranks here .* finds 1 for them"
    with pytest.raises(Exit, match=told) as caught:
        check_ranks_on_devices(EngineConfig(model="m", **of_a_node, first_device=2))
    assert caught.value.argument == "pipeline_parallel_size"


def test_a_rank_takes_the_device_of_its_place_on_its_host(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[torch.device] = []
    monkeypatch.setattr(joining, "device_in_use", lambda: torch.device("cuda"))
    monkeypatch.setattr(torch.cuda, "set_device", taken.append)
    sizes = {"tensor_parallel_size": 4, "nnodes": 2, "node_rank": 1}
    assert joining.device_of(EngineConfig(model="m", **sizes, rank=3)) == torch.device("cuda", 1)
    launched = EngineConfig(model="m", **(sizes | {"nnodes": 4, "node_rank": 3}), rank=3, first_device=3)
    assert joining.device_of(launched) == torch.device("cuda", 3)
    assert [one.index for one in taken] == [1, 3]


def test_a_rank_that_leaves_waits_in_no_kernel(tmp_path: Path) -> None:
    """Nobody else comes to this sum."""
    memory = device_rank.SharedFile(tmp_path, 0, 2)
    other = device_rank.SharedFile(tmp_path, 1, 2)
    peers = Peers.of(0, [memory.address, memory.opened(other.handle)], torch.device("cpu"))
    x = torch.ones(8)
    waits = threading.Thread(target=all_reduce, args=(x, peers, x), daemon=True)
    waits.start()
    flags = torch.frombuffer((ctypes.c_int64 * 2).from_address(other.address), dtype=torch.int64)
    while not flags[0]:  # this rank has come to the other's flags
        pass
    assert waits.is_alive()
    memory.leave()
    waits.join(scaled(60))
    assert not waits.is_alive()
