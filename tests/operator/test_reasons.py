"""The catalogue is closed, and its page says all of it."""

from __future__ import annotations

import random
import re
from pathlib import Path

from slipway import service
from slipway.exits import CATALOGUE as EXITS
from slipway_operator import reasons
from slipway_operator.conditions import CONDITIONS
from slipway_operator.reasons import BY_NAME, CATALOGUE, RANK, Reason, first, manual

SOURCES = Path(reasons.__file__).parent
DOCUMENTS = Path(service.__file__).parent


def test_every_reason_is_camel_case_unique_and_of_a_known_condition():
    assert len(BY_NAME) == len(CATALOGUE)
    for reason in CATALOGUE:
        assert re.fullmatch(r"([A-Z][a-z0-9]+)+", reason.name)
        assert reason.condition in CONDITIONS
        assert reason.sentence.endswith((".", "?"))


def test_the_order_is_total_and_has_each_reason_once():
    declared = {one.name for one in vars(reasons).values() if isinstance(one, Reason)}
    ends = [known.reason for known in EXITS]
    assert sorted(RANK.values()) == [*range(len(CATALOGUE))]
    assert declared | {*ends} == {*RANK}
    assert len(CATALOGUE) == len(RANK)


def test_what_counts_most_does_not_depend_on_the_order_in_which_it_is_found():
    found = [reason.found(".") for reason in CATALOGUE]
    shuffled = random.Random(7).sample(found, len(found))
    while shuffled:
        most = first(shuffled)
        assert most == found[len(found) - len(shuffled)]
        shuffled.remove(most)
    assert first([]) is None
    one, other = (reasons.LOADING.found(text) for text in ("a.", "b."))
    assert [first([one, other]), first([other, one])] == [one, other]


def test_what_is_wrong_counts_before_what_is_on_its_way_and_that_before_what_is_well():
    def place(name: str) -> int:
        one = BY_NAME[name]
        refuses = one.condition in ("Valid", "ArgsCompatible") and one.status == "False"
        if refuses or name in ("NameConflict", "NoDeviceFits"):
            return 0  # the resource is refused as a whole
        if one.status == "False" and one.condition in ("Scheduled", "ModelLoaded") and not one.calm:
            return 1 if one.stalled else 2
        return 3

    places = [place(one.name) for one in CATALOGUE if one.name != "RolloutNeedsSpareDevice"]
    assert places == sorted(places)
    for notes in ("DoesNotFit", "TakesMore", "Drifted", "MonitorKindMissing", "UpgradeAvailable"):
        assert RANK["Suspended"] < RANK[notes] < RANK["Serving"]


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
    ends = {known.reason for known in EXITS}
    for reason in (one for one in CATALOGUE if one.name not in ends):
        assert f"reasons.{names[id(reason)]}" in sources or f'"{reason.name}"' in sources, reason.name


def test_the_manual_has_every_condition_and_reason():
    page = manual()
    for name in (*CONDITIONS, *BY_NAME):
        assert f"`{name}`" in page
