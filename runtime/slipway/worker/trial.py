"""Tries a model of transformers with its weights: two prompts that share steps, cut, against each one alone.

What a cache cannot page shows here, whatever its cause: rows that know of their neighbors, positions that the
model counts itself, a state that outlives a step.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
import transformers
from torch import Tensor, nn

from slipway.load.errors import LoadError
from slipway.model.spec import Attention
from slipway.worker.probe import ANOTHER_MODEL, Found
from slipway.worker.transformers_model import ATTENTION, Attentions, scale_and_softcap

logger = logging.getLogger("slipway.worker")

LENGTH = 40
"""Tokens of the longer prompt, where the context is as long."""
NEAR = {torch.float32: 1e-3, torch.bfloat16: 0.03, torch.float16: 0.01}
"""How far logits may be, as a share of their spread, from those of the prompt alone: only products differ."""
BOUNDS = {torch.float32: 1e-3, torch.bfloat16: 0.2, torch.float16: 0.1}
"""And these from transformers' own, whose attention rounds otherwise."""
STRAYS = 4
"""One row in so many may be farther: rounding may choose another expert."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """A request of the trial.

    tokens, positions  [tokens]
    counts             of its tokens that each step takes, where it shares steps
    """

    tokens: Tensor
    positions: Tensor
    counts: tuple[int, ...]


def try_out(model: transformers.PreTrainedModel, found: Found, dtype: torch.dtype, longest: int) -> None:
    """Raises LoadError where requests that share steps would get other logits than each one alone.

    dtype    of its weights
    longest  the longest request
    """
    began = time.perf_counter()
    kind = type(model).__name__
    prompts = _prompts(found.vocab, longest, model.device)
    try:
        with torch.inference_mode():
            with _eager(model):
                theirs = torch.cat([_logits(model, one.tokens, one.positions) for one in prompts])
            whole = [replace(one, counts=(len(one.tokens),)) for one in prompts]
            alone = torch.cat([_paged(model, found, [one]) for one in whole])
            shared = _paged(model, found, prompts)
    except Exception as error:  # of the model's code
        raise _refused(f"{kind} fails on two short prompts: {error}") from error
    if (share := _error(shared, alone, NEAR[dtype])) is not None:
        raise _wrong(f"{kind} keeps a state, counts positions or mixes rows outside its attention", share)
    if (share := _error(alone, theirs, BOUNDS[dtype])) is not None:
        raise _wrong(f"{kind} computes something in its attention that is not computed here", share)
    logger.info("transformers' code of %s was tried in %.1f s.", kind, time.perf_counter() - began)


def _prompts(vocab: int, longest: int, device: torch.device) -> list[Prompt]:
    """Two: one from the first position on, and one that ends with the last, so that frequencies that follow
    the farthest row of a step show."""
    length = min(LENGTH, longest)
    first, second = length, max(3, length * 3 // 5)
    draws = torch.Generator().manual_seed(0)
    begin, few = first * 2 // 5, max(1, second // 8)
    return [
        Prompt(
            torch.randint(vocab, (count,), generator=draws).to(device),
            torch.arange(end - count, end).to(device),
            counts,
        )
        for count, end, counts in (
            (first, first, (begin, 1, first - begin - 1)),
            (second, longest, (few, second - few - 1, 1)),
        )
    ]


def _wrong(why: str, share: float) -> LoadError:
    return _refused(f"{why}: on two short prompts its logits were wrong by {share:.0%} of their spread.")


def _refused(why: str) -> LoadError:
    return LoadError("UnsupportedModel", why, hint=ANOTHER_MODEL)


def _error(ours: Tensor, theirs: Tensor, bound: float) -> float | None:
    """How far logits [rows, vocabulary] are from their reference, in the middle; None where they are near."""
    spread = (theirs - theirs.mean(-1, keepdim=True)).norm(dim=-1)
    errors = (ours - theirs).norm(dim=-1) / spread.clamp_min(1e-6)
    return float(errors.median()) if int((errors > bound).sum()) * STRAYS > len(errors) else None


def _paged(model: transformers.PreTrainedModel, found: Found, prompts: Sequence[Prompt]) -> Tensor:
    """The logits of all prompts, one behind the other [tokens, vocabulary]."""
    rows = Rows()
    attentions = Attentions(model, ((place, TrialLayer(rows, spec)) for place, spec in found.layers.items()))
    logits: list[list[Tensor]] = [[] for _ in prompts]
    tokens = zip(*(torch.split(one.tokens, list(one.counts)) for one in prompts), strict=True)
    positions = zip(*(torch.split(one.positions, list(one.counts)) for one in prompts), strict=True)
    for new, at in zip(tokens, positions, strict=True):
        rows.counts = tuple(map(len, new))
        with attentions.step():
            computed = _logits(model, torch.cat(new), torch.cat(at))
        for kept, part in zip(logits, torch.split(computed, list(rows.counts)), strict=True):
            kept.append(part)
    return torch.cat([part for parts in logits for part in parts])


def _logits(model: Any, tokens: Tensor, positions: Tensor) -> Tensor:
    """[rows, vocabulary]"""
    output = model(input_ids=tokens[None], position_ids=positions[None], use_cache=False)
    logits: Tensor = output.logits[0].float()
    return logits


@contextmanager
def _eager(model: transformers.PreTrainedModel) -> Iterator[None]:
    """Within, transformers' own attention and masks."""
    model.set_attn_implementation("eager")
    try:
        yield
    finally:
        model.set_attn_implementation(ATTENTION)


@dataclass(slots=True)
class Rows:
    """Of a step: how many rows are of each prompt."""

    counts: tuple[int, ...] = ()


@dataclass(slots=True)
class TrialLayer:
    """One attention over all that it has seen of each prompt, in torch."""

    rows: Rows
    spec: Attention
    keys: dict[int, Tensor] = field(default_factory=dict)
    values: dict[int, Tensor] = field(default_factory=dict)

    def attend(
        self,
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Any,
        settings: Mapping[str, Any],
    ) -> Tensor:
        """query, key, value [1, heads, rows, head_dim] → [1, rows, heads, value_dim]"""
        scale, softcap = scale_and_softcap(query, settings)
        queries, keys, values = (
            torch.split(x[0], list(self.rows.counts), dim=1) for x in (query, key, value)
        )
        attended = [
            self._of_prompt(number, *part, scale=scale, softcap=softcap)
            for number, part in enumerate(zip(queries, keys, values, strict=True))
        ]
        return torch.cat(attended)[None]

    def _of_prompt(
        self, number: int, query: Tensor, key: Tensor, value: Tensor, *, scale: float, softcap: float
    ) -> Tensor:
        """query, key, value [heads, rows, head_dim] → [rows, heads, value_dim]

        Row by row: so a row is computed alike whatever else is in its step.
        """
        before = self.keys.get(number, key[:, :0]), self.values.get(number, value[:, :0])
        keys, values = (torch.cat(pair, dim=1) for pair in zip(before, (key, value), strict=True))
        self.keys[number], self.values[number] = keys, values
        repeats = self.spec.heads // self.spec.kv_heads
        keys, values = (x.repeat_interleave(repeats, dim=0) for x in (keys, values))
        rows = []
        for row, end in enumerate(range(before[0].shape[1] + 1, keys.shape[1] + 1)):
            seen = slice(max(0, end - self.spec.window) if self.spec.window else 0, end)
            scores = query[:, row : row + 1] @ keys[:, seen].transpose(1, 2) * scale
            if softcap:
                scores = softcap * torch.tanh(scores / softcap)
            weights = scores.softmax(-1, dtype=torch.float32).to(values.dtype)
            rows.append((weights @ values[:, seen])[:, 0])
        return torch.stack(rows)
