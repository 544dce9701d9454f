"""What documents of others state of models on GPUs, the estimate says to 10 %."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from e2e.published_models import PUBLISHED
from planned_needs import needs_of, write_config

from slipway.fit import estimate, named

WITHIN = 0.1
GIB = 1 << 30
MANY_EXPERTS = "qwen3-235b-a22b-fp8-tp4-h100"
PAGE = Path(__file__).parents[2] / "docs" / "fit.md"


def computed(folder: Path, document: dict[str, Any]) -> dict[str, float]:
    """What the document may state, as we say it: of the first device.

    Tokens are those that the cache which it states holds: how much an engine leaves for it is another matter.
    """
    device = named(document["device"])
    needs = needs_of(write_config(folder, document["config"]), *document["arguments"], arch=device.arch)
    rank = estimate(needs, device).ranks[0]
    return {
        "weights_gib": rank.weights / GIB,
        "left_gib": rank.kv_cache / GIB,
        "kv_tokens": document.get("cache_gib", 0.0) * GIB / rank.kv_token,
    }


def rows(document: dict[str, Any], ours: dict[str, float]) -> list[str]:
    """What the manual's table says of it."""
    stated = document["states"]
    words = {
        "weights_gib": "weights {0:g} GiB | {1:.2f} |",
        "left_gib": "{0:.2f} GiB left for the cache | {1:.2f} |",
        "kv_tokens": f"{{0:,}} tokens in {document.get('cache_gib', 0)} GiB | {{1:,.0f}} |",
    }
    return [words[part].format(stated[part], ours[part]) for part in stated]


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.slow) if name == MANY_EXPERTS else name
        for name in sorted(PUBLISHED)
    ],
)
def test_the_estimate_is_what_the_document_states_and_the_manual_has_both(name: str, tmp_path: Path) -> None:
    document, text = PUBLISHED[name], PAGE.read_text()
    ours = computed(tmp_path, document)
    assert {part: ours[part] for part in document["states"]} == pytest.approx(document["states"], rel=WITHIN)
    shown = [line for line in text.splitlines() if line.endswith(f" {document['source']} |")]
    assert any(line.startswith(f"| {document['model']}, ") for line in shown)
    assert [row for row in rows(document, ours) if row not in text] == []


def test_there_are_eight() -> None:
    assert len(PUBLISHED) >= 8
