"""What goes on from a target's rows; engines on a device that go on guessing, and what they guess."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

import followers
import random_heads
from followers import Target
from local_engine import LocalEngine
from slipway.engine.plan import Masks, StepOutput, StepPlan
from tensor_files import Tensors, load

MOST = 3
"""Drafts of layers; of heads as many as there are."""
Drafts = list[tuple[list[int], list[int]]]
"""What was known of a request, and what was guessed behind it."""
Settings = Callable[[str], dict[str, Any]]


@dataclass(frozen=True)
class Kind:
    """Heads or layers.

    write     a random checkpoint, in a new folder
    guessing  an engine's settings with these
    logits    of what they should guess next, by the target, what is known and what they have said behind it
    """

    write: Callable[[Path], Path]
    guessing: Callable[[Path], dict[str, object]]
    logits: Callable[[Tensors, Target, list[int], list[int]], np.ndarray]


def _heads(kind: str) -> Kind:
    reference = random_heads.KINDS[kind][3]

    def logits(tensors: Tensors, target: Target, known: list[int], said: list[int]) -> np.ndarray:
        return reference(tensors, target.rows(known)[-1][len(known) - 2], known[-1:] + said)

    return Kind(partial(random_heads.write_heads, kind), partial(random_heads.guessing, kind), logits)


def _layers(kind: str) -> Kind:
    guessing = partial(followers.guessing, kind, num_drafts=MOST)
    return Kind(partial(followers.write_follower, kind), guessing, followers.KINDS[kind])


KINDS = {kind: _heads(kind) for kind in random_heads.KINDS} | {
    kind: _layers(kind) for kind in followers.KINDS
}


def drafting(root: Path) -> Settings:
    """By kind, an engine's settings with what guesses, whose checkpoints are written below `root`."""

    def settings(kind: str) -> dict[str, Any]:
        place = root / kind
        return KINDS[kind].guessing(place if place.exists() else KINDS[kind].write(place))

    return settings


def assert_right(kind: str, settings: dict[str, Any], model: Path, drafts: Drafts) -> None:
    """These greedy drafts are those of the definition, and they are some."""
    tensors, target = load(Path(settings["draft"].model) / "model.safetensors"), Target.of(model)
    assert len(drafts) >= 3
    for known, guessed in drafts:
        for place, draft in enumerate(guessed):
            logits = KINDS[kind].logits(tensors, target, known, guessed[:place])
            assert logits[draft] > logits.max() - 1e-3


@contextmanager
def going_on(target: Path, **settings: Any) -> Iterator[LocalEngine]:
    """An engine that goes on guessing, whatever becomes of the drafts."""
    with LocalEngine(target, **settings) as engine:
        engine.core.scheduler.guessing = None
        yield engine


class Watching:
    """The worker of an engine, with something behind each of its draws."""

    def __init__(self, engine: LocalEngine) -> None:
        self._state: Any = engine.worker._state  # type: ignore[attr-defined]
        executor: Any = engine.core.executor
        self._worker, executor._worker = executor._worker, self

    def launch(self, plan: StepPlan) -> None:
        self._plan = plan
        self._worker.launch(plan)

    def draw(self, masks: Masks | None = None) -> None:
        self._worker.draw(masks)
        for slot, draws in zip(self._plan.slots, self._plan.draws, strict=True):
            count = int(self._state.num_tokens[slot])
            end = count + int(self._state.num_drafts[slot])
            if draws:
                tokens = self._state.tokens[slot].tolist()
                self.drew(slot, tokens[:count], tokens[count:end])

    def collect(self) -> StepOutput:
        output: StepOutput = self._worker.collect()
        return output

    def close(self) -> None:
        self._worker.close()

    def drew(self, slot: int, known: list[int], drafts: list[int]) -> None:
        """A slot has so many known tokens now, and these drafts."""
        raise NotImplementedError


class Seen(Watching):
    """All drafts."""

    def __init__(self, engine: LocalEngine) -> None:
        super().__init__(engine)
        self.drafts: Drafts = []

    def drew(self, slot: int, known: list[int], drafts: list[int]) -> None:
        if drafts:
            self.drafts.append((known, drafts))

    def of(self, *prompts: Sequence[int]) -> Drafts:
        """Those behind these prompts."""
        return [one for one in self.drafts for prompt in prompts if one[0][: len(prompt)] == list(prompt)]


class Helping(Watching):
    """In two of three draws what comes takes the place of the drafts, at times with a fault at the end."""

    def __init__(self, engine: LocalEngine, texts: Sequence[list[int]]) -> None:
        """texts: prompt and output of each request"""
        super().__init__(engine)
        self._texts = texts
        self.helped = self.left = 0
        """Drafts."""

    def drew(self, slot: int, known: list[int], drafts: list[int]) -> None:
        whole = next((one for one in self._texts if one[: len(known)] == known), known)
        right = whole[len(known) : len(known) + len(drafts)]
        if len(known) % 3 == 0 or not right:
            self.left += len(drafts)
            return
        if len(known) % 2:
            right[-1] = (right[-1] + 1) % 500
        self._state.tokens[slot, len(known) : len(known) + len(right)] = torch.tensor(
            right, dtype=torch.int32
        )
        self._state.num_drafts[slot] = len(right)
        self.helped += len(right)
