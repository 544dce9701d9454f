"""`slipway chat` against a real HTTP server."""

from __future__ import annotations

import fcntl
import io
import os
import pty
import select
import signal
import socket
import subprocess
import sys
import termios
import threading

import pytest
from e2e.ground.patience import scaled
from speaking_server import SpeakingServer

from slipway.cli import remote
from slipway.cli.chat import Conversation
from slipway.cli.main import main
from slipway.cli.remote import Server, is_at_home


@pytest.fixture
def server(monkeypatch):
    for name in ("OPENAI_API_KEY", "VLLM_API_KEY", "SLIPWAY_COMMAND"):
        monkeypatch.delenv(name, raising=False)
    with SpeakingServer().running() as running:
        yield running


def test_a_quick_question_prints_the_answer_and_ends(server, capsys):
    assert main(["chat", "--url", server.url, "-q", "Capital of France?"]) == 0
    assert capsys.readouterr().out == "Paris.\n"
    (body,) = server.bodies
    assert body["messages"] == [{"role": "user", "content": "Capital of France?"}]
    assert body["stream"] is True


def test_the_first_listed_model_is_asked_unless_another_is_named(server):
    main(["chat", "--url", server.url, "-q", "x"])
    main(["chat", "--url", server.url, "-q", "x", "--model-name", "second"])
    assert [body["model"] for body in server.bodies] == ["first", "second"]


def test_the_system_message_comes_first(server):
    main(["chat", "--url", server.url, "-q", "x", "--system-prompt", "Be brief."])
    assert server.bodies[0]["messages"][0] == {"role": "system", "content": "Be brief."}


def test_the_temperature_is_the_servers_unless_it_is_given(server):
    main(["chat", "--url", server.url, "-q", "x"])
    main(["chat", "--url", server.url, "-q", "x", "--temperature", "0"])
    assert "temperature" not in server.bodies[0]
    assert server.bodies[1]["temperature"] == 0


def test_a_conversation_remembers_what_was_said(server, monkeypatch, capsys):
    monkeypatch.setattr("sys.stdin", io.StringIO("one\n\ntwo\n"))
    assert main(["chat", "--url", server.url]) == 0
    assert capsys.readouterr().out == "Paris.\nParis.\n"
    assert server.bodies[1]["messages"] == [
        {"role": "user", "content": "one"},
        {"role": "assistant", "content": "Paris."},
        {"role": "user", "content": "two"},
    ]


def test_an_answer_that_the_user_ends_stays_as_far_as_it_came(server):
    conversation = Conversation(Server(server.url, None), "first", None, {})
    answer = conversation.answer("one")
    assert next(answer) == "Par"
    answer.close()
    assert conversation.messages[-1] == {"role": "assistant", "content": "Par"}


def test_a_question_without_an_answer_is_forgotten(server):
    server.pieces, server.error = [], "The engine has gone."
    assert main(["chat", "--url", server.url, "-q", "x"]) == 1
    conversation = Conversation(Server(server.url, None), "first", None, {})
    with pytest.raises(Exception, match=r"The engine has gone\."):
        list(conversation.answer("one"))
    assert conversation.messages == []


def test_the_key_comes_from_the_environment(server, monkeypatch):
    server.key = "secret"
    monkeypatch.setenv("VLLM_API_KEY", "secret")
    assert main(["chat", "--url", server.url, "-q", "x"]) == 0


def test_openais_key_is_not_for_this_machine(server, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    main(["chat", "--url", server.url, "-q", "x"])
    main(["chat", "--url", server.url.replace("127.0.0.1", "localhost"), "-q", "x"])
    assert set(server.keys) == {None}
    monkeypatch.setenv("http_proxy", server.url.removesuffix("/v1"))
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    main(["chat", "--url", "http://elsewhere.example/v1", "-q", "x"])
    assert server.keys[-1] == "secret"


@pytest.mark.parametrize(
    "url", ["http://127.9.9.9/v1", "http://[::1]:8/v1", "https://LOCALHOST/v1", "http://a.localhost"]
)
def test_every_name_of_this_machine_is_known(url):
    assert is_at_home(url)
    assert not is_at_home("http://127.0.0.1.example/v1")


def test_no_redirect_is_followed(server, capsys):
    with SpeakingServer().running() as other:
        server.elsewhere = f"{other.url}/models"
        assert main(["chat", "--url", server.url, "-q", "x", "--api-key", "secret"]) == 1
        assert other.keys == []
        assert f"sends its clients to {other.url}/models." in capsys.readouterr().err


def test_a_server_that_falls_silent_is_given_up(server, monkeypatch, capsys):
    monkeypatch.setattr(remote, "READ_SECONDS", 0.2)
    server.released = threading.Event()
    try:
        assert main(["chat", "--url", server.url, "-q", "x"]) == 1
    finally:
        server.released.set()
    assert "nothing came for 0.2 s" in capsys.readouterr().err


def test_a_server_that_takes_no_connection_is_given_up(monkeypatch, capsys):
    monkeypatch.setattr(remote, "CONNECT_SECONDS", 0.2)
    with socket.create_server(("127.0.0.1", 0), backlog=0) as listener:
        address = listener.getsockname()
        with socket.create_connection(address):  # the one that waits to be accepted
            assert main(["chat", "--url", f"http://127.0.0.1:{address[1]}/v1", "-q", "x"]) == 1
    assert "took no connection within 0.2 s" in capsys.readouterr().err


def test_the_key_on_the_command_line_wins(server, monkeypatch):
    monkeypatch.setenv("VLLM_API_KEY", "other")
    main(["chat", "--url", server.url, "-q", "x", "--api-key", "given"])
    assert set(server.keys) == {"given"}


def test_a_wrong_key_is_answered_with_what_to_give(server, capsys):
    server.key = "secret"
    assert main(["chat", "--url", server.url, "-q", "x"]) == 1
    told = capsys.readouterr().err
    assert "give --api-key or set VLLM_API_KEY." in told
    assert "Wrong key." in told


def test_where_nothing_listens_the_message_says_how_to_start_a_server(monkeypatch, capsys):
    monkeypatch.setenv("SLIPWAY_COMMAND", "bin/slipway")
    with SpeakingServer().running() as server:
        gone = server.url
    assert main(["chat", "--url", gone, "-q", "x"]) == 1
    told = capsys.readouterr().err
    assert f"Nothing listens at {gone}." in told
    assert "`bin/slipway demo` or `bin/slipway serve MODEL`" in told


@pytest.mark.parametrize("url", ["nonsense", "http://host.invalid/v1", "ftp://x/v1", "http://[/v1"])
def test_a_url_that_cannot_be_used_is_a_sentence_and_no_traceback(url, capsys):
    assert main(["chat", "--url", url, "-q", "x"]) == 1
    assert capsys.readouterr().err.startswith("slipway chat: ")


def test_an_error_in_the_stream_ends_with_status_1_and_keeps_what_was_said(server, capsys):
    server.error = "The engine has gone."
    assert main(["chat", "--url", server.url, "-q", "x"]) == 1
    shown = capsys.readouterr()
    assert shown.out == "Paris."
    assert "The engine has gone." in shown.err


def test_a_connection_that_breaks_off_is_said(server, capsys):
    server.hang_up = True
    assert main(["chat", "--url", server.url, "-q", "x"]) == 1
    assert "The answer broke off" in capsys.readouterr().err


def test_a_server_without_models_is_no_openai_api(server, capsys):
    server.models = []
    assert main(["chat", "--url", server.url, "-q", "x"]) == 1
    assert "lists no model" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n{", "/models broke off: IncompleteRead"),
        (b"HTTP/1.1 500 Own\r\nContent-Length: 99\r\n\r\n{", "The server answered 500 Own."),
        (b"HTTP/1.1 500 \x1b]0;mine\x07\r\n\r\n", "The server answered 500 ]0;mine."),
        (b"\x1b[2J\x9b31m\r\n\r\n", "cannot be used: [2J31m."),
        (b'HTTP/1.1 400 B\r\n\r\n{"error": {"message": "\\u001b[2J\\ud83d"}}', "answered 400 B. [2J\n"),
    ],
)
def test_an_answer_that_is_none_is_a_sentence_that_steers_nothing(server, capsys, raw, words):
    server.raw = raw
    assert main(["chat", "--url", server.url, "-q", "x"]) == 1
    told = capsys.readouterr().err
    assert told.startswith("slipway chat: ")
    assert words in told
    assert told.removesuffix("\n").isprintable()


def test_an_error_that_is_null_is_none_and_one_without_a_message_is_shown(server, capsys):
    assert main(["chat", "--url", server.url, "-q", "x"]) == 0
    server.error_event = {"code": 7}
    assert main(["chat", "--url", server.url, "-q", "x"]) == 1
    assert '"error": {"code": 7}' in capsys.readouterr().err


def test_the_end_of_a_keys_line_is_not_sent(server, monkeypatch):
    monkeypatch.setenv("VLLM_API_KEY", "secret\n")
    assert main(["chat", "--url", server.url, "-q", "x"]) == 0
    assert set(server.keys) == {"secret"}


@pytest.mark.parametrize("key", ["sé-cret", "s\ncret", "s\x1bcret", "s\u20accret"])
def test_what_is_no_key_is_said_without_showing_it(server, monkeypatch, capsys, key):
    assert main(["chat", "--url", server.url, "-q", "x", "--api-key", key]) == 1
    monkeypatch.setenv("VLLM_API_KEY", key)
    assert main(["chat", "--url", server.url, "-q", "x"]) == 1
    assert main(["bench", "serve", "--base-url", server.url]) == 2
    chat, environment, bench = capsys.readouterr().err.splitlines()
    assert chat.startswith("slipway chat: --api-key holds no API key")
    assert environment.startswith("slipway chat: VLLM_API_KEY holds no API key")
    assert bench.startswith("slipway bench serve: error: VLLM_API_KEY holds no API key")
    assert "cret" not in chat + environment + bench
    assert server.keys == []


def test_control_characters_do_not_reach_the_terminal(server, capsys):
    server.pieces = ["\x1b[2J", "é\tx\n", "\x9b31m", "\ud83d"]
    main(["chat", "--url", server.url, "-q", "x"])
    assert capsys.readouterr().out == "[2Jé\tx\n31m\n"


def test_a_proxy_of_the_environment_is_not_asked_for_this_machine(server, monkeypatch):
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    assert main(["chat", "--url", server.url, "-q", "x"]) == 0


def read_until(terminal: int, words: bytes) -> bytes:
    """What the program prints, up to and with `words`."""
    seen = b""
    while words not in seen:
        readable, _, _ = select.select([terminal], [], [], scaled(60))
        assert readable, seen
        seen += os.read(terminal, 1024)
    return seen


def at_a_terminal() -> None:
    """What a shell sees to before it runs a command; a test run in the background may ignore Ctrl-C."""
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def test_at_a_terminal_ctrl_c_ends_the_answer_and_ctrl_d_the_session(server):
    server.released = threading.Event()
    terminal, inside = pty.openpty()
    chat = subprocess.Popen(
        [sys.executable, "-m", "slipway", "chat", "--url", server.url],
        stdin=inside,
        stdout=inside,
        stderr=inside,
        start_new_session=True,
        preexec_fn=at_a_terminal,
    )
    os.close(inside)
    try:
        read_until(terminal, b"> ")
        os.write(terminal, b"one\n")
        read_until(terminal, b"Paris.")
        os.write(terminal, b"\x03")
        read_until(terminal, b"> ")
        os.write(terminal, b"two\n")
        read_until(terminal, b"Paris.")
        os.write(terminal, b"\x03")
        read_until(terminal, b"> ")
        os.write(terminal, b"\x04")
        assert chat.wait(timeout=scaled(30)) == 0
    finally:
        server.released.set()
        chat.kill()
        chat.wait()
        os.close(terminal)
    assert [message["content"] for message in server.bodies[1]["messages"]] == ["one", "Paris.", "two"]
