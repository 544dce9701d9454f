"""The demo model with drafts of every quality: it must write what it writes without, token by token."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from counted import Counted, Helped, Knowing
from local_engine import LocalEngine, Output
from slipway.engine.config import DraftConfig
from slipway.engine.params import SamplingParams
from slipway.text import structure
from slipway.text.open import load
from slipway.worker.drafts.mtp import Mtp

SUBJECTS = ["rivers", "bread", "the moon", "chess", "old maps", "bees", "glass", "trains", "salt", "wind"]
KINDS = [
    "A short story about {}:\n",
    "A list of facts about {}, one a line:\n",
    "Q: What is special about {}?\nA:",
    "A poem about {} that repeats its first line after each other line:\n",
    "def {}():\n",
]
ITEM = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 12}, "size": {"type": "integer", "maximum": 999}},
    "required": ["name", "size"],
    "additionalProperties": False,
}
WAYS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "seeded": {"temperature": 0.8, "top_p": 0.9, "seed": 3},
    "penalties": {"temperature": 0.0, "repetition_penalty": 1.2, "presence_penalty": 0.3},
    "grammar": {"temperature": 0.8, "top_p": 0.9, "seed": 4},
}
SERVED: dict[str, Any] = {"max_model_len": 512, "num_blocks": 700, "block_size": 16}
DRAFTED: dict[str, Any] = {"num_drafts": 4, "prompt_lookup_min": 1, "prompt_lookup_max": 3}


def layers_for(engine: LocalEngine, folder: Path) -> dict[str, Any]:
    """Settings by which two random layers for MTP guess for this engine's model."""
    named = {"architectures": ["MiMoForCausalLM"], "num_nextn_predict_layers": 2, "intermediate_size": 128}
    config = {**engine.start.plan.route.config, **named}
    rng = np.random.default_rng(5)
    shapes = Mtp.of(config).shapes().items()
    tensors = {name: 0.05 * rng.standard_normal(shape, np.float32) for name, shape in shapes}
    (folder / "config.json").write_text(json.dumps(config))
    save_file(tensors, folder / "model.safetensors")
    return {"draft": DraftConfig(method="mtp", model=str(folder)), "num_drafts": 3}


def prompts(count: int) -> Iterator[str]:
    """Of different lengths; some begin alike."""
    for number in range(count):
        kind, subject = KINDS[number % len(KINDS)], SUBJECTS[number // len(KINDS) % len(SUBJECTS)]
        yield f"Chapter {number // 50}. " * (number % 3) + kind.format(subject)


def answers(engine: LocalEngine, tokens: list[list[int]], way: str, max_tokens: int) -> list[Output]:
    params = SamplingParams(max_tokens, num_logprobs=1, **WAYS[way])
    items = structure.of_json_schema({"type": "array", "items": ITEM, "minItems": 50})
    fields: dict[str, Any] = {"grammar": items} if way == "grammar" else {}
    names = [engine.add(prompt, params, **fields) for prompt in tokens]
    engine.finish()
    outputs = [engine.output(name) for name in names]
    return [replace(one, num_cached_tokens=0) for one in outputs]


def check_layers(model: Path, folder: Path, way: str, count: int, most: int) -> Counted:
    """As `check`, by layers for MTP that are put right in two of three cases."""
    tokenizer = load(model)
    tokens = [tokenizer.encode(prompt) for prompt in prompts(count)]
    with LocalEngine(model, **SERVED) as engine:
        plain, drafting = answers(engine, tokens, way, most), layers_for(engine, folder)
    known = [prompt + one.tokens for prompt, one in zip(tokens, plain, strict=True)]
    with LocalEngine(model, **(SERVED | drafting)) as engine:
        counted, worker = Counted(engine), engine.worker
        engine.core.scheduler.guessing = None
        worker.proposer = Helped(known, 3, rate=0.2, other=worker.proposer, share=0.7)  # type: ignore[attr-defined]
        assert answers(engine, tokens, way, most) == plain, "all of them, and prefix hits"
        assert answers(engine, tokens[:3], way, most) == plain[:3], "behind prefix hits of whole prompts"
    return counted


def check(model: Path, way: str, count: int, most: int) -> Counted:
    """So many prompts in one of these ways, of so many tokens each. What became of the drafts."""
    tokenizer = load(model)
    tokens = [tokenizer.encode(prompt) for prompt in prompts(count)]
    with LocalEngine(model, **SERVED) as engine:
        plain = answers(engine, tokens, way, most)
    with LocalEngine(model, **(SERVED | DRAFTED)) as engine:
        assert answers(engine, tokens[:3], way, most) == plain[:3], "n-grams, judged"
        counted = Counted(engine)
        engine.core.scheduler.guessing = None
        assert answers(engine, tokens, way, most) == plain, "n-grams, all of them, and prefix hits"
        known = [prompt + one.tokens for prompt, one in zip(tokens, plain, strict=True)]
        engine.worker.proposer = Knowing(known, 4, rate=0.3)  # type: ignore[attr-defined]
        assert answers(engine, tokens, way, most) == plain, "a third of them wrong"
        alone = [answers(engine, [prompt], way, most)[0] for prompt in tokens[:2]]
        assert alone == plain[:2]
    return counted
