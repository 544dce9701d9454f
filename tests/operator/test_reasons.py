"""The catalogue is closed, and its page says all of it."""

from __future__ import annotations

import re
from pathlib import Path

from slipway import service
from slipway.exits import CATALOGUE as EXITS
from slipway_operator import reasons
from slipway_operator.conditions import CONDITIONS
from slipway_operator.reasons import BY_NAME, CATALOGUE, manual

SOURCES = Path(reasons.__file__).parent
DOCUMENTS = Path(service.__file__).parent


def test_every_reason_is_camel_case_unique_and_of_a_known_condition():
    assert len(BY_NAME) == len(CATALOGUE)
    for reason in CATALOGUE:
        assert re.fullmatch(r"([A-Z][a-z0-9]+)+", reason.name)
        assert reason.condition in CONDITIONS
        assert reason.sentence.endswith((".", "?"))


def test_every_way_in_which_a_server_ends_is_a_reason():
    for known in EXITS:
        assert BY_NAME[known.reason].condition == "ModelLoaded"
        assert BY_NAME[known.reason].stalled is not known.retry


def test_a_document_is_refused_for_no_reason_outside_of_the_catalogue():
    said = set(
        re.findall(r'\breason(?:: str)? ?= ?"(\w+)"', "".join(map(Path.read_text, DOCUMENTS.glob("*.py"))))
    )
    assert {"InvalidSpec", "PolicyDenied", "NotSupported"} <= said
    assert said <= set(BY_NAME)


def test_every_reason_is_found_somewhere():
    names = {id(value): name for name, value in vars(reasons).items()}
    sources = "".join(map(Path.read_text, [*SOURCES.glob("*.py"), *DOCUMENTS.glob("*.py")]))
    for reason in CATALOGUE[: -len(EXITS)]:
        assert f"reasons.{names[id(reason)]}" in sources or f'"{reason.name}"' in sources, reason.name


def test_the_manual_has_every_condition_and_reason():
    page = manual()
    for name in (*CONDITIONS, *BY_NAME):
        assert f"`{name}`" in page
