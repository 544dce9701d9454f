"""Runs a model step by step without engine or scheduler: what tests of models and lowering share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from slipway.engine.config import EngineConfig
from slipway.engine.params import SamplingParams
from slipway.load.checkpoint import open_checkpoint
from slipway.worker.plan import ModelPlan
from slipway.worker.planning import plan_model
from slipway_kernels.cpu import PageMemory, Slots, Threads

TIED_GAP = 1e-3
"""Two logits of the reference closer than this may come out in either order."""


def quiet(phase: str, done: int, total: int) -> None:
    """No progress is shown."""


def plan(folder: Path, **settings: Any) -> ModelPlan:
    config = EngineConfig(model=str(folder), **{"dtype": "float32", "use_tqdm_on_load": False, **settings})
    return plan_model(open_checkpoint(config, quiet), config)


class Stepper:
    """A built model with `num_slots` requests, each with pages of its own."""

    def __init__(
        self, folder: Path, *, num_slots: int = 4, max_len: int = 128, threads: int = 2, **settings: Any
    ) -> None:
        self.plan = plan(folder, **settings)
        groups, blocks = len(self.plan.kv.groups), self.plan.kv.max_blocks(max_len)
        self.slots = Slots(num_slots, max_len, groups, blocks)
        pages = groups * num_slots * blocks
        pool = PageMemory(pages, self.plan.kv.page_bytes)
        self.slots.block_table[:] = np.random.default_rng(0).permutation(pages).reshape(groups, num_slots, -1)
        self.model, self.adapters = self.plan.read(Threads(threads), quiet)(self.slots, pool, 256, 4)

    def start(self, slot: int, tokens: Sequence[int]) -> None:
        """A request that draws greedily and reports log-probabilities."""
        self.slots.start(slot, tokens)
        self.slots.set_sampling(slot, SamplingParams(1, temperature=0.0, num_logprobs=1))

    def step(self, grants: Mapping[int, int]) -> dict[int, tuple[int, float]]:
        """Compute so many tokens of each slot; slot → its drawn token and log-probability."""
        slots, counts = np.array(list(grants), np.int32), np.array(list(grants.values()), np.int32)
        result = self.model.step(slots, counts)
        return {
            slot: (tokens[0], float(result.rows["logprob"][first]))
            for slot, tokens, first in zip(grants, result.tokens, result.requests["first_drawn"], strict=True)
            if tokens
        }

    def greedy(
        self, prompts: Mapping[int, Sequence[int]], count: int, chunk: int = 256
    ) -> dict[int, list[tuple[int, float]]]:
        """`count` tokens of each slot's prompt, all slots together, prompts in chunks."""
        found: dict[int, list[tuple[int, float]]] = {slot: [] for slot in prompts}
        for slot, tokens in prompts.items():
            self.start(slot, tokens)
        while live := [slot for slot in prompts if len(found[slot]) < count]:
            known, done = self.slots.num_tokens, self.slots.num_computed
            for slot, drawn in self.step({s: min(chunk, int(known[s] - done[s])) for s in live}).items():
                found[slot].append(drawn)
        return found


def prompt(length: int, seed: int = 0) -> list[int]:
    """Random token ids of the factory's vocabulary, without the special ones."""
    return np.random.default_rng(seed).integers(3, 512, length).tolist()


def reference_model(folder: Path, dtype: str = "float32") -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, attn_implementation="eager").eval()


def assert_same_as_reference(folder: Path, tokens: Sequence[int], drawn: Sequence[tuple[int, float]]) -> None:
    """What was drawn after `tokens` is transformers' greedy choice, and its log-probability to 1e-3.

    Comparison ends, with a line, where the reference's own two best logits are within 1e-3.
    """
    import torch

    model = reference_model(folder)
    ids = torch.tensor([[*tokens, *(token for token, _ in drawn)]])
    with torch.inference_mode():
        logits = model(ids).logits[0, len(tokens) - 1 : -1].float()  # [drawn, vocab]
    best = logits.topk(2, dim=-1)
    for place, (token, logprob) in enumerate(drawn):
        first, second = best.values[place].tolist()
        if token != best.indices[place, 0] and first - second < TIED_GAP:
            print(f"{folder.name}: token {place} is tied in the reference, by {first - second:.1e}")
            return
        assert token == best.indices[place, 0], f"token {place}"
        assert abs(logprob - logits[place].log_softmax(-1)[token].item()) < 1e-3, f"token {place}"
