"""Real weights: all-MiniLM-L6-v2 against transformers."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from minilm import fetch
from torch import Tensor

from encoder_models import EncoderRun, reference

TEXTS = 500
LONGEST = 256


def texts() -> list[str]:
    """Runs of words of this project's documents, from one word to more than the model takes."""
    root = Path(__file__).parents[2]
    words = re.findall(r"\S+", "\n".join(path.read_text() for path in sorted(root.glob("docs/*.md"))))
    draw = torch.Generator().manual_seed(0)
    lengths = (torch.rand(TEXTS, generator=draw).pow(3) * 220 + 1).int().tolist()
    starts = torch.randint(0, len(words) - 230, (TEXTS,), generator=draw).tolist()
    return [" ".join(words[start : start + length]) for start, length in zip(starts, lengths, strict=True)]


@pytest.mark.slow
@torch.inference_mode()
def test_embeddings_of_real_texts_are_those_of_transformers() -> None:
    from tokenizers import Tokenizer

    folder = fetch()
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.enable_truncation(LONGEST)
    prompts = [encoding.ids for encoding in tokenizer.encode_batch(texts())]
    assert (min(map(len, prompts)), max(map(len, prompts))) == (3, LONGEST)
    model, run = reference(folder), EncoderRun(folder, max_len=LONGEST)
    similarities = []
    by_length = sorted(prompts, key=len)
    for first in range(0, TEXTS, 4):
        step = dict(enumerate(by_length[first : first + 4]))
        rows, expected = run.step(step), _means(model, [*step.values()])
        means = torch.stack([rows[slot].mean(0) for slot in step])
        similarities.append(torch.cosine_similarity(means, expected))
        if first % 50 == 0:
            for slot, tokens in step.items():
                assert torch.equal(run.step({3: tokens})[3], rows[slot])
    assert torch.cat(similarities).min().item() >= 0.99999


def _means(model: Any, prompts: Sequence[Sequence[int]]) -> Tensor:
    """[prompts, hidden]  of transformers' rows, all in one batch."""
    ids = torch.zeros(len(prompts), max(map(len, prompts)), dtype=torch.long)
    mask = torch.zeros_like(ids)
    for place, tokens in enumerate(prompts):
        ids[place, : len(tokens)], mask[place, : len(tokens)] = torch.tensor(tokens), 1
    rows: Tensor = model(ids, attention_mask=mask).last_hidden_state
    return (rows * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)
