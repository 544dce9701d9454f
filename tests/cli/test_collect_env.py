"""`slipway collect-env`: what it tells, and what it must not."""

from __future__ import annotations

import sys

from slipway import __version__
from slipway.cli.collect_env import environment
from slipway.cli.main import main


def test_the_report_has_versions_and_the_machine(capsys):
    assert main(["collect-env"]) == 0
    report = capsys.readouterr().out
    for title in ("Slipway:", "Packages:", "Machine:", "Devices:", "Environment:"):
        assert title in report
    assert __version__ in report
    assert sys.executable in report
    assert "by affinity" in report


def test_secrets_are_hidden_and_other_variables_shown():
    told = dict(
        environment(
            {
                "HF_TOKEN": "hf_secret",
                "VLLM_API_KEY": "secret",
                "HUGGING_FACE_HUB_TOKEN": "secret",
                "S3_SECRET_ACCESS_KEY": "secret",
                "HF_SOME_KEY": "secret",
                "HF_ENDPOINT": "https://user:secret@hub.example/x",
                "VLLM_LOGGING_LEVEL": "DEBUG",
                "PATH": "/secret",
            }
        )
    )
    assert "secret" not in str(list(told.values()))
    assert told["HF_ENDPOINT"] == "https://***@hub.example/x"
    assert told["VLLM_LOGGING_LEVEL"] == "DEBUG"
    assert "PATH" not in told
