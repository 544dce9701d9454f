"""Embeddings a second of a running server, beside sentence-transformers on the same cores. Prints JSON.

    slipway serve "$(python -c 'import minilm; print(minilm.fetch())')" --dtype float32    # in bench/
    python bench/embeddings.py --url http://127.0.0.1:8000 [--rounds 20]

The model is all-MiniLM-L6-v2 in float32. A batch is 32 texts of 3 to 256 tokens, one request; the two take
turns with the same texts, and a ratio is that of their times in one round, above 1 where the server is
faster; of all rounds there is the median, and the middle half. Where sentence-transformers is not installed,
`beside` says transformers, which then does the same: one padded batch, the mean of the rows, length 1.
`cosine` is the smallest between the two.
"""

from __future__ import annotations

import argparse
import base64
import json
import random
import statistics
import time
import urllib.request
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from minilm import fetch
from numpy.typing import NDArray

from load import first_model

BATCH = 32
LONGEST = 256
Vectors = NDArray[np.float32]
Embed = Callable[[Sequence[str]], Vectors]


def words_of(folder: Path) -> list[str]:
    """Words that are one token each."""
    vocabulary = json.loads((folder / "tokenizer.json").read_text())["model"]["vocab"]
    return sorted(word for word in vocabulary if word.isascii() and word.isalpha())


def batch_of(words: Sequence[str], seed: int) -> list[str]:
    draw = random.Random(seed)
    return [" ".join(draw.choices(words, k=draw.randint(1, LONGEST - 2))) for _ in range(BATCH)]


def served(url: str) -> Embed:
    model = first_model(url)

    def embed(texts: Sequence[str]) -> Vectors:
        body = json.dumps({"model": model, "input": texts, "encoding_format": "base64"}).encode()
        request = urllib.request.Request(f"{url}/v1/embeddings", body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=60) as answer:
            data = json.load(answer)["data"]
        return np.stack([np.frombuffer(base64.b64decode(one["embedding"]), "<f4") for one in data])

    return embed


def beside(folder: Path) -> tuple[str, Embed]:
    """What the server is compared with, and its name."""
    try:
        import sentence_transformers
    except ImportError:
        return "transformers", _transformers(folder)
    model = sentence_transformers.SentenceTransformer(str(folder), device="cpu")
    return (
        f"sentence-transformers {sentence_transformers.__version__}",
        lambda texts: np.asarray(model.encode(list(texts), batch_size=BATCH)),
    )


def _transformers(folder: Path) -> Embed:
    import torch
    from transformers import AutoModel, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    model: Any = AutoModel.from_pretrained(folder, dtype=torch.float32).eval()

    @torch.inference_mode()
    def embed(texts: Sequence[str]) -> Vectors:
        batch = tokenizer(list(texts), padding=True, truncation=True, max_length=LONGEST, return_tensors="pt")
        mask = batch.attention_mask[..., None]
        means = (model(**batch).last_hidden_state * mask).sum(1) / mask.sum(1)
        found: Vectors = torch.nn.functional.normalize(means).numpy()
        return found

    return embed


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--url", default="http://127.0.0.1:8000")
    parser.add_argument("--rounds", type=int, default=20)
    options = parser.parse_args()
    folder = fetch()
    words, (name, other) = words_of(folder), beside(folder)
    sides = {"served": served(options.url), "beside": other}
    seconds: dict[str, list[float]] = {side: [] for side in sides}
    cosine = 1.0
    for number in range(-2, options.rounds):  # two to warm up
        texts, vectors = batch_of(words, number), {}
        for side in sorted(sides, reverse=number % 2 == 0):
            begun = time.perf_counter()
            vectors[side] = sides[side](texts)
            if number >= 0:
                seconds[side].append(time.perf_counter() - begun)
        cosine = min(cosine, float((vectors["served"] * vectors["beside"]).sum(1).min()))
    ratios = [theirs / ours for ours, theirs in zip(seconds["served"], seconds["beside"], strict=True)]
    low, median, high = statistics.quantiles(ratios, n=4)
    found = {
        "beside": name,
        "embeddings_per_second": {
            side: round(BATCH / statistics.median(times), 1) for side, times in seconds.items()
        },
        "ratio": {"median": round(median, 3), "from": round(low, 3), "to": round(high, 3)},
        "cosine": round(cosine, 7),
    }
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
