"""The engine on a device gives what it gives on a CPU, in fp32: tokens, log-probabilities, reasons."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from quantize import quantize, recipe
from torch import Tensor

from device_runs import SMALL, assert_near, assert_same
from factory import model_folders
from local_engine import LocalEngine, Output
from repeated_graphs import Repeated
from slipway.engine.config import EngineConfig
from slipway.engine.params import SamplingParams
from slipway.engine.plan import SlotStart, StepPlan
from slipway.load.checkpoint import open_checkpoint
from slipway.worker.device.attention import TritonAttention, backend
from slipway.worker.device.feed_forward import Experts
from slipway.worker.device.low_rank import RowAdapters
from slipway.worker.device.products import Rows
from slipway.worker.planning import plan_model

Request = tuple[list[int], SamplingParams]
Models = Callable[[str], Path]

WINDOWED = {
    "head_dim": 24,
    "sliding_window": 6,
    "layer_types": ["sliding_attention", "full_attention"],
}
NATIVE: dict[str, dict[str, object]] = {
    "llama": {},
    "qwen2": {},
    "qwen3": {"head_dim": 24},
    "gemma2": WINDOWED,
    "gemma3_text": WINDOWED,
    "mixtral": {},
    "qwen2_moe": {},
}
"""Architectures with sizes that our own code runs: heads of a multiple of 8, and two layers."""


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Models:
    sizes = {name: (name, {"num_hidden_layers": 2} | own) for name, own in NATIVE.items()}
    sizes["wide_moe"] = ("qwen2_moe", {"num_hidden_layers": 2, "moe_intermediate_size": 128})
    return model_folders(tmp_path_factory.mktemp("native"), sizes)


@dataclass
class Run:
    """An engine on the device that tests share, and what it gave when it was new."""

    engine: LocalEngine
    outputs: list[Output]


@pytest.fixture(scope="module")
def llama(models: Models) -> Iterator[Run]:
    with LocalEngine(models("llama"), **(SMALL | {"device": "cuda"})) as engine:
        yield Run(engine, engine.run(requests()))


def run(model: Path, work: list[Request], **settings: object) -> list[Output]:
    with LocalEngine(model, **(SMALL | settings)) as engine:
        return engine.run(work)


def requests(vocab: int = 500) -> list[Request]:
    """Greedy and seeded, with and without filters and penalties; one prompt longer than a step."""
    rng = random.Random(3)
    prompts = [[rng.randrange(3, vocab) for _ in range(length)] for length in (3, 9, 1)]
    greedy = SamplingParams(3, temperature=0.0, num_logprobs=3)
    seeded = SamplingParams(3, temperature=0.8, top_k=40, top_p=0.9, seed=7, num_logprobs=0)
    punished = SamplingParams(
        3,
        temperature=1.2,
        seed=8,
        repetition_penalty=1.3,
        frequency_penalty=0.4,
        logit_bias=((11, 3.0),),
        bad_words=((12,),),
    )
    return list(zip(prompts, (greedy, seeded, punished), strict=True))


@pytest.mark.parametrize("architecture", ["qwen2", "qwen3", "gemma3_text", "mixtral", "qwen2_moe"])
def test_tokens_are_the_cpus(models: Models, architecture: str) -> None:
    model = models(architecture)
    assert_same(run(model, requests(), device="cuda"), run(model, requests()))


def test_experts_computed_in_several_passes_give_the_same(
    models: Models, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = run(models("qwen2_moe"), requests(), device="cuda")
    passes: list[int] = []
    apply = Experts._apply

    def counted(experts: Experts, x: Rows, slots: Tensor, adapters: RowAdapters | None) -> Tensor:
        passes.append(len(slots))
        return apply(experts, x, slots, adapters)

    monkeypatch.setattr(Experts, "_apply", counted)
    monkeypatch.setenv("VLLM_FUSED_MOE_CHUNK_SIZE", "3")
    assert_same(run(models("qwen2_moe"), requests(), device="cuda"), whole)
    assert max(passes) == 3


def test_llamas_tokens_are_the_cpus(models: Models, llama: Run) -> None:
    assert_same(llama.outputs, run(models("llama"), requests()))


def test_preempted_requests_resume_as_if_nothing_had_been(models: Models) -> None:
    model = models("llama")
    work = [([i + 3] * 6, SamplingParams(4, temperature=0.0)) for i in range(3)]
    found = run(model, work, device="cuda", num_blocks=4, max_model_len=16)
    assert sum(one.num_preemptions for one in found) > 0
    assert_same(found, run(model, work))


def test_steps_launched_ahead_change_nothing(models: Models, llama: Run) -> None:
    in_turn = run(models("llama"), requests(), device="cuda", overlap=False)
    assert [one.tokens for one in llama.outputs] == [one.tokens for one in in_turn]
    assert [one.logprobs for one in llama.outputs] == [one.logprobs for one in in_turn]


@pytest.mark.parametrize(("slots", "budget", "largest"), [(3, 8, 3), (8, 4, 4)])
def test_batches_padded_to_a_graphs_size_give_what_they_give_without(
    models: Models, llama: Run, slots: int, budget: int, largest: int
) -> None:
    """The largest graph fits the slots, the rows and the workspaces, whichever of them are fewer."""
    settings = {"device": "cuda", "max_num_seqs": slots, "max_num_batched_tokens": budget}
    with LocalEngine(models("llama"), **(SMALL | settings)) as engine:
        repeated = Repeated.into(engine.worker, [1, 16], 64)
        found = engine.run(requests())
    assert {key.size for key in repeated.decodes} == {1, largest}
    assert max(key.size for key in repeated.steps) == largest
    assert repeated.replayed
    assert_same(found, llama.outputs)


def test_a_device_that_is_full_of_graphs_serves_the_rest_without(models: Models, llama: Run) -> None:
    with LocalEngine(models("llama"), **(SMALL | {"device": "cuda"})) as engine:
        repeated = Repeated.into(engine.worker, [1, 2, 3, 4], 64, room=2)
        found = engine.run(requests())
    assert repeated.full
    assert len(repeated.steps) == 2
    assert_same(found, llama.outputs)


def test_prompt_logprobs_are_the_cpus(models: Models, llama: Run) -> None:
    work = [(list(range(5, 17)), SamplingParams(2, temperature=0.0, num_prompt_logprobs=2))]
    found, expected = (
        outputs[0].prompt_logprobs for outputs in (llama.engine.run(work), run(models("llama"), work))
    )
    assert len(found) == len(expected) == 12
    assert found[0] == expected[0]
    for one, other in zip(found[1:], expected[1:], strict=True):
        assert one is not None
        assert other is not None
        assert one.logprob == pytest.approx(other.logprob, abs=1e-3)
        assert [token for token, _ in one.top] == [token for token, _ in other.top]


@pytest.mark.parametrize("architecture", ["llama", "gemma2"])
def test_torchs_attention_agrees_with_ours(models: Models, architecture: str) -> None:
    model = models(architecture)
    theirs = run(model, requests(), device="cuda", attention_backend="TORCH_SDPA")
    assert_same(theirs, run(model, requests()))


@pytest.mark.parametrize(
    ("name", "package"), [("FLASH_ATTN", "flash-attn"), ("FLASHINFER", "flashinfer-python")]
)
def test_where_an_attention_library_is_missing_ours_computes_and_that_is_said(
    models: Models, name: str, package: str
) -> None:
    folder = str(models("llama"))
    config = EngineConfig(model=folder, device="cuda", attention_backend=name, use_tqdm_on_load=False)
    plan = plan_model(open_checkpoint(config, lambda *_: None), config, arch=lambda: 90)
    why = f"is computed by our own kernels: the package {package} is not installed."
    assert f"--attention-backend {name} {why}" in plan.warnings
    made = backend(name, plan.route.attentions, 4, 1, 64, torch.device("cpu"))
    assert isinstance(made, TritonAttention)


def test_a_plan_that_does_not_fit_the_slots_is_refused(llama: Run) -> None:
    start = SlotStart(0, [5, 6], 2, 0, SamplingParams(1), 1)
    with pytest.raises(ValueError, match="a grant is at least 1 and its drafts, and at most"):
        llama.engine.worker.launch(StepPlan([start], [], [0], [3], [0], [True], [2]))


# fp8 rounds activations to three bits of mantissa on the device, and not at all on a CPU.
@pytest.mark.parametrize(
    ("architecture", "quantization", "largest"),
    [
        (architecture, *way)
        for architecture in ("llama", "mixtral")
        for way in (("int4", 0.25), ("int8", 0.25), ("fp8", 0.5))
    ],
)
def test_quantized_products_agree_with_the_cpus(
    models: Models, architecture: str, quantization: str, largest: float
) -> None:
    work = [([9, 8, 7, 6, 5], SamplingParams(1, temperature=0.0, num_logprobs=5))]
    asked = {"quantization": quantization, "dtype": "bfloat16"}
    (found,) = run(models(architecture), work, device="cuda", **asked)
    (expected,) = run(models(architecture), work, **asked)
    assert_near(found, expected, largest)


@pytest.mark.parametrize(
    ("architecture", "method", "largest"),
    [
        ("llama", "fp8-block", 0.5),  # its keys and values begin within a block of 128 rows
        ("llama", "w8a8", 0.25),
        ("qwen2_moe", "fp8-block", 0.5),  # and so do its experts' rows of up
        ("qwen2_moe", "w8a8", 0.25),
        ("wide_moe", "fp8-block", 0.5),
    ],
)
def test_quantized_checkpoints_agree_with_the_cpus(
    models: Models, tmp_path: Path, architecture: str, method: str, largest: float
) -> None:
    model = quantize(models(architecture), tmp_path / method, recipe(method))
    work = [([9, 8, 7, 6, 5], SamplingParams(1, temperature=0.0, num_logprobs=5))]
    (found,) = run(model, work, device="cuda", dtype="bfloat16")
    (expected,) = run(model, work, dtype="bfloat16")
    assert_near(found, expected, largest)


@pytest.mark.parametrize("kv_cache_dtype", ["fp8", "fp8_e5m2"])
def test_a_narrow_cache_agrees_with_the_cpus(models: Models, kv_cache_dtype: str) -> None:
    model = models("llama")
    work = [(list(range(20, 30)), SamplingParams(1, temperature=0.0, num_logprobs=5))]
    (found,) = run(model, work, device="cuda", kv_cache_dtype=kv_cache_dtype)
    (expected,) = run(model, work, kv_cache_dtype=kv_cache_dtype)
    (full,) = run(model, work)
    assert found.logprobs != full.logprobs
    assert_near(found, expected, 0.25)
