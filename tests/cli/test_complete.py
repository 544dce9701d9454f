"""`slipway complete` against a real HTTP server."""

from __future__ import annotations

import io

import pytest
from speaking_server import SpeakingServer

from slipway.cli import conversation
from slipway.cli.main import main


@pytest.fixture
def server(monkeypatch):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with SpeakingServer(pieces=[" a", " time"]).running() as running:
        yield running


def test_a_quick_prompt_prints_its_completion(server, capsys):
    assert main(["complete", "--url", server.url, "-q", "Once upon"]) == 0
    assert capsys.readouterr().out == " a time\n"
    assert server.bodies == [{"model": "first", "prompt": "Once upon", "stream": True}]


def test_each_line_is_a_prompt_of_its_own(server, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO("one\ntwo\n"))
    assert main(["complete", "--url", server.url]) == 0
    assert [body["prompt"] for body in server.bodies] == ["one", "two"]


def test_a_failure_ends_a_piped_input_with_status_1(server, monkeypatch):
    server.error = "No."
    monkeypatch.setattr("sys.stdin", io.StringIO("one\ntwo\n"))
    assert main(["complete", "--url", server.url]) == 1
    assert len(server.bodies) == 1


def test_there_is_no_system_message(server, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["complete", "--url", server.url, "--system-prompt", "x"])
    assert ended.value.code == 2


def test_ctrl_c_ends_the_answer_and_not_the_session(server, capsys):
    def interrupted(line):
        yield "so far"
        raise KeyboardInterrupt

    assert conversation.say("complete", interrupted, "x") == 130
    assert capsys.readouterr().out == "so far\n"
