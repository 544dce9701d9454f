"""What each process of a server does first where a variable asks for it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from live_server import live_server
from slipway import call_trace, plugins
from slipway.engine.config import EngineConfig
from slipway.engine.launch import EngineProcess
from slipway.exits import Exit

PLUGIN = """
import logging, os, sys
def greet():
    logging.getLogger("slipway.engine").warning("a greeting is due")
    print(f"greetings from {os.path.basename(sys.argv[0])} {os.getpid()}", flush=True)
def fail():
    raise RuntimeError("not today")

class Octets:
    size = 256  # every byte is a token
    special_ids = added_ids = frozenset()
    def __init__(self):
        from slipway.text.decoding import byte_alphabet, lower
        self.decoding = lower({"type": "ByteLevel"})
        self.letters = {byte: letter for letter, byte in byte_alphabet().items()}
    def encode(self, text, add_special_tokens):
        return list(text.encode())
    def fewest(self, text):
        return len(text.encode())
    def token(self, token_id):
        return self.letters.get(token_id)
    def token_id(self, token):
        return next((id for id, letter in self.letters.items() if letter == token), None)

def octets():
    from slipway.text.custom import register
    from slipway.text.tokenizer import Tokenizer
    register("octets", lambda model: Tokenizer(Octets(), eos_token_ids=[0]))
"""
ENTRY_POINTS = """
[slipway.general_plugins]
greeter = my_plugin:greet
failing = my_plugin:fail
tokens = my_plugin:octets
"""


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of packages with three plugins."""
    (tmp_path / "my_plugin.py").write_text(PLUGIN)
    data = tmp_path / "my_plugin-1.0.dist-info"
    data.mkdir()
    (data / "METADATA").write_text("Metadata-Version: 2.1\nName: my-plugin\nVersion: 1.0\n")
    (data / "entry_points.txt").write_text(ENTRY_POINTS)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    sys.modules.pop("my_plugin", None)


def test_only_what_is_named_is_loaded(installed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plugins.load(())
    assert "my_plugin" not in sys.modules
    plugins.load(["greeter"])
    assert "greetings" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("other", r"names other, which no installed package offers\. Installed: failing, greeter, tokens"),
        ("failing", r"The plugin failing \(my_plugin:fail\) failed: RuntimeError: not today"),
    ],
)
def test_a_plugin_that_is_not_there_or_fails_ends_the_start(installed: Path, name: str, words: str) -> None:
    with pytest.raises(Exit, match=words) as caught:
        plugins.load([name])
    assert caught.value.exit_code.code == 2


LOG_CONFIG = {
    "version": 1,
    "formatters": {"plain": {"format": "FORM %(name)s %(message)s"}},
    "handlers": {"out": {"class": "logging.StreamHandler", "formatter": "plain"}},
    "root": {"handlers": ["out"]},
}


@pytest.fixture
def log_config(tmp_path: Path) -> str:
    (tmp_path / "logs.json").write_text(json.dumps(LOG_CONFIG))
    return str(tmp_path / "logs.json")


def test_loggers_that_a_log_configuration_does_not_name_still_log(log_config: str) -> None:
    script = (
        "import logging, sys\n"
        "from slipway import logs, envs\n"
        "known = logging.getLogger('slipway.api')\n"
        "logs.configure_logging(sys.argv[1], envs.read({}))\n"
        "known.warning('I am there')"
    )
    words = [sys.executable, "-c", script, log_config]
    assert subprocess.run(words, capture_output=True, text=True).stderr == "FORM slipway.api I am there\n"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("variable", "value", "line"),
    [
        ("VLLM_LOGGING_PREFIX", "PRE:", r"PRE:WARNING \d\d-\d\d .* slipway\.engine: a greeting is due"),
        ("VLLM_CONFIGURE_LOGGING", "0", "a greeting is due"),  # as Python does where nothing is set up
        ("VLLM_LOGGING_LEVEL", "ERROR", None),
        ("VLLM_LOGGING_CONFIG_PATH", "{file}", r"FORM slipway\.engine a greeting is due"),
        (None, "{file}", r"FORM slipway\.engine a greeting is due"),
    ],
)
def test_the_engine_logs_as_it_is_told(
    variable: str | None,
    value: str,
    line: str | None,
    installed: Path,
    log_config: str,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    value = value.format(file=log_config)
    if variable is not None:
        monkeypatch.setenv(variable, value)
    monkeypatch.setenv("PYTHONPATH", ":".join([str(installed), *sys.path]))
    monkeypatch.setenv("VLLM_PLUGINS", "greeter")
    engine = EngineProcess(EngineConfig(model="/nowhere", log_config_file=None if variable else value))
    engine._wait(60)
    engine.stop()
    found = [one for one in capfd.readouterr().err.splitlines() if "a greeting is due" in one]
    assert len(found) == (line is not None)
    assert line is None or re.fullmatch(line, found[0])


@pytest.mark.slow
def test_every_process_of_a_server_logs_as_its_file_says(
    installed: Path, tiny_models: Callable[[str], Path], log_config: str
) -> None:
    environ = {"PYTHONPATH": ":".join([str(installed), *sys.path]), "VLLM_PLUGINS": "greeter"}
    arguments = ("--api-server-count", "2", "--log-config-file", log_config)
    with live_server(tiny_models("llama"), *arguments, env=environ, forked=False) as server:
        said = "".join(server.lines)
    assert said.count("FORM slipway.engine a greeting is due") == 4  # parent, engine and two of the API


@pytest.mark.slow
def test_both_processes_load_plugins_write_calls_and_log_sizes_of_steps(
    installed: Path, tiny_models: Callable[[str], Path], tmp_path: Path
) -> None:
    written = tmp_path / "written"
    written.mkdir()
    environ = {
        "PYTHONPATH": ":".join([str(installed), *sys.path]),
        "TMPDIR": str(written),
        "VLLM_PLUGINS": "greeter",
        "VLLM_TRACE_FUNCTION": "1",
        "VLLM_LOG_BATCHSIZE_INTERVAL": "0.2",
    }
    body = b'{"model": "tiny", "prompt": "a", "max_tokens": 3}'
    with live_server(
        tiny_models("llama"), "--served-model-name", "tiny", env=environ, forked=False
    ) as server:
        assert server.post("/v1/completions", body)[0] == 200
        said = server.wait_until_said("steps by tokens × how many (mean time): ")
        engine = server.engine_pid()
        pids = {server.process.pid, engine}
        assert {int(pid) for pid in re.findall(r"greetings from \S+ (\d+)", said)} == pids
        traces = {int(path.name.split("-")[2]): path.read_text() for path in written.glob("slipway-calls-*")}
        assert traces.keys() == pids
    assert re.search(
        r"^[\d.]+ \d+ call generate \S+/api/routes/inference.py:\d+$", traces[server.process.pid], re.M
    )
    assert re.search(
        r"^[\d.]+ \d+ return Scheduler.schedule \S+/engine/scheduler.py:\d+$", traces[engine], re.M
    )
    assert " asyncio/" not in traces[server.process.pid]


@pytest.mark.slow
def test_both_processes_use_the_tokenizer_that_a_plugin_registers(
    installed: Path, tiny_models: Callable[[str], Path]
) -> None:
    environ = {"PYTHONPATH": ":".join([str(installed), *sys.path]), "VLLM_PLUGINS": "tokens"}
    arguments = ("--tokenizer", "octets", "--tokenizer-mode", "custom", "--served-model-name", "tiny")
    form = {"structured_outputs": {"regex": "[äö]{3}"}, "logprobs": 1, "max_tokens": 20}
    with live_server(tiny_models("llama"), *arguments, env=environ, forked=False) as server:
        counted = json.loads(server.post("/tokenize", json.dumps({"prompt": "é!"}).encode())[1])
        written = json.loads(server.post("/v1/completions", json.dumps({"prompt": "é!"} | form).encode())[1])
    assert counted["tokens"] == [0xC3, 0xA9, 0x21]
    (choice,) = written["choices"]
    assert re.fullmatch("[äö]{3}", choice["text"])
    assert written["usage"] == {"prompt_tokens": 3, "completion_tokens": 6, "total_tokens": 9}


def test_the_trace_of_calls_ends_where_it_is_as_long_as_it_may_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(call_trace, "MOST_BYTES", 1000)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))

    def work() -> None:
        call_trace.trace_calls()
        for _ in range(100):
            plugins.load(())

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert "The trace of calls ends: it is as long as it may be." in caplog.text
    (path,) = tmp_path.glob("slipway-calls-*")
    assert path.read_text().count("call load") > 3
    assert path.stat().st_size <= 1000
