"""Every causal architecture of transformers is native, equal to transformers, or refused with its reason."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import transformers

from model import families


@pytest.fixture(autouse=True, scope="module")
def quiet() -> Iterator[None]:
    before = transformers.utils.logging.get_verbosity()
    families.quiet()
    yield
    transformers.utils.logging.set_verbosity(before)


def rows() -> dict[str, list[str]]:
    """model_type → how it is served, the difference, and why it is not."""
    table = (line for line in families.TABLE.read_text().splitlines() if line.startswith("| "))
    split = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in table]
    return {kind.strip(): rest for kind, *rest in split[2:]}


def test_the_table_has_every_architecture() -> None:
    assert list(rows()) == families.kinds()
    served = [kind for kind, (how, *_) in rows().items() if how in ("native", "transformers")]
    assert len(served) >= 85
    for how, difference, reason in rows().values():
        assert how in ("native", "transformers", "refused", "untried")
        assert float(difference) <= families.BOUND if difference else len(reason) > 20 or how == "untried"


@pytest.mark.slow
@pytest.mark.parametrize("kind", families.kinds())
def test_a_family_is_served_as_the_table_says(kind: str) -> None:
    found = families.tried(kind)
    assert found.how == rows()[kind][0], found.reason
    assert found.difference <= families.BOUND


NEEDED_NOTHING = ["afmoe", "apertus", "diffllama", "dory", "hrm_text", "hunyuan_v1_moe", "modernbert-decoder"]


@pytest.mark.parametrize("kind", [*NEEDED_NOTHING, "phimoe", "youtu"])
def test_what_was_refused_without_need_or_answered_wrongly_is_equal(kind: str) -> None:
    found = families.tried(kind)
    assert (found.how, found.reason) == ("transformers", "")
    assert found.difference <= families.BOUND
