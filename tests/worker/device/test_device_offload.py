"""Weights in host memory come to the device when their layer's turn comes, and give what they give there."""

from __future__ import annotations

import logging
import random
import re
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch import Tensor

from factory import make_model
from local_engine import LocalEngine, Output
from slipway.args import ArgumentError, resolve
from slipway.engine.config import EngineConfig
from slipway.engine.params import SamplingParams
from slipway.exits import Exit
from slipway.load.arrays import FP32
from slipway.load.checkpoint import open_checkpoint
from slipway.model.weights import Builder, LayerWeights, MlpWeights
from slipway.worker.device.offload import StreamedLayers, chosen, layers_on_host
from slipway.worker.device.products import Move
from slipway.worker.device.schemes import DeviceDense, DeviceSchemes
from slipway.worker.device.transfer import Transfer
from slipway.worker.plan import ModelPlan
from slipway.worker.planning import plan_model
from slipway_kernels.cuda.launch import device_in_use

# Small, because the interpreter runs every program of a kernel in Python.
BOUNDS: dict[str, object] = {
    "device": "cuda",
    "max_num_seqs": 4,
    "max_num_batched_tokens": 8,
    "max_model_len": 64,
    "block_size": 8,
    "num_blocks": 32,
    "graph_sizes": [1, 2, 4],
}
ENDLESS = 1 << 50
LAYERS = 5


def planned(folder: Path, **settings: object) -> ModelPlan:
    fields = BOUNDS | {"dtype": "float32", "use_tqdm_on_load": False} | settings
    config = EngineConfig(model=str(folder), **fields)  # type: ignore[arg-type]
    return plan_model(open_checkpoint(config, lambda *_: None), config)


def sizes_of(plan: ModelPlan) -> list[int]:
    return list(plan.route.layer_bytes(plan.checkpoint, plan.element))


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model("llama", tmp_path_factory.mktemp("llama"), num_hidden_layers=LAYERS)


@pytest.mark.parametrize(
    ("limit", "layers"),
    [
        (1000, (0, 1, 2, 3, 4, 5, 6, 7)),
        (80, (0, 1, 2, 3, 4, 5, 6, 7)),
        (79, (0, 1, 2, 3, 4, 5, 7)),
        (40, (1, 3, 5, 7)),
        (30, (1, 4, 7)),
    ],
)
def test_as_many_layers_as_there_is_room_for_are_chosen_evenly_spread(
    limit: int, layers: tuple[int, ...]
) -> None:
    assert chosen([10] * 8, limit) == layers


@pytest.mark.parametrize(("sizes", "limit"), [([10] * 8, 29), ([10, 10], 1000), ([10, 90, 10], 1000)])
def test_no_layer_is_chosen_where_the_buffers_would_take_what_that_frees(
    sizes: list[int], limit: int
) -> None:
    assert chosen(sizes, limit) == ()


@dataclass(slots=True)
class Held:
    """A layer of a few tensors, of different types and lengths."""

    tensors: tuple[Tensor, ...]

    def move(self, to: Move) -> None:
        self.tensors = tuple(to(tensor) for tensor in self.tensors)


def held(number: int, device: torch.device) -> Held:
    odd = torch.full((3, number + 1), number, dtype=torch.bfloat16, device=device)
    return Held((odd, torch.arange(5, device=device) * number, torch.tensor([number == 1], device=device)))


@pytest.mark.parametrize("on_host", [(), (2,), (1, 4), (0, 1, 3, 4), (0, 1, 2, 3, 4, 5)])
def test_each_layer_is_itself_when_its_turn_comes_in_every_step(on_host: tuple[int, ...]) -> None:
    device = device_in_use()
    originals = [held(number, device) for number in range(6)]
    layers = StreamedLayers([held(number, device) for number in range(6)], on_host, device)
    for _ in range(3):
        for layer, original in zip(layers.in_turn(), originals, strict=True):
            for one, other in zip(layer.tensors, original.tensors, strict=True):
                assert torch.equal(one, other)
                assert one.device == other.device


def test_two_buffers_on_the_device_stand_for_all_layers_in_host_memory() -> None:
    device = device_in_use()
    made = [held(number, device) for number in range(6)]
    originals = [layer.tensors for layer in made]
    layers = list(StreamedLayers(made, (0, 2, 3, 5), device).in_turn())
    assert [layer.tensors is tensors for layer, tensors in zip(layers, originals, strict=True)] == [
        number in (1, 4) for number in range(6)
    ]
    places = [layers[number].tensors[0].data_ptr() for number in (0, 2, 3, 5)]
    assert places[:2] == places[2:]
    assert len(set(places)) == 2


def matrices(weights: LayerWeights) -> list[DeviceDense]:
    assert isinstance(weights.mlp, MlpWeights)
    linears = (weights.qkv, weights.out, weights.mlp.gate_up, weights.mlp.down)
    schemes = [part.scheme for linear in linears for part in linear.parts]
    return [scheme for scheme in schemes if isinstance(scheme, DeviceDense)]


def test_weights_of_the_other_layers_are_made_on_the_device(llama: Path) -> None:
    spec = planned(llama).route.spec
    assert spec is not None
    device = torch.device("meta")  # which stands for any that is not the host
    weights = Builder(spec, DeviceSchemes(FP32, Transfer(device), (1, 4))).build()
    found = [{matrix.weight.device.type for matrix in matrices(layer)} for layer in weights.layers]
    assert found == [{"meta"}, {"cpu"}, {"meta"}, {"meta"}, {"cpu"}]


def work(tokens: int) -> list[tuple[list[int], SamplingParams]]:
    """Greedy and seeded; one prompt is longer than a step."""
    rng = random.Random(5)
    prompts = [[rng.randrange(3, 500) for _ in range(length)] for length in (2, 9)]
    greedy = SamplingParams(tokens, temperature=0.0, num_logprobs=2)
    return list(zip(prompts, (greedy, SamplingParams(tokens, temperature=0.8, seed=7)), strict=True))


def run(model: Path, tokens: int, **settings: object) -> tuple[list[Output], StreamedLayers[Held]]:
    with LocalEngine(model, **(BOUNDS | settings)) as engine:
        return engine.run(work(tokens)), engine.worker._decoder._layers


def test_tokens_are_the_same_with_layers_in_host_memory(llama: Path) -> None:
    one = sizes_of(planned(llama))[0]
    found, layers = run(llama, 3, dtype="float32", offload_bytes=3 * one)
    expected, none = run(llama, 3, dtype="float32")
    assert (layers._host.nbytes, none._host.nbytes) == (3 * one, 0)
    assert layers._host.is_pinned() == (device_in_use().type == "cuda")
    assert [output.tokens for output in found] == [output.tokens for output in expected]
    assert [output.logprobs for output in found] == [output.logprobs for output in expected]


# Experts that are stacked and packed, with shared ones; and scales beside the numbers.
@pytest.mark.parametrize(("architecture", "quantization"), [("qwen2_moe", "int4"), ("mixtral", "fp8")])
def test_quantized_weights_come_to_the_device_as_they_are(
    tmp_path: Path, architecture: str, quantization: str
) -> None:
    model = make_model(architecture, tmp_path / "model", num_hidden_layers=3)
    settings = {"dtype": "bfloat16", "quantization": quantization}
    found, layers = run(model, 1, **settings, offload_bytes=ENDLESS)
    expected, _ = run(model, 1, **settings)
    assert layers._host.nbytes == sum(sizes_of(planned(model, **settings)))
    assert [output.logprobs for output in found] == [output.logprobs for output in expected]


@pytest.mark.parametrize(
    ("layers", "found", "said"),
    [
        (2.5, (), r"keeps no weights in host memory: each layer takes up to 0\.00 GiB"),
        (3, (0, 2, 4), "3 of 5 layers stay in host memory, 0.00 GiB of weights; on the device two buffers"),
        (9, (0, 1, 2, 3, 4), "5 of 5 layers .* of weights, which is less than --cpu-offload-gb allows;"),
    ],
)
def test_the_log_says_what_stays_in_host_memory(
    llama: Path, caplog: pytest.LogCaptureFixture, layers: float, found: tuple[int, ...], said: str
) -> None:
    plan = planned(llama)
    with caplog.at_level(logging.INFO, "slipway.engine"):
        assert layers_on_host(plan, int(layers * sizes_of(plan)[0])) == found
    assert re.search(said, caplog.text)


def test_the_log_says_that_weights_of_transformers_code_stay(
    llama: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert layers_on_host(planned(llama, model_impl="transformers"), ENDLESS) == ()
    assert "transformers' code runs LlamaForCausalLM, and its weights stay on the device" in caplog.text


def test_more_weights_than_the_host_has_room_for_are_refused_before_they_are_read(llama: Path) -> None:
    huge = {"hidden_size": 1 << 16, "intermediate_size": 1 << 20}
    plan = planned(llama, load_format="dummy", hf_overrides=huge)
    with pytest.raises(Exit, match=r"no room for \d+\.\d\d GiB of weights: .* GiB are left"):
        layers_on_host(plan, ENDLESS)


def test_a_negative_size_is_refused() -> None:
    with pytest.raises(ArgumentError, match="--cpu-offload-gb"):
        resolve(["model", "--cpu-offload-gb=-1"], {})
