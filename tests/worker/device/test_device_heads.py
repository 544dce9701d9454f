"""Heads on the device: each draft is that of torch, and the output is that without drafts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from device_drafts import Helping, Seen, going_on
from device_runs import SMALL, assert_same
from factory import make_model
from followers import Target
from judged import Judged
from local_engine import LocalEngine, Output
from random_heads import KINDS, guessing, write_heads
from repeated_graphs import Repeated
from slipway.engine.params import SamplingParams

DEVICE = SMALL | {"device": "cuda", "max_num_batched_tokens": 16}
WORK = [
    ([5, 9, 14, 77, 6, 31, 8, 200, 41, 3], SamplingParams(16, temperature=0.0, num_logprobs=2)),
    ([21, 8, 3], SamplingParams(12, temperature=0.9, top_k=9, seed=11, num_logprobs=0)),
    ([60], SamplingParams(8, temperature=0.0, presence_penalty=0.4)),
]
SOME = ["medusa", "mlp speculator"]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model("llama", tmp_path_factory.mktemp("llama"), num_hidden_layers=2)


@pytest.fixture(scope="module")
def heads(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], dict[str, Any]]:
    """An engine's settings with heads of a kind, and where they are."""
    root = tmp_path_factory.mktemp("heads")

    def settings(kind: str) -> dict[str, Any]:
        place = root / kind
        return DEVICE | guessing(kind, place if place.exists() else write_heads(kind, place))

    return settings


Heads = Callable[[str], dict[str, Any]]


@pytest.fixture(scope="module")
def expected(model: Path) -> list[Output]:
    with LocalEngine(model, **DEVICE) as engine:
        return engine.run(WORK)


def assert_right(kind: str, settings: dict[str, Any], model: Path, drafts: list[Any]) -> None:
    """These greedy drafts are those of torch, and they are some."""
    tensors, target = load_file(Path(settings["draft"].model) / "model.safetensors"), Target.of(model)
    assert len(drafts) >= 3
    with torch.inference_mode():
        for known, guessed in drafts:
            row = target.rows(known)[-1][len(known) - 2]
            for place, draft in enumerate(guessed):
                logits = KINDS[kind][3](tensors, row, known[-1:] + guessed[:place])
                assert logits[draft] > logits.max() - 1e-3


@pytest.mark.parametrize("kind", KINDS)
def test_each_draft_is_that_of_torch_and_none_changes_a_token(
    model: Path, heads: Heads, expected: list[Output], kind: str
) -> None:
    settings = heads(kind)
    with going_on(model, **settings) as engine:
        judged, seen = Judged(engine), Seen(engine)
        assert_same(engine.run(WORK), expected)
    assert judged.rejected > 15
    assert judged.proposing > 0
    assert_right(kind, settings, model, seen.of(WORK[0][0]))


@pytest.mark.parametrize("kind", SOME)
def test_graphs_leave_the_rows_and_steps_accept_and_reject(
    model: Path, heads: Heads, expected: list[Output], kind: str
) -> None:
    """Of drafts that are those of the heads, or what comes, at times with a fault."""
    with going_on(model, **(heads(kind) | {"num_drafts": 2})) as engine:
        repeated = Repeated.into(engine.worker, [2, 4], 64)
        judged, seen = Judged(engine), Seen(engine)
        texts = [prompt + one.tokens for (prompt, _), one in zip(WORK, expected, strict=True)]
        helping = Helping(engine, texts)
        assert_same(engine.run(WORK), expected)
    assert min(judged.accepted, judged.rejected, helping.helped, helping.left) >= 4
    assert repeated.replayed > 4
    assert_right(kind, heads(kind), model, seen.of(WORK[0][0]))
