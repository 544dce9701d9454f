"""The catalogue of exit codes and the cause that a failed start leaves behind."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import get_args

import pytest

from slipway import exits
from slipway.load.errors import Code

MANUAL = Path(__file__).parents[2] / "docs/exit-codes.md"


def test_codes_and_reasons_are_unique_and_leave_the_shell_its_own():
    assert len(exits.BY_CODE) == len(exits.BY_REASON) == len(exits.CATALOGUE)
    for known in exits.CATALOGUE:
        assert 1 <= known.code < 126
        assert re.fullmatch(r"([A-Z][a-z]+)+", known.reason)
        assert known.message.endswith(".")
        assert known.hint.endswith(".")


def test_every_way_in_which_loading_fails_has_a_code():
    assert set(get_args(Code)) <= set(exits.BY_REASON)


def test_bad_arguments_are_status_2():
    assert exits.BAD_ARGUMENTS.code == 2


def test_the_cause_is_one_json_object_of_five_keys():
    cause = json.loads(exits.termination(40, "Port 8000 is taken.", argument="--port"))
    assert cause == {
        "code": 40,
        "reason": "PortInUse",
        "message": "Port 8000 is taken.",
        "hint": exits.PORT_IN_USE.hint,
        "argument": "--port",
    }


@pytest.mark.parametrize("text", ["x" * 10_000, "é" * 5_000, "😀" * 5_000, '"\n\\' * 4_000])
def test_the_cause_never_exceeds_what_kubernetes_keeps(text):
    written = exits.termination(1, text, text, text)
    assert len(written) <= exits.MAX_BYTES
    assert json.loads(written)["message"].endswith("…")


def test_only_what_is_too_long_is_cut():
    cause = json.loads(exits.termination(1, "x" * 10_000, "what to do"))
    assert cause["hint"] == "what to do"
    assert len(cause["message"]) > 3_800


def test_a_lone_surrogate_does_not_lose_the_cause():
    assert json.loads(exits.termination(10, "no folder \udcff"))["code"] == 10


def test_an_unknown_code_is_an_internal_error():
    assert json.loads(exits.termination(99))["reason"] == "InternalError"


def test_the_cause_goes_to_the_file_that_the_variable_names(tmp_path):
    log = tmp_path / "termination"
    written = exits.write_termination({"SLIPWAY_TERMINATION_LOG": str(log)}, 31)
    assert written == log
    assert json.loads(log.read_bytes())["reason"] == "EngineDied"


def test_an_unwritable_file_is_no_second_failure(tmp_path):
    environ = {"SLIPWAY_TERMINATION_LOG": str(tmp_path / "absent" / "log")}
    assert exits.write_termination(environ, 31) is None


def test_an_exit_carries_the_catalogue_where_nothing_better_is_known():
    failure = exits.Exit(exits.PORT_IN_USE, argument="--port")
    assert failure.message == exits.PORT_IN_USE.message
    assert str(exits.Exit(exits.PORT_IN_USE, "Port 80 is taken.")) == "Port 80 is taken."


def test_the_page_is_fresh():
    assert MANUAL.read_text() == exits.manual(), "run `make generate`"
