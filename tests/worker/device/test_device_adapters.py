"""Adapters on a device: what they add, which of them are there, and that who has none pays nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from device_runs import SMALL, assert_near, assert_same, launches
from factory import model_folders
from local_engine import LocalEngine, Output
from made_adapter import LINEAR, Made
from repeated_graphs import Repeated
from slipway.engine.messages import AdapterRef
from slipway.engine.params import SamplingParams
from slipway.model.adapters import Addition
from slipway.model.own_rows import Own
from slipway.model.roles import Place
from slipway.worker.device import adapters as device_adapters
from slipway.worker.device.expert_low_rank import ExpertPlaces
from slipway.worker.device.low_rank import LowRank
from slipway.worker.device.worker import DeviceWorker

Models = Callable[[str], Path]
Asked = list[tuple[list[int], AdapterRef | None]]
GREEDY = SamplingParams(3, temperature=0.0, num_logprobs=3)
PROMPTS = [list(range(20, 26)), [40, 41], [7]]
SERVED: dict[str, object] = {"max_loras": 2, "max_lora_rank": 9}
CUDA: dict[str, object] = {"device": "cuda"}
QUANTIZED = [("int4", 0.25), ("int8", 0.25), ("fp8", 0.5)]
"""Ways, and by how much log-probabilities may differ from the CPU's."""


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Models:
    small: dict[str, Any] = {"num_hidden_layers": 1}
    sizes = {name: (name, small) for name in ("llama", "qwen2", "qwen2_moe", "mixtral")}
    sizes["qwen3_moe"] = ("qwen3_moe", small | {"head_dim": 24})
    sizes["gemma2"] = ("gemma2", {"num_hidden_layers": 2, "head_dim": 24, "sliding_window": 6})
    return model_folders(tmp_path_factory.mktemp("adapted"), sizes)


def made(model: Path, folder: Path, seed: int, rank: int, leaves: Sequence[str] = LINEAR) -> AdapterRef:
    """On these linear layers, and of rank 9 on the embedding and the head, too."""
    one = Made(model, folder, seed=seed, r=rank, lora_alpha=2 * rank)
    for name in load_file(model / "model.safetensors"):
        stem = name.removesuffix(".weight")
        if stem.endswith(tuple(leaves)) and "experts." not in name:
            one.linear(stem, rank)
    if rank == 9:
        one.embedding(rank=rank)
        if "lm_head.weight" in one.weights:
            one.linear("lm_head", rank)
    return one.save()


@pytest.fixture
def pair(models: Models, tmp_path: Path) -> Callable[[str], list[AdapterRef]]:
    """Two adapters of a model: a large one, and one of two layers."""

    def adapters(name: str) -> list[AdapterRef]:
        large = made(models(name), tmp_path / "large", 1, 9)
        return [large, made(models(name), tmp_path / "of_two", 2, 3, ("v_proj", "up_proj"))]

    return adapters


def run(engine: LocalEngine, asked: Asked) -> list[Output]:
    names = [engine.add(tokens, GREEDY, adapter=ref) for tokens, ref in asked]
    engine.finish()
    return [engine.output(name) for name in names]


def outputs(model: Path, asked: Asked, **settings: object) -> list[Output]:
    with LocalEngine(model, **SMALL | SERVED | settings) as engine:
        return run(engine, asked)


@pytest.mark.parametrize("name", ["llama", "gemma2", "qwen2_moe"])
def test_a_batch_over_two_adapters_and_none_is_the_cpus(
    models: Models, pair: Callable[[str], list[AdapterRef]], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Of a scaled embedding, a capped head, and experts that share one, computed in several passes."""
    monkeypatch.setenv("VLLM_FUSED_MOE_CHUNK_SIZE", "3")
    asked = list(zip(PROMPTS, [*pair(name), None], strict=True))
    found, expected = (outputs(models(name), asked, **device) for device in (CUDA, {}))
    assert_same(found, expected)
    bare = outputs(models(name), [(tokens, None) for tokens in PROMPTS])
    same = [one.logprobs == other.logprobs for one, other in zip(expected, bare, strict=True)]
    assert same == [False, False, True]


@pytest.mark.parametrize("name", ["mixtral", "qwen3_moe"])
def test_a_batch_with_factors_of_experts_is_the_cpus(
    models: Models, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """By module, in one tensor of all experts, and without any, computed in several passes."""
    monkeypatch.setenv("VLLM_FUSED_MOE_CHUNK_SIZE", "3")
    by_module, in_one, plain = of_experts(models(name), tmp_path)
    asked = list(zip([*PROMPTS, PROMPTS[0]], [by_module, in_one, None, plain], strict=True))
    settings = {"max_loras": 3}
    found, expected = (outputs(models(name), asked, **settings, **device) for device in (CUDA, {}))
    assert_same(found, expected)
    bare = outputs(models(name), [(tokens, None) for tokens, _ in asked])
    same = [one.logprobs == other.logprobs for one, other in zip(expected, bare, strict=True)]
    assert same == [False, False, True, False]


@pytest.mark.parametrize(("quantization", "largest"), QUANTIZED)
def test_quantized_experts_with_adapters_agree_with_the_cpus(
    models: Models, tmp_path: Path, quantization: str, largest: float
) -> None:
    by_module, *_ = of_experts(models("qwen3_moe"), tmp_path)
    asked: Asked = [(PROMPTS[0], by_module), (PROMPTS[0], None)]
    settings = {"quantization": quantization, "dtype": "bfloat16"}
    found, expected = (outputs(models("qwen3_moe"), asked, **settings, **device) for device in (CUDA, {}))
    for one, other in zip(found, expected, strict=True):
        assert_near(one, other, largest, shared=2)
    assert found[0].logprobs[0].logprob != found[1].logprobs[0].logprob


def of_experts(model: Path, folder: Path) -> list[AdapterRef]:
    """By module, of a rank for one expert, and not for the last; of all experts in one tensor; of none."""
    by_module = Made(model, folder / "by_module", seed=3, r=4, rank_pattern={r"experts\.1\..*": 7})
    for name in list(by_module.weights):
        if ".experts." in name and ".experts.3." not in name:
            by_module.linear(name.removesuffix(".weight"), 7 if ".experts.1." in name else 4)
    parameters = ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]
    in_one = Made(model, folder / "in_one", seed=4, target_parameters=parameters, peft_version="0.21.2")
    for parameter in parameters:
        in_one.experts(f"model.layers.0.{parameter}", 4)
    return [by_module.save(), in_one.save(), made(model, folder / "plain", 5, 3, ("q_proj",))]


def test_only_steps_with_factors_of_experts_launch_for_them(models: Models, tmp_path: Path) -> None:
    model = models("mixtral")
    by_module, _, plain = of_experts(model, tmp_path)
    with LocalEngine(model, **SMALL | SERVED | CUDA) as engine:
        counts = []
        for ref in (plain, by_module, plain):
            with launches() as noted:
                run(engine, [(PROMPTS[0], ref)])
            counts.append(noted.count("sort_kernel"))
            assert (low_rank_of(engine).experts.memory is not None) == (len(counts) > 1)
    assert counts == [
        2 * 3,
        3 * 3,
        2 * 3,
    ]  # rows, those of the head, and pairs, of three steps


def test_what_takes_a_place_after_factors_of_experts_adds_none_to_them(
    models: Models, tmp_path: Path
) -> None:
    model = models("mixtral")
    by_module, in_one, plain = of_experts(model, tmp_path)
    rounds: list[Asked] = [[(PROMPTS[0], by_module)], [(PROMPTS[0], plain), (PROMPTS[1], in_one)]]
    settings = SMALL | SERVED | {"max_cpu_loras": 2}
    with LocalEngine(model, **settings) as engine:
        expected = [run(engine, asked) for asked in rounds * 2]
    with LocalEngine(model, **settings | CUDA) as engine:
        found = [run(engine, asked) for asked in rounds * 2]
    for one, other in zip(found, expected, strict=True):
        assert_same(one, other)


def test_prompt_logprobs_are_those_of_the_adapter(
    models: Models, pair: Callable[[str], list[AdapterRef]]
) -> None:
    wanted = SamplingParams(1, temperature=0.0, num_prompt_logprobs=0)
    found, (large, _) = [], pair("llama")
    for device in (CUDA, {}):
        with LocalEngine(models("llama"), **SMALL | SERVED | device) as engine:
            name = engine.add(PROMPTS[0], wanted, adapter=large)
            engine.finish()
            found.append([one.logprob for one in engine.output(name).prompt_logprobs if one])
    assert found[0] == pytest.approx(found[1], abs=1e-3)


def test_biases_are_added_and_take_the_place_of_others_as_on_a_cpu(models: Models, tmp_path: Path) -> None:
    model = models("qwen2")
    added = Made(model, tmp_path / "added", lora_bias=True)
    added.linear("model.layers.0.self_attn.v_proj", bias=True)
    new = Made(model, tmp_path / "other", bias="all")
    new.linear("model.layers.0.mlp.down_proj")
    for module in ("model.layers.0.self_attn.k_proj", "model.layers.0.self_attn.v_proj"):
        new.tensors[f"base_model.model.{module}.bias"] = new.random(
            *new.weights[f"{module}.bias"].shape, scale=1.0
        )
    asked = list(zip(PROMPTS, [added.save(), new.save(), None], strict=True))
    found, expected = (outputs(model, asked, enable_lora_bias=True, **device) for device in (CUDA, {}))
    assert_same(found, expected)


# As in test_device_engine.py: fp8 rounds activations to three bits of mantissa on the device alone.
@pytest.mark.parametrize(("quantization", "largest"), QUANTIZED)
def test_a_quantized_model_with_adapters_agrees_with_the_cpus(
    models: Models, pair: Callable[[str], list[AdapterRef]], quantization: str, largest: float
) -> None:
    asked = [(PROMPTS[0], ref) for ref in (*pair("llama"), None)]
    settings = {"quantization": quantization, "dtype": "bfloat16"}
    found, expected = (outputs(models("llama"), asked, **settings, **device) for device in (CUDA, {}))
    for one, other in zip(found, expected, strict=True):
        assert_near(one, other, largest, shared=2)  # the third and the fourth are nearly as probable
    assert found[0].logprobs[0].logprob != found[2].logprobs[0].logprob


def worker_of(engine: LocalEngine) -> DeviceWorker:
    assert isinstance(engine.worker, DeviceWorker)
    return engine.worker


def low_rank_of(engine: LocalEngine) -> LowRank:
    low_rank = worker_of(engine)._decoder.low_rank
    assert low_rank is not None
    return low_rank


def test_adapters_take_turns_in_a_place_of_the_device_and_are_read_once(
    models: Models, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Steps of the one before are under way when the next one is copied over it."""
    model = models("llama")
    refs = [made(model, tmp_path / letter, seed, 4) for seed, letter in enumerate("abc")]
    asked = [(PROMPTS[turn % 3], refs[turn % 3]) for turn in range(6)]
    settings = {"max_loras": 1, "max_cpu_loras": 3}
    read: list[int] = []
    whole = LowRank.read

    def counted(
        low_rank: LowRank, adapter: AdapterRef, memory: torch.Tensor
    ) -> tuple[Mapping[Place, Addition], Own]:
        read.append(adapter.number)
        return whole(low_rank, adapter, memory)

    monkeypatch.setattr(LowRank, "read", counted)
    with LocalEngine(model, **SMALL | SERVED | CUDA | settings) as engine:
        found = run(engine, asked)
        assert low_rank_of(engine).memory.shape[0] == 1
        assert engine.core.executor.depth == 2
    assert sorted(read) == sorted(ref.number for ref in refs)
    assert_same(found, outputs(model, asked, **settings))


def test_one_that_was_let_go_is_read_again_into_the_memory_of_another(
    models: Models, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = models("llama")
    refs = [made(model, tmp_path / letter, seed, 4) for seed, letter in enumerate("abc")]
    copies: list[int] = []
    make = device_adapters.HostCopy.__init__

    def counted(copy: device_adapters.HostCopy, size: int, device: torch.device) -> None:
        copies.append(size)
        make(copy, size, device)

    monkeypatch.setattr(device_adapters.HostCopy, "__init__", counted)
    with LocalEngine(model, **SMALL | SERVED | CUDA | {"max_loras": 1}) as engine:
        found = [run(engine, [(PROMPTS[1], ref)])[0] for ref in (*refs, *refs)]
    assert len(copies) == 2  # one that is held, and one that is read meanwhile
    assert [one.logprobs for one in found[3:]] == [one.logprobs for one in found[:3]]


def test_an_adapter_for_which_the_host_has_no_room_ends_its_request_alone(
    models: Models, pair: Callable[[str], list[AdapterRef]], monkeypatch: pytest.MonkeyPatch
) -> None:
    with LocalEngine(models("llama"), **SMALL | SERVED | CUDA) as engine:
        monkeypatch.setattr("slipway.worker.device.pinned.available_memory", lambda: 10)
        names = [engine.add(PROMPTS[1], GREEDY, adapter=ref) for ref in (pair("llama")[0], None)]
        engine.finish()
        (delta,) = engine.hub.deltas[names[0]]
        assert delta.error
        assert delta.error.startswith("the host has no room for 0.00 GiB of adapters: 0.00 GiB are left")
        assert delta.error.endswith(
            "Lower --max-cpu-loras or --max-lora-rank, or give the container more memory."
        )
        assert engine.output(names[1]).finish_reason == "length"


@pytest.mark.parametrize("quantization", [None, "int8"])
def test_a_batch_without_adapters_launches_what_an_engine_without_them_does(
    models: Models, pair: Callable[[str], list[AdapterRef]], quantization: str | None
) -> None:
    adapter, _ = pair("llama")
    lists, found = [], []
    for served in (SERVED, {}):
        settings = SMALL | CUDA | {"dtype": "bfloat16", "quantization": quantization} | served
        with LocalEngine(models("llama"), **settings) as engine:
            engine.worker.largest_step()  # workspaces are there
            if served:
                run(engine, [(PROMPTS[0], adapter)])
            with launches() as noted:
                found.append(run(engine, [(PROMPTS[0], None), (PROMPTS[1], None)]))
            lists.append(noted)
            if served:
                with launches() as noted:
                    run(engine, [(PROMPTS[2], adapter)])
                assert noted.count("sort_kernel") == 2 * 3  # rows, and rows of the head, of three steps
    assert lists[0] == lists[1]
    assert "sort_kernel" not in lists[0]
    assert_same(*found)


def test_graphs_are_by_the_number_of_adapters_and_captured_where_some_are_used(
    models: Models, tmp_path: Path
) -> None:
    model = models("llama")
    refs = [made(model, tmp_path / letter, seed, 4) for seed, letter in enumerate("abc")]
    settings = SERVED | {"max_loras": 3}
    batches: list[Asked] = [
        [(PROMPTS[2], ref) for ref in chosen]
        for chosen in ([None], refs[:1], refs[1:], refs, [refs[2], None])
    ]
    with LocalEngine(model, **SMALL | settings) as engine:
        expected = [run(engine, asked) for asked in batches]
    with LocalEngine(model, **SMALL | CUDA | settings) as engine:
        worker = worker_of(engine)
        graphs = Repeated.into(worker, [4], 64)
        assert {key.adapters for key in graphs.decodes} == {0}
        for asked, same in zip(batches, expected, strict=True):
            assert_same(run(engine, asked), same)
        while worker.idle():
            pass
        assert {key.adapters for key in graphs.decodes} == {0, 1, 3}
        graphs.replayed = 0
        for asked, same in zip(batches, expected, strict=True):
            assert_same(run(engine, asked), same)
        assert graphs.replayed >= 2 * 3 * len(batches) - len(batches)


def test_experts_get_the_biases_that_they_get_on_a_cpu(models: Models, tmp_path: Path) -> None:
    one = Made(models("mixtral"), tmp_path / "it", lora_bias=True)
    for name in list(one.weights):
        if ".experts." in name:
            module = name.removesuffix(".weight")
            one.linear(module)
            bias = one.random(len(one.weights[name]), scale=0.3)
            one.tensors[f"base_model.model.{module}.lora_B.bias"] = bias
    with_biases = one.save()
    one.folder = tmp_path / "without"
    one.tensors = {name: tensor for name, tensor in one.tensors.items() if not name.endswith("bias")}
    asked: Asked = [(PROMPTS[0], with_biases), (PROMPTS[0], one.save())]
    settings = {"enable_lora_bias": True}
    found, expected = (outputs(models("mixtral"), asked, **settings, **device) for device in (CUDA, {}))
    assert_same(found, expected)
    assert found[0].logprobs[0].logprob != found[1].logprobs[0].logprob


def test_an_adapter_of_experts_that_the_device_has_no_room_for_is_refused_with_the_size(
    models: Models, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    by_module, _, plain = of_experts(models("mixtral"), tmp_path)

    def full(self: ExpertPlaces) -> None:
        raise torch.OutOfMemoryError

    monkeypatch.setattr(ExpertPlaces, "allocate", full)
    with LocalEngine(models("mixtral"), **SMALL | SERVED | CUDA) as engine:
        names = [engine.add(PROMPTS[1], GREEDY, adapter=ref) for ref in (by_module, plain)]
        engine.finish()
        (delta,) = engine.hub.deltas[names[0]]
        assert delta.error is not None
        assert "The adapter by_module adds to experts, and the device has no room for 2 places" in delta.error
        assert engine.output(names[1]).finish_reason == "length"


def test_graphs_with_factors_of_experts_are_captured_where_some_are_used(
    models: Models, tmp_path: Path
) -> None:
    model = models("mixtral")
    by_module, _, plain = of_experts(model, tmp_path)
    batches: list[Asked] = [[(PROMPTS[2], plain)], [(PROMPTS[2], by_module)]]
    with LocalEngine(model, **SMALL | SERVED) as engine:
        expected = [run(engine, asked) for asked in batches]
    with LocalEngine(model, **SMALL | CUDA | SERVED) as engine:
        worker = worker_of(engine)
        graphs = Repeated.into(worker, [4], 64)
        for asked, same in zip(batches, expected, strict=True):
            assert_same(run(engine, asked), same)
            while worker.idle():
                pass
        assert {(key.adapters, key.experts) for key in graphs.decodes} == {(0, False), (1, False), (1, True)}
        graphs.replayed = 0
        for asked, same in zip(batches, expected, strict=True):
            assert_same(run(engine, asked), same)
        assert graphs.replayed >= 2 * 2


def test_factors_of_experts_wake_to_the_same_answers(models: Models, tmp_path: Path) -> None:
    model = models("mixtral")
    by_module, in_one, _ = of_experts(model, tmp_path)
    asked: Asked = [(PROMPTS[1], by_module), (PROMPTS[0], in_one)]
    with LocalEngine(model, **SMALL | SERVED | CUDA) as engine:
        before = run(engine, asked)
        assert engine.call("sleep", "1") == "ok"
        memory = low_rank_of(engine).experts.memory
        assert memory is not None
        assert memory.untyped_storage().nbytes() == 0
        assert engine.call("wake_up", "weights", "kv_cache") == "ok"
        assert_same(run(engine, asked), before)


@pytest.mark.parametrize("level", ["1", "2"])
@pytest.mark.parametrize("offload_bytes", [0, 1 << 30])
def test_it_wakes_to_the_same_answers(
    models: Models, pair: Callable[[str], list[AdapterRef]], offload_bytes: int, level: str
) -> None:
    asked = [(PROMPTS[1], ref) for ref in (*pair("llama"), None)]
    settings = SMALL | SERVED | CUDA | {"offload_bytes": offload_bytes}
    with LocalEngine(models("llama"), **settings) as engine:
        before = run(engine, asked)
        memory = low_rank_of(engine).memory
        assert engine.call("sleep", level) == "ok"
        if level == "1":
            assert memory.untyped_storage().nbytes() == 0
        assert engine.call("wake_up", "weights", "kv_cache") == "ok"
        assert low_rank_of(engine).memory.untyped_storage().nbytes() == memory.nbytes
        assert_same(run(engine, asked), before)


def test_adapters_have_a_type_of_their_own(models: Models, pair: Callable[[str], list[AdapterRef]]) -> None:
    asked = [(PROMPTS[0], pair("llama")[0])]
    settings = {"dtype": "bfloat16", **CUDA}
    with LocalEngine(models("llama"), **SMALL | SERVED | settings | {"lora_dtype": "float32"}) as engine:
        assert {pool.a.dtype for pool in low_rank_of(engine).products.values()} == {torch.float32}
        (wide,) = run(engine, asked)
    (same,) = outputs(models("llama"), asked, **settings)
    assert_near(wide, same, 0.25)
