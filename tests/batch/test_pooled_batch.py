"""A file of requests that pool, answered by a real engine over the whole of the application."""

from __future__ import annotations

import base64
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from batches import Command, read_answers, write_lines

from local_engine import LocalEngine

pytestmark = pytest.mark.slow


def line(custom_id: str, url: str, **body: Any) -> dict[str, Any]:
    return {"custom_id": custom_id, "method": "POST", "url": url, "body": body}


def test_a_batch_embeds_scores_and_reranks(
    batch: Callable[..., Command], tiny_models: Callable[[str], Path], tmp_path: Path
) -> None:
    ids = [[5, 6, 7], [*range(9, 90)]]
    lines = [
        line("floats", "/v1/embeddings", input=ids),
        line("base64", "/v1/embeddings", input=ids, encoding_format="base64"),
        line("scores", "/v1/score", text_1="north", text_2=["north", "south"]),
        line("ranks", "/v1/rerank", query="north", documents=["south", "north"]),
        line("text", "/v1/completions", prompt="x"),
    ]
    command = batch(
        write_lines(tmp_path / "in", lines), tmp_path / "out", "--task", "embed", "--dtype", "float32"
    )
    assert command.end()[0] == 0
    answers = {one["custom_id"]: one["response"] for one in read_answers(tmp_path / "out")}
    assert [answers[name]["status_code"] for name in ("floats", "base64", "scores", "ranks")] == [200] * 4
    assert answers["text"]["status_code"] == 400
    with LocalEngine(tiny_models("llama"), task="embed", dtype="float32") as engine:
        expected = [vector[0].tolist() for vector in engine.pool(ids)]
    told = [one["embedding"] for one in answers["floats"]["body"]["data"]]
    assert told == expected
    packed = [base64.b64decode(one["embedding"]) for one in answers["base64"]["body"]["data"]]
    assert [list(struct.unpack(f"<{len(one) // 4}f", one)) for one in packed] == expected
    assert np.allclose(np.linalg.norm(told, axis=1), 1, atol=1e-6)
    same, other = (one["score"] for one in answers["scores"]["body"]["data"])
    assert same == pytest.approx(1)
    ranks = answers["ranks"]["body"]["results"]
    assert [one["index"] for one in ranks] == [1, 0]
    assert [one["relevance_score"] for one in ranks] == [same, other]
