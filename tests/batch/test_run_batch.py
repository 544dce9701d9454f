"""`slipway run-batch` as a command: its answers, and every way in which it ends."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from batches import Command, Line, Web, begin, line, read_answers, write_lines
from e2e.ground.patience import scaled
from e2e.ground.ports import free_port

from live_server import LiveServer, live_server
from otlp import by_grpc
from slipway import exits

pytestmark = pytest.mark.slow

Batch = Callable[..., Command]
FEW_SEATS = ("--max-num-seqs", "2", "--disable-log-stats")


def long_lines(count: int) -> list[Line]:
    """Enough work that a run can be met in its midst."""
    return [line(f"line {number}", max_tokens=150, ignore_eos=True) for number in range(count)]


def essence(answer: Any) -> Any:
    """Without what differs between two answers to one request."""
    return {key: value for key, value in answer.items() if key not in ("id", "created")}


def ask(server: LiveServer, one: Line) -> Any:
    sent = urllib.request.Request(
        server.url + one["url"], json.dumps(one["body"]).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(sent, timeout=scaled(60)) as answered:
        return json.load(answered)


def test_a_batch_answers_as_a_server_does_in_any_order(demo_model: Path, tmp_path: Path) -> None:
    settings = ("--max-model-len", "512", "--max-num-seqs", "4")
    chat = "/v1/chat/completions"
    lines = [
        line("greedy", chat, prompt="What is the capital of France?", max_tokens=12),
        line("seeded", chat, prompt="Say something.", temperature=1, seed=7, max_tokens=12, n=2),
        line("likely", prompt="The capital of France is", logprobs=2),
        line("held", chat, prompt="Which city?", guided_choice=["Paris", "Bern"]),
        line("called", "/v1/completions", prompt=[1, 2, 3], stop="e"),
        line("elsewhere", prompt="The sky is", model="m"),
    ]
    command = begin(
        demo_model, write_lines(tmp_path / "in", lines[::-1]), tmp_path / "out", *settings, forked=False
    )
    with live_server(demo_model, "--served-model-name", "m", *settings) as server:
        expected = {one["custom_id"]: essence(ask(server, one)) for one in lines}
    status, said = command.end()
    assert status == 0, said
    answers = {answer["custom_id"]: answer["response"] for answer in read_answers(tmp_path / "out")}
    assert {answer["status_code"] for answer in answers.values()} == {200}
    assert {name: essence(answer["body"]) for name, answer in answers.items()} == expected
    assert "Paris" in json.dumps(answers["likely"])
    assert "All 6 lines are answered" in said
    told = [one for one in said.splitlines() if " tokens in" in one]
    assert len(told) == 6, "each line of the batch is one of the log"
    assert all(": m, " in one and " out, the first after " in one for one in told)
    assert "Paris" not in "".join(told)


def test_lines_that_cannot_be_answered_are_told_why_and_hold_nobody_up(batch: Batch, tmp_path: Path) -> None:
    lines: list[Any] = [
        line("good"),
        "no request",
        line("good", prompt="again"),
        line("streamed", stream=True),
        line("elsewhere", url="/tokenize"),
        line("stranger", model="another"),
        line("bounds", temperature=-1),
        {**line("nothing"), "body": []},
        line("last"),
    ]
    source = write_lines(tmp_path / "in", lines)
    source.write_text(source.read_text() + "{torn")
    status, said = batch(source, tmp_path / "out").end()
    assert status == 0, said
    answers = sorted(read_answers(tmp_path / "out"), key=lambda answer: int(answer["id"].split("_")[2]))
    assert [(answer["custom_id"], answer["response"]["status_code"]) for answer in answers] == [
        ("good", 200),
        (None, 400),
        ("good", 400),
        ("streamed", 400),
        ("elsewhere", 400),
        ("stranger", 404),
        ("bounds", 400),
        ("nothing", 400),
        ("last", 200),
        (None, 400),
    ]
    assert all((answer["error"] is None) == (answer["response"]["status_code"] == 200) for answer in answers)
    assert answers[6]["error"]["param"] == "temperature"
    assert "8 failed" in said


def test_a_batch_that_was_killed_goes_on_and_answers_each_line_once(batch: Batch, tmp_path: Path) -> None:
    source, target = write_lines(tmp_path / "in", long_lines(60)), tmp_path / "out"
    killed = batch(source, target, *FEW_SEATS)
    killed.wait_for_lines(target, 5)
    own = psutil.Process(killed.process.pid)
    assert not own.net_connections("tcp")
    os.kill(killed.process.pid, signal.SIGKILL)
    killed.process.wait()
    before = target.read_bytes()
    kept = before[: before.rindex(b"\n") + 1]
    target.write_bytes(kept + kept[: kept.index(b"\n") // 2])  # as an end in the midst of a line leaves it
    status, said = batch(source, target, *FEW_SEATS).end()
    assert status == 0, said
    assert target.read_bytes().startswith(kept)
    answers = read_answers(target)
    assert sorted(answer["custom_id"] for answer in answers) == sorted(f"line {n}" for n in range(60))
    assert {answer["response"]["body"]["usage"]["completion_tokens"] for answer in answers} == {150}
    assert f"{len(kept.splitlines())} were answered before" in said


def test_a_batch_that_is_done_starts_no_engine(batch: Batch, tmp_path: Path) -> None:
    source, target = write_lines(tmp_path / "in", [line("a")]), tmp_path / "out"
    assert batch(source, target).end()[0] == 0
    whole = target.read_bytes()
    status, said = batch(source, target, "--load-format", "dummy").end()
    assert (status, said) == (0, f"All 1 lines are answered in {target}.\n")
    assert target.read_bytes() == whole


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_lets_open_lines_end_and_says_how_to_go_on(
    batch: Batch, tmp_path: Path, number: signal.Signals
) -> None:
    source, target = write_lines(tmp_path / "in", long_lines(60)), tmp_path / "out"
    command = batch(source, target, *FEW_SEATS, forked=False)
    command.wait_for_lines(target, 3)
    os.killpg(command.process.pid, number)
    status, said = command.end()
    assert status == exits.INTERRUPTED.code
    done = len(read_answers(target))
    assert 3 <= done < 60
    assert f"The batch was interrupted: {done} of 60 lines are answered in {target}." in said
    assert "Start again: it goes on where it stopped." in said
    assert "Traceback" not in said


def test_a_second_signal_waits_for_nobody(batch: Batch, tmp_path: Path) -> None:
    endless = [line(str(number), max_tokens=400, n=30, ignore_eos=True) for number in range(8)]
    target = tmp_path / "out"
    command = batch(write_lines(tmp_path / "in", [line("first"), *endless]), target, "--max-num-seqs", "4")
    command.wait_for_lines(target, 1)
    command.process.send_signal(signal.SIGTERM)
    command.wait_until(lambda: any("are under way" in said for said in command.said))
    command.process.send_signal(signal.SIGTERM)
    status, said = command.end()
    assert status == exits.INTERRUPTED.code, said
    assert len(read_answers(target)) < 9


def test_a_dead_engine_ends_the_batch_with_its_cause_and_answers_nothing(
    batch: Batch, tmp_path: Path
) -> None:
    source, target = write_lines(tmp_path / "in", long_lines(60)), tmp_path / "out"
    command = batch(source, target, *FEW_SEATS)
    command.wait_for_lines(target, 3)
    os.kill(command.engine_pid(), signal.SIGKILL)
    status, said = command.end()
    assert status == exits.WORKER_KILLED.code
    assert "The engine process was killed (SIGKILL)." in said
    assert {answer["response"]["status_code"] for answer in read_answers(target)} == {200}
    assert batch(source, target, *FEW_SEATS).end()[0] == 0
    assert len({answer["custom_id"] for answer in read_answers(target)}) == len(read_answers(target)) == 60


def test_a_batch_comes_from_a_url_and_goes_to_one(batch: Batch, web: Web, tmp_path: Path) -> None:
    web.files["/in"] = write_lines(tmp_path / "in", long_lines(60)).read_bytes()
    web.statuses["PUT"] = [502]
    urls = (f"{web.url}/in?key=1", f"{web.url}/out?key=2")
    kept = ("--output-tmp-dir", str(tmp_path / "kept"))
    killed = batch(*urls, *kept, *FEW_SEATS)
    killed.wait_until(lambda: any(path.read_bytes().count(b"\n") > 2 for path in tmp_path.glob("kept/*")))
    killed.process.send_signal(signal.SIGKILL)
    killed.process.wait()
    assert "/out" not in web.files
    status, said = batch(*urls, *kept, *FEW_SEATS).end()
    assert status == 0, said
    assert "key=" not in said
    answers = [json.loads(text) for text in web.files["/out"].splitlines()]
    assert sorted(answer["custom_id"] for answer in answers) == sorted(f"line {n}" for n in range(60))
    assert not list(tmp_path.glob("kept/*"))


def test_a_batch_goes_through_pipes_and_needs_no_key(batch: Batch, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_API_KEY", "secret")
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    command = batch("-", "-", **pipes)
    assert command.process.stdin is not None
    assert command.process.stdout is not None
    command.process.stdin.write(json.dumps(line("a")) + "\n" + json.dumps(line("b")))
    command.process.stdin.close()
    answers = [json.loads(text) for text in command.process.stdout]
    assert command.end()[0] == 0
    assert {answer["custom_id"] for answer in answers} == {"a", "b"}


def test_metrics_are_there_while_it_runs(batch: Batch, tmp_path: Path) -> None:
    source = write_lines(tmp_path / "in", long_lines(60))
    port = free_port()
    where = ("--enable-metrics", "--url", "127.0.0.1", "--port", str(port))
    command = batch(source, tmp_path / "out", *FEW_SEATS, *where)
    command.wait_for_lines(tmp_path / "out", 3)
    server = LiveServer(f"http://127.0.0.1:{port}", command.process)
    assert server.get("/live")[0] == 200
    assert server.metrics()["vllm:generation_tokens_total"] >= 450
    assert server.get("/v1/models")[0] == 404
    assert command.end()[0] == 0


def test_traces_and_sizes_of_steps_are_told_to_the_last(
    batch: Batch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "600000")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_INSECURE", "true")
    monkeypatch.setenv("VLLM_LOG_BATCHSIZE_INTERVAL", "3600")
    source = write_lines(tmp_path / "in", long_lines(4))
    with by_grpc() as receiver:
        status, said = batch(source, tmp_path / "out", "--otlp-traces-endpoint", receiver.url).end()
    assert status == 0, said
    assert len(receiver.spans) == 4
    assert "steps by tokens" in said


def test_a_taken_metrics_port_is_said_before_anything_is_loaded(
    batch: Batch, web: Web, tmp_path: Path
) -> None:
    source = write_lines(tmp_path / "in", [line("a")])
    port = web.url.rpartition(":")[2]
    where = ("--enable-metrics", "--url", "127.0.0.1", "--port", port)
    status, said = batch(source, tmp_path / "out", *where).end()
    assert status == exits.PORT_IN_USE.code
    assert f"Port {port}" in said
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("source", "target", "words"),
    [
        ("missing", "out", "--input-file .*missing cannot be read: No such file"),
        ("in", "in", "--output-file .*in is the input itself"),
        ("in", "missing/out", "--output-file .*missing/out cannot be written: No such file"),
        ("in", "diary", "--output-file .*diary has in line 1 what no batch wrote"),
    ],
)
def test_files_that_cannot_be_used_are_named(
    batch: Batch, tmp_path: Path, source: str, target: str, words: str
) -> None:
    write_lines(tmp_path / "in", [line("a")])
    (tmp_path / "diary").write_text("dear diary\n")
    status, said = batch(tmp_path / source, tmp_path / target).end()
    assert status == exits.BAD_ARGUMENTS.code
    assert re.search(words, said), said
    assert (tmp_path / "diary").read_text() == "dear diary\n"
    assert not (tmp_path / "out").exists()


def test_a_terminal_shows_a_bar(batch: Batch, tmp_path: Path) -> None:
    ours, its = os.openpty()
    command = batch(write_lines(tmp_path / "in", long_lines(20)), tmp_path / "out", *FEW_SEATS, stderr=its)
    os.close(its)
    shown = bytearray()
    try:
        while piece := os.read(ours, 4096):
            shown += piece
    except OSError:  # how a terminal says that its last writer has gone
        pass
    os.close(ours)
    assert command.process.wait(scaled(30)) == 0
    assert "of 20 lines" in shown.decode()
    assert "░" in shown.decode()
    assert "All 20 lines are answered" in shown.decode().splitlines()[-1]
