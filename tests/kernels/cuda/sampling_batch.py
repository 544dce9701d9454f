"""Batches for the sampler's tests: requests with their histories, and what comes out by row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from operator import or_

import numpy as np
import torch
from torch import Tensor

from slipway_kernels.sampling import MASKED, Acceptance, Features, RecordLayout, reference, sample
from slipway_kernels.sampling.bench import Asked
from slipway_kernels.sampling.workspace import Draws, History, Masks, workspace

MAX_LEN = 40
ROOM = {"max_bias": 8, "max_stop": 8, "max_bad_words": 8, "max_bad_tokens": 32}
UNTOUCHED = -77


@dataclass(frozen=True)
class Request:
    asked: Asked
    history: tuple[int, ...] = ()
    prompt_len: int = 0

    def expected(self, row: np.ndarray, draft: reference.Draft | None = None) -> reference.Drawn:
        with np.errstate(over="ignore"):
            return reference.sample_row(
                self.asked.sampling(),
                row,
                self.history,
                self.prompt_len,
                want_logprob=self.asked.num_logprobs >= 0,
                num_top=max(self.asked.num_logprobs, 0),
                draft=draft,
            )


@dataclass
class Batch:
    """Requests in the slots of a worker, each with a row of logits.

    A slot may come several times, as one that verifies drafts: its histories begin alike then.
    """

    requests: Sequence[Request]
    logits: Tensor
    slots: Sequence[int] = ()
    masks: Masks | None = None
    features: Features = field(default_factory=Features)
    space_rows: int = 64
    acceptance: Acceptance | None = None
    added: int = 0
    """Tokens that the layout knows behind those of the rows."""

    def draw(self) -> Draws:
        device, vocab = self.logits.device, self.logits.shape[1]
        slots = self.slots or range(len(self.requests))
        count = max(slots) + 1
        layout = RecordLayout(vocab + self.added, **ROOM)
        records = torch.full((count, layout.words), 0x55555555, dtype=torch.int32)
        tokens = torch.full((count, MAX_LEN), 3, dtype=torch.int32)
        prompt_len = torch.zeros(count, dtype=torch.int32)
        lengths = [len(request.history) for request in self.requests]
        asked = [self.features]
        for request, slot in zip(self.requests, slots, strict=True):
            if slot < 0:
                continue
            asked.append(Features.of(request.asked, layout.vocab))
            for offset, words in layout.encode(request.asked):
                records[slot, offset : offset + len(words)] = torch.from_numpy(words)
            tokens[slot, : len(request.history)] = torch.tensor(request.history, dtype=torch.int32)
            prompt_len[slot] = request.prompt_len
        features = reduce(or_, asked) | (Features() if self.masks is None else MASKED)
        rows = len(self.requests)
        out = untouched(rows, max(features.max_top, 0) + 1, device)
        tokens, prompt_len, records = tokens.to(device), prompt_len.to(device), records.to(device)
        sample(
            self.logits,
            torch.tensor(list(slots), dtype=torch.int32, device=device),
            records,
            layout,
            History(tokens, torch.tensor(lengths, dtype=torch.int32, device=device), prompt_len),
            workspace(self.space_rows, layout.vocab, features, device),
            out,
            features,
            self.masks,
            self.acceptance,
        )
        return out


def untouched(rows: int, max_top: int, device: torch.device) -> Draws:
    out = Draws.empty(rows, max_top, device)
    for name in ("token", "failed", "logprob", "rank", "top_ids", "top_logprobs"):
        getattr(out, name).fill_(UNTOUCHED)
    return out


def assert_drawn(out: Draws, row: int, expected: reference.Drawn, num_logprobs: int) -> None:
    assert (int(out.token[row]), bool(out.failed[row])) == (expected.token, expected.failed)
    if num_logprobs < 0 or expected.failed:
        assert out.rank[row] == UNTOUCHED
        return
    assert int(out.rank[row]) == expected.rank
    np.testing.assert_allclose(out.logprob[row].item(), expected.logprob, rtol=0, atol=1e-5)
    ids, logprobs = out.top_ids[row].tolist(), out.top_logprobs[row].tolist()
    count = len(expected.top)
    assert ids == [token for token, _ in expected.top] + [-1] * (len(ids) - count)
    np.testing.assert_allclose(logprobs[:count], [value for _, value in expected.top], rtol=0, atol=1e-5)


def plain_rows(rows: int, vocab: int, seed: int = 0, scale: float = 3.0) -> np.ndarray:
    noise = np.random.default_rng(seed).normal(size=(rows, vocab)) * scale
    return noise.astype(np.float32)


def with_seed(asked: Asked, seed: int) -> Asked:
    return replace(asked, seed=seed)
