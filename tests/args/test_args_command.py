"""`slipway args`: the list, the table of states and the check of single settings."""

from __future__ import annotations

import json

import pytest

from slipway.args.foreign import FOREIGN
from slipway.args.schema import ARGUMENTS
from slipway.args.status import STATUSES
from slipway.cli.main import main
from slipway.envs import VARIABLES
from slipway.metrics import METRICS


def test_the_list_has_every_argument_variable_and_metric(capsys):
    assert main(["args"]) == 0
    shown = capsys.readouterr().out
    assert all(argument.flag in shown for argument in ARGUMENTS.values())
    assert all(f"    {one.name}\n" in shown for one in (*VARIABLES, *METRICS))


def test_the_status_accounts_for_arguments_variables_and_metrics(capsys):
    assert main(["args", "--status"]) == 0
    shown = capsys.readouterr().out
    assert f"{len(ARGUMENTS) + len(FOREIGN)} arguments: " in shown
    assert f"{len(VARIABLES)} environment variables: " in shown
    assert f"{len(METRICS)} metrics: " in shown


def test_the_status_as_json(capsys):
    assert main(["args", "--status", "--json"]) == 0
    tables = json.loads(capsys.readouterr().out)
    counts = [len(ARGUMENTS) + len(FOREIGN), len(VARIABLES), len(METRICS)]
    assert [len(table) for table in tables.values()] == counts
    for table in tables.values():
        assert {entry["status"] for entry in table.values()} <= set(STATUSES)
    assert tables["arguments"]["--use-v2-block-manager"]["reason"] == "there is one block manager"


def test_the_declarations_as_json(capsys):
    assert main(["args", "--json"]) == 0
    listed = capsys.readouterr().out
    assert main(["--print-schema"]) == 0
    assert json.loads(listed) == json.loads(capsys.readouterr().out)


@pytest.mark.parametrize(
    ("setting", "shown"),
    [
        ("maxModelLen=16K", "max_model_len = 16384"),
        ("max-model-len=auto", "max_model_len = -1"),
        ("max_num_seqs=8", "max_num_seqs = 8"),
        ("enforce-eager", "enforce_eager = true"),
        ("enablePrefixCaching=false", "enable_prefix_caching = false"),
        ("servedModelName=a", 'served_model_name = ["a"]'),
        ('rope-scaling={"type":"yarn"}', 'rope_scaling = {"rope_type": "yarn"}'),
        ("api-key=sk-1", "api_key = ***"),
        ("VLLM_LOGGING_LEVEL=DEBUG", 'VLLM_LOGGING_LEVEL = "DEBUG"'),
    ],
)
def test_a_setting_is_checked_alone(setting, shown, capsys):
    assert main(["args", "check", setting]) == 0
    assert capsys.readouterr().out.startswith(shown)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("maxModelLength=1", "Did you mean maxModelLen"),
        ("max-model-len=25.6K", "Write 25.6k"),
        ("VLLM_LOGING_LEVEL=x", "VLLM_LOGGING_LEVEL"),
        ("port=0", "the least is 1"),
    ],
)
def test_a_bad_setting_is_refused_with_what_to_do(setting, message, capsys):
    assert main(["args", "check", setting]) == 2
    assert message in capsys.readouterr().err


def test_words_other_than_check_are_refused(capsys):
    assert main(["args", "frobnicate"]) == 2
    assert "slipway args check KEY=VALUE" in capsys.readouterr().err
