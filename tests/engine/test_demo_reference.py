"""The demo model against transformers: the same weights, the same token ids.

With float32 its weights are dequantized, as transformers has them; with bfloat16 they stay packed, and what
they multiply is rounded to 16 bits.

The reference is transformers' own reading of the GGUF file, in fp32. A token of ours that it would not
have chosen counts only where its own two best logits are further apart than 1e-3; such near ties are
printed, and comparison of that prompt ends there.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from local_engine import LocalEngine, Output
from slipway.engine.config import EngineConfig
from slipway.engine.params import SamplingParams
from slipway.load.arrays import FP32
from slipway.load.checkpoint import open_checkpoint
from slipway.load.torch_arrays import tensor
from slipway.text.open import load
from tensor_files import numbers_of

pytestmark = pytest.mark.slow

DATA = Path(__file__).parents[1] / "data"
WINDOW, WINDOWS = 2048, 4
NEAR_TIE = 1e-3
GREEDY = SamplingParams(64, temperature=0.0, num_logprobs=0)


@pytest.fixture(scope="module")
def reference(demo_model: Path) -> Any:
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(
        demo_model.parent, gguf_file=demo_model.name, dtype=torch.float32
    )
    return model.eval()


def test_weights_and_configuration_are_what_transformers_loads(reference: Any, demo_model: Path) -> None:
    expected = reference.state_dict()
    settings = EngineConfig(model=str(demo_model), use_tqdm_on_load=False)
    checkpoint = open_checkpoint(settings, lambda phase, done, total: None)
    for name, weights in numbers_of(checkpoint, FP32):
        assert torch.equal(tensor(weights), expected.pop(name)), name
    assert expected.keys() == {"lm_head.weight"}  # tied
    for key in ("hidden_size", "num_key_value_heads", "rms_norm_eps", "max_position_embeddings"):
        assert checkpoint.config[key] == pytest.approx(getattr(reference.config, key))
    assert checkpoint.config["rope_theta"] == reference.config.rope_parameters["rope_theta"]


@pytest.fixture(scope="module")
def prompts(demo_model: Path) -> list[list[int]]:
    tokenizer = load(demo_model)
    return [tokenizer.encode(text) for text in json.loads((DATA / "prompts.json").read_text())]


def logits_of(reference: Any, tokens: list[int]) -> torch.Tensor:
    """[len(tokens), vocab] fp32"""
    with torch.inference_mode():
        logits: torch.Tensor = reference(torch.tensor([tokens])).logits[0]
    return logits


def differences(reference: Any, prompt: list[int], output: list[int]) -> list[str]:
    """Where the reference would have chosen another token, up to its first near tie."""
    best = logits_of(reference, prompt + output)[len(prompt) - 1 : -1].topk(2)  # [output, 2]
    for i, token in enumerate(output):
        gap = float(best.values[i, 0] - best.values[i, 1])
        if token != int(best.indices[i, 0]):
            if gap < NEAR_TIE:
                print(f"near tie after {i} tokens: gap {gap:.1e}")
                return []
            return [f"token {i} is {token}, the reference has {int(best.indices[i, 0])} (gap {gap:.4f})"]
    return []


@pytest.fixture(scope="module")
def outputs(prompts: list[list[int]], demo_model: Path) -> list[Output]:
    """What follows each prompt, with chunked prefill, prefix cache and forced preemption, all at once in one
    ragged batch on two threads."""
    fields: dict[str, object] = {"dtype": "float32", "max_model_len": 2048, "threads": 2}
    with LocalEngine(demo_model, **fields, max_num_batched_tokens=64, num_blocks=130) as engine:
        outputs = engine.run([(prompt, GREEDY) for prompt in prompts])
    assert sum(output.num_preemptions for output in outputs) > 0
    return outputs


def test_greedy_text_is_that_of_transformers(
    reference: Any, prompts: list[list[int]], outputs: list[Output]
) -> None:
    wrong = [
        (i, problem)
        for i, (prompt, output) in enumerate(zip(prompts, outputs, strict=True))
        for problem in differences(reference, prompt, output.tokens)
    ]
    assert wrong == []
    assert sum(len(output.tokens) for output in outputs) == 30 * 64


def test_company_changes_no_token(prompts: list[list[int]], outputs: list[Output], demo_model: Path) -> None:
    """Of every third prompt, when nothing else runs, on one thread."""
    with LocalEngine(demo_model, dtype="float32", max_model_len=2048) as engine:
        alone = [engine.run([(prompt, GREEDY)])[0] for prompt in prompts[::3]]
    assert [output.tokens for output in alone] == [output.tokens for output in outputs[::3]]
    assert [output.logprobs for output in alone] == [output.logprobs for output in outputs[::3]]


def test_log_probabilities_of_packed_weights_are_close(
    prompts: list[list[int]], outputs: list[Output], demo_model: Path
) -> None:
    """Of the tokens that the dequantized model draws: half of them within 0.02, nearly all within 0.15."""
    scored = SamplingParams(1, temperature=0.0, num_prompt_logprobs=0)
    texts = [prompt + output.tokens for prompt, output in zip(prompts, outputs, strict=True)]
    with LocalEngine(demo_model, dtype="bfloat16", max_model_len=2048) as engine:
        packed = engine.run([(text, scored) for text in texts])
    differences = sorted(
        abs(ours.logprob - theirs.logprob)
        for one, exact, prompt in zip(packed, outputs, prompts, strict=True)
        for ours, theirs in zip(one.prompt_logprobs[len(prompt) :], exact.logprobs, strict=True)
        if ours is not None
    )
    count = len(differences)
    print(f"median {differences[count // 2]:.4f}, 99 % {differences[count * 99 // 100]:.4f}")
    assert count == 30 * 64
    assert differences[count // 2] < 0.02
    assert differences[count * 99 // 100] < 0.15


@pytest.fixture(scope="module")
def windows() -> list[list[int]]:
    ids = json.loads((DATA / "perplexity_ids.json").read_text())
    return [ids[i : i + WINDOW] for i in range(0, WINDOWS * WINDOW, WINDOW)]


@pytest.fixture(scope="module")
def reference_perplexity(reference: Any, windows: list[list[int]]) -> float:
    total = 0.0
    for window in windows:
        logprobs = logits_of(reference, window)[:-1].log_softmax(-1)  # [window - 1, vocab]
        total -= float(logprobs.gather(1, torch.tensor(window)[1:, None]).sum())
    return math.exp(total / sum(len(window) - 1 for window in windows))


@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 0.002), ("bfloat16", 0.01)])
def test_perplexity_is_that_of_transformers(
    dtype: str, tolerance: float, reference_perplexity: float, windows: list[list[int]], demo_model: Path
):
    scored = SamplingParams(1, temperature=0.0, num_prompt_logprobs=0)
    with LocalEngine(demo_model, dtype=dtype, max_model_len=WINDOW + 1) as engine:
        outputs = engine.run([(window, scored) for window in windows])
    entries = [entry for output in outputs for entry in output.prompt_logprobs if entry is not None]
    perplexity = math.exp(-sum(entry.logprob for entry in entries) / len(entries))
    print(f"{dtype}: perplexity {perplexity:.4f}, transformers {reference_perplexity:.4f}")
    assert perplexity == pytest.approx(reference_perplexity, rel=tolerance)
