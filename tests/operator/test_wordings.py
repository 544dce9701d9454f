"""Every message of Kubernetes that the operator reads is read by one row of the table."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from slipway_operator import wordings
from slipway_operator.wordings import POST_FILTER, TABLE, Source, Wording, meanings

SOURCES = Path(wordings.__file__).parent
NAMES = {id(value): name for name, value in vars(wordings).items() if isinstance(value, Wording)}


def samples() -> Iterator[tuple[Wording, str, str]]:
    """Row, version and message."""
    for row in TABLE:
        for block in re.split(r"\n    (?=\S)", row.samples.rstrip()):
            if block.strip():
                version, _, words = " ".join(block.split()).partition(": ")
                yield row, version, words.replace("\\n", "\n")


SAMPLES = [pytest.param(row, words, id=f"{NAMES[id(row)]}-{at}") for row, at, words in samples()]


@pytest.mark.parametrize(("row", "words"), SAMPLES)
def test_exactly_one_row_takes_each_sample(row: Wording, words: str) -> None:
    cause = POST_FILTER.sub("", words) if row.source is Source.PLACEMENT else words
    assert [NAMES[id(one)] for one, _ in meanings(row.source, cause)] == [NAMES[id(row)]]


def test_every_row_has_samples_with_the_version_that_prints_them() -> None:
    versions = {id(row): at for row, at, _ in samples()}
    assert {*versions} == {id(row) for row in TABLE}
    for at in versions.values():
        assert re.fullmatch(
            r"(?:(?:containerd|CRI-O|Docker|Kyverno|Gatekeeper|OpenShift) )?\d+(\.\d+)?.*|ECR", at
        )


def test_every_row_is_read_and_advice_is_a_sentence() -> None:
    for row in TABLE:
        assert row.advice == "" or row.advice.endswith(".")
        assert row.pattern.groups == len(row.pattern.groupindex)


def test_every_other_module_has_no_pattern_but_for_words_of_ours() -> None:
    elsewhere = set()
    for path in SOURCES.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func).startswith("re."):
                elsewhere.add(path.stem)
    # The last line of a log, and the end of a sentence.
    assert elsewhere == {"wordings", "container_findings", "status"}
