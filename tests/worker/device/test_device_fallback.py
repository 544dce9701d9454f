"""Models that transformers' code runs give on a device what they give on a CPU, in fp32."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from device_runs import SMALL, assert_near, assert_same
from factory import model_folders
from local_engine import LocalEngine, Output
from model.stepping import plan
from slipway.engine.params import SamplingParams
from slipway.load.errors import LoadError

Models = Callable[[str], Path]
Request = tuple[list[int], SamplingParams]

VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "opt": ("opt", {}),
    "gpt2": ("gpt2", {}),
    "phi3": ("phi3", {"num_hidden_layers": 2}),
    "phi3_window": ("phi3", {"num_hidden_layers": 2, "sliding_window": 6}),
    "gemma2": ("gemma2", {"num_hidden_layers": 2, "sliding_window": 6}),
    "mixtral": ("mixtral", {"num_hidden_layers": 2}),
}
"""Learned positions, transposed matrices, fused ones, windows, soft-caps and padded heads, experts."""

BOUNDS = SMALL | {"model_impl": "transformers"}
LATENT = {  # DeepSeek's attention: keys of 24 numbers, values of 12
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "vocab_size": 512,
    "q_lora_rank": 24,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 16,
    "v_head_dim": 12,
    "first_k_dense_replace": 2,
}
MIXED = {  # Gemma 4: a token takes 2 · 16 numbers of a sliding layer and 1 · 16 of a full one
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "num_global_key_value_heads": 1,
    "global_head_dim": 16,
    "attention_k_eq_v": True,
    "sliding_window": 6,
    "layer_types": ["sliding_attention", "sliding_attention", "full_attention"],
    "vocab_size": 512,
    "hidden_size_per_layer_input": 8,
    "vocab_size_per_layer_input": 512,
}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Models:
    return model_folders(tmp_path_factory.mktemp("fallback"), VARIANTS)


def work() -> list[Request]:
    """Greedy and seeded; one prompt longer than a step."""
    rng = random.Random(3)
    prompts = [[rng.randrange(3, 500) for _ in range(length)] for length in (3, 11, 1)]
    greedy = SamplingParams(4, temperature=0.0, num_logprobs=3)
    seeded = SamplingParams(4, temperature=0.8, top_k=40, seed=7, num_logprobs=0)
    return list(zip(prompts, (greedy, greedy, seeded), strict=True))


def run(model: Path, asked: list[Request] | None = None, **settings: object) -> list[Output]:
    with LocalEngine(model, **(BOUNDS | settings)) as engine:
        assert engine.start.plan.route.spec is None
        return engine.run(asked or work())


@pytest.mark.parametrize("variant", VARIANTS)
def test_tokens_of_transformers_models_are_the_cpus(models: Models, variant: str) -> None:
    model = models(variant)
    assert_same(run(model, device="cuda"), run(model))


def test_keys_and_values_of_different_sizes_are_padded(tmp_path: Path) -> None:
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model("deepseek_v3", **LATENT))
    with torch.no_grad():
        model.get_output_embeddings().weight.mul_(8)
    model.save_pretrained(tmp_path)
    assert_same(run(tmp_path, device="cuda"), run(tmp_path))


def test_layers_of_different_shapes_share_pages(tmp_path: Path) -> None:
    """Three layers of which one is smaller: its pages hold more tokens."""
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model("gemma4_text", **MIXED))
    with torch.no_grad():
        model.get_output_embeddings().weight.mul_(8)
    model.save_pretrained(tmp_path)
    with LocalEngine(tmp_path, **BOUNDS, device="cuda") as engine:
        assert engine.start.plan.kv.block_sizes == [8, 8, 16]
        found = engine.run(work())
    assert_same(found, run(tmp_path))


def test_prompt_logprobs_of_transformers_models_are_the_cpus(models: Models) -> None:
    asked = [(list(range(5, 17)), SamplingParams(2, temperature=0.0, num_prompt_logprobs=2))]
    model = models("gpt2")
    found, expected = (run(model, asked, **where)[0].prompt_logprobs for where in ({"device": "cuda"}, {}))
    assert len(found) == len(expected) == 12
    for one, other in zip(found[1:], expected[1:], strict=True):
        assert one is not None
        assert other is not None
        assert one.logprob == pytest.approx(other.logprob, abs=1e-3)
        assert [token for token, _ in one.top] == [token for token, _ in other.top]


def test_torchs_attention_serves_transformers_models_too(models: Models) -> None:
    model = models("gemma2")
    assert_same(run(model, device="cuda", attention_backend="TORCH_SDPA"), run(model))


class Waits(TorchDispatchMode):
    """Counts what makes the host wait for a device: numbers that it asks for, sizes that depend on them."""

    NAMES = ("_local_scalar_dense", "nonzero", "masked_select", "unique", "is_nonzero")

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(
        self, operation: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if any(name in str(operation) for name in self.NAMES):
            self.seen.append(str(operation))
        return operation(*args, **(kwargs or {}))


@pytest.mark.parametrize("variant", ["opt", "phi3_window", "mixtral"])
def test_a_step_does_not_make_the_host_wait(
    models: Models, monkeypatch: pytest.MonkeyPatch, variant: str
) -> None:
    waits = Waits()
    with LocalEngine(models(variant), **(BOUNDS | {"device": "cuda"})) as engine:
        decoder = engine.worker._decoder
        computed: list[str] = []

        def watched(name: str) -> Callable[..., torch.Tensor]:
            compute = getattr(decoder, name)

            def call(*given: Any) -> torch.Tensor:
                computed.append(name)
                with waits:
                    result: torch.Tensor = compute(*given)
                return result

            return call

        for name in ("hidden", "logits"):
            monkeypatch.setattr(decoder, name, watched(name))
        engine.run(work())
    assert {*computed} == {"hidden", "logits"}
    assert waits.seen == []


def test_steps_that_are_not_graphs_are_told(models: Models) -> None:
    found = plan(models("opt"), device="cuda", graph_sizes=[1, 2])
    assert any("OPTForCausalLM: its steps are launched kernel by kernel" in text for text in found.warnings)
    assert not plan(models("opt"), device="cuda").warnings
    with LocalEngine(models("opt"), **(BOUNDS | {"device": "cuda", "graph_sizes": [1, 2]})) as engine:
        assert engine.worker.graph_sizes.sizes == ()


def test_a_quantized_checkpoint_is_dequantized_and_says_so(
    models: Models, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(Path(__file__).parents[3] / "bench")
    from quantize import quantize, recipe

    folder = quantize(models("phi3"), tmp_path, recipe("awq", group=32))
    with LocalEngine(folder, **(BOUNDS | {"device": "cuda", "dtype": "bfloat16"})) as engine:
        assert "only ours multiplies quantized weights" in " ".join(engine.start.warnings)
        found = engine.run(work())
    assert_near(found[0], run(folder, dtype="bfloat16")[0], 0.1, shared=2)


@pytest.mark.parametrize(
    ("variant", "quantization"), [("gpt2", "int4"), ("gpt2", "fp8"), ("mixtral", "int8")]
)
def test_weights_are_quantized_on_the_way(models: Models, variant: str, quantization: str) -> None:
    asked = {"quantization": quantization, "dtype": "bfloat16"}
    model = models(variant)
    assert_near(run(model, device="cuda", **asked)[0], run(model, **asked)[0], 0.5, shared=2)


def test_keys_and_values_are_kept_in_fp8_where_asked(models: Models) -> None:
    asked = {"kv_cache_dtype": "fp8", "dtype": "bfloat16"}
    model = models("phi3")
    assert_near(run(model, device="cuda", **asked)[0], run(model, **asked)[0], 0.3, shared=2)


@pytest.mark.parametrize(("variant", "body"), [("opt", "model.decoder"), ("gpt2", "transformer")])
def test_the_body_is_what_the_model_hands_its_tokens_to(models: Models, variant: str, body: str) -> None:
    assert plan(models(variant)).route.found.body == body


def test_a_model_without_a_body_is_refused(models: Models) -> None:
    found = plan(models("opt"))
    route = replace(found.route, found=replace(found.route.found, body=""))
    with pytest.raises(LoadError, match="OPTForCausalLM has no one module that holds all layers"):
        route.on_device(found, cast(Any, None), cast(Any, None))  # which it does not look at before
