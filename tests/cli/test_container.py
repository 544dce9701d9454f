"""The command as an image's entry point."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from e2e.ground.patience import scaled

from slipway.cli.container import EVERYWHERE, words
from slipway.cli.main import main
from slipway.envs import BY_NAME

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("given", [["--model", "org/name"], ["serve", "org/name"]])
def test_flags_may_follow_an_images_name_and_the_server_listens_everywhere(given, capsys):
    assert main(words([*given, "--pipeline-parallel-size", "2", "--dry-run"], {})) == 0
    resolved = json.loads(capsys.readouterr().out)
    assert (resolved["model"], resolved["pipeline_parallel_size"]) == ("org/name", 2)
    assert resolved["host"] == "::"


def test_a_host_that_the_user_gives_wins(capsys):
    assert main(words(["--model", "x", "--host", "::", "--dry-run"], {})) == 0
    assert json.loads(capsys.readouterr().out)["host"] == "::"


@pytest.mark.parametrize("given", [[], ["--version"], ["--help"], ["args", "--status"]])
def test_other_words_are_those_of_the_command(given):
    assert words(given, {}) == given


MODEL = ["--model=org/name"]
DUMMY = ["--load-format=dummy"]


@pytest.mark.parametrize(
    ("given", "environ", "added"),
    [
        ([], {"MODEL": "org/name"}, MODEL),
        (["serve"], {"MODEL": "org/name", "VLLM_USE_DUMMY_WEIGHTS": "1"}, MODEL + DUMMY),
        (["--port", "9"], {"MODEL": "org/name", "VLLM_USE_DUMMY_WEIGHTS": "0"}, MODEL),
        (["serve", "other"], {"MODEL": "org/name"}, []),
        (["serve", "--", "other"], {"VLLM_USE_DUMMY_WEIGHTS": "1"}, DUMMY),
        (["--model", "other"], {"MODEL": "org/name"}, []),
        (["--config", "CONFIG"], {"MODEL": "org/name", "VLLM_USE_DUMMY_WEIGHTS": "yes"}, DUMMY),
        (["serve", "m", "--load-format", "pt"], {"VLLM_USE_DUMMY_WEIGHTS": "1"}, []),
    ],
)
def test_what_nothing_else_says_a_containers_variables_say_and_the_log_tells(
    given, environ, added, tmp_path, capsys
):
    config = tmp_path / "server.yaml"
    config.write_text("model: another")
    given = [str(config) if word == "CONFIG" else word for word in given]
    made = words(given, environ)
    assert made == ["serve", *EVERYWHERE, *added, *(word for word in given if word != "serve")]
    assert environ == {}
    assert len(capsys.readouterr().err.splitlines()) == len(added)


def test_what_a_container_cannot_read_is_left_for_the_server_to_refuse(monkeypatch, capsys):
    environ = {"VLLM_USE_DUMMY_WEIGHTS": "perhaps", "MODEL": "m"}
    assert words(["serve"], environ) == ["serve", *EVERYWHERE]
    assert len(environ) == 2
    monkeypatch.setenv("VLLM_USE_DUMMY_WEIGHTS", "1")
    assert main(["serve", "m"]) == 2
    assert "only an image's entry point reads it" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["MODEL", "VLLM_USE_DUMMY_WEIGHTS"])
def test_the_operator_takes_neither(name):
    assert BY_NAME[name].action == "reject"


@pytest.mark.parametrize(
    ("given", "argument", "code", "reason"),
    [
        (["serve", "x", "--max-modle-len", "5"], "", 2, "BadArguments"),
        (["serve", "x", "--block-size", "7"], "block_size", 2, "BadArguments"),
        (["serve", "x", "--allowed-local-media-path", "/m"], "allowed_local_media_path", 3, "NotSupported"),
    ],
)
def test_a_refused_argument_is_told_in_the_termination_message(
    given, argument, code, reason, tmp_path, monkeypatch, capsys
):
    message = tmp_path / "termination-log"
    monkeypatch.setenv("SLIPWAY_TERMINATION_LOG", str(message))
    assert main(given) == code
    cause = json.loads(message.read_text())
    assert (cause["code"], cause["reason"], cause["argument"]) == (code, reason, argument)
    assert cause["message"] in capsys.readouterr().err


SIGTERM_IN_MSGSPEC = """
import os, signal, sys
from slipway.cli import serve

class SendOnce:
    def find_spec(self, name, path=None, target=None):
        if name == "datetime" and "msgspec" in sys.modules:
            sys.meta_path.remove(self)
            print("sent", flush=True)
            signal.raise_signal(signal.SIGTERM)

sys.modules.pop("datetime", None)
sys.meta_path.insert(0, SendOnce())
os.getpid = lambda: 1
sys.exit(serve.run(["/nowhere"]))
"""


def test_sigterm_inside_the_import_of_an_extension_is_not_lost():
    """msgspec does not look whether its own imports failed, and takes an exception there for none."""
    command = [sys.executable, "-c", SIGTERM_IN_MSGSPEC]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=scaled(60))
    assert (ended.returncode, ended.stdout) == (0, "sent\n"), ended.stderr


@pytest.mark.parametrize(
    "command",
    [["sh", "image/bin/vllm", "serve"], [sys.executable, "-m", "vllm.entrypoints.openai.api_server"]],
)
def test_commands_of_vllms_documents_start_the_server(command):
    paths = os.pathsep.join(["image/python", *sys.path])
    environ = {
        **os.environ,
        "PYTHONPATH": paths,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }
    words = [*command, "--model", "org/name", "--dry-run"]
    printed = subprocess.run(words, cwd=ROOT, env=environ, capture_output=True, text=True, check=True)
    resolved = json.loads(printed.stdout)
    assert (resolved["model"], resolved["host"]) == ("org/name", "::")
