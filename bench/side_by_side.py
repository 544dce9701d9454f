"""Several servers alive at once, loaded in turns: the fair comparison where memory speed drifts.

    python bench/side_by_side.py --model DIR --rounds 5 \
        --server 'slipway=bin/slipway serve {model} --port {port} --dtype bfloat16' \
        --server 'other=other-server --model {model} --port {port}'

Every round gives each server the same requests, one server at a time, there and back, until a scenario has
taken 8 s of each; the idle ones sleep. A round's ratio is the median over its passes, each of which measures
the servers one right after the other. Prints a table of medians over the rounds and the ratio of the first
server to each other, with the 90 % interval of its median; with --json all figures. --until 0.04 goes on past
--rounds with the scenarios whose interval is wider, 40 rounds at most; Ctrl-C or SIGTERM ends it after the
last whole one. --fresh restarts the servers before each round. A process can be 3 % faster or
slower for its whole life, and more rounds with the same processes do not average that out.
Scenarios: single 128 in, 128 out; ttft 512 in; prefix the same 512 again; cN: N streams of 128 in, 64 out at
once; chatN: N chats of 32 numbers written out, 64 out; a trailing s (c8s) samples instead of taking the
likeliest token.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import math
import os
import re
import shlex
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path

from load import Load, run

SAMPLED = {"temperature": 0.8, "top_p": 0.95, "top_k": 40, "seed": 1}
MOST_ROUNDS = 40
TURN_SECONDS = 8.0
"""Of each server in a scenario of a round, at least: what is shorter is measured several times in turns, for
a machine's pace changes within seconds."""
WARM_UP = Load(num_requests=2, concurrency=2, input_len=64, output_len=8, seed=99)


Figures = dict[str, list[list[float]]]
"""A figure's passes, round by round."""


@dataclass
class Server:
    """A server that this script started, and what it measured of it."""

    name: str
    process: subprocess.Popen[bytes]
    url: str
    model: str
    figures: Figures = field(default_factory=dict)

    def keep(self, figure: str, passes: list[float]) -> None:
        self.figures.setdefault(figure, []).append(passes)

    def peak_memory_mib(self) -> int:
        """Largest resident set of each process of its group, summed."""
        total = 0
        for status in Path("/proc").glob("[0-9]*/status"):
            try:
                if os.getpgid(int(status.parent.name)) == self.process.pid:
                    line = next(x for x in status.read_text().splitlines() if x.startswith("VmHWM"))
                    total += int(line.split()[1]) >> 10
            except (OSError, StopIteration):
                continue
        return total

    def stop(self) -> None:
        for what, patience in ((signal.SIGTERM, 20), (signal.SIGKILL, 10)):
            try:
                os.killpg(self.process.pid, what)
                self.process.wait(patience)
                return
            except (ProcessLookupError, subprocess.TimeoutExpired):
                continue


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


def answers(server: Server, deadline: float) -> bool:
    """Whether it gives its first token before `deadline`, by `time.perf_counter`."""
    while time.perf_counter() < deadline and server.process.poll() is None:
        try:
            with urllib.request.urlopen(server.url + "/v1/models", timeout=5) as answer:
                server.model = str(json.load(answer)["data"][0]["id"])
            body = json.dumps({"model": server.model, "prompt": [500], "max_tokens": 1}).encode()
            asked = urllib.request.Request(
                server.url + "/v1/completions", body, {"Content-Type": "application/json"}
            )
            urllib.request.urlopen(asked, timeout=deadline - time.perf_counter()).close()
            return True
        except (OSError, urllib.error.HTTPError, KeyError, IndexError, ValueError):
            time.sleep(0.05)
    return False


def start(name: str, command: str, model: str, figures: Figures, patience: float = 300) -> Server:
    """Start a server and wait for its first answered token; its figures are added to `figures`."""
    port = free_port()
    words = shlex.split(command.format(model=model, port=port))
    started = time.perf_counter()
    log = tempfile.NamedTemporaryFile(prefix=f"{name}-", suffix=".log", delete=False)  # noqa: SIM115
    process = subprocess.Popen(words, start_new_session=True, stdout=log, stderr=subprocess.STDOUT)
    server = Server(name, process, f"http://127.0.0.1:{port}", "", figures)
    try:
        if not answers(server, started + patience):
            raise SystemExit(f"{name} did not come up; see {log.name}")
    except BaseException:
        server.stop()
        raise
    server.keep("start s", [time.perf_counter() - started])
    return server


def measure(server: Server, scenario: str, seed: int) -> dict[str, float]:
    """Figures of one scenario in one round; higher is better for tok_s, lower for the rest."""
    sampled = re.fullmatch(r"(single|c\d+|chat\d+)s", scenario)
    kind, sampling = (sampled[1], SAMPLED) if sampled else (scenario, {})
    chats = kind.startswith("chat")

    def go(requests: int, input_len: int, output_len: int) -> dict[str, object]:
        load = Load(requests, requests, input_len, output_len, chat=chats, sampling=sampling, seed=seed)
        result = asyncio.run(run(server.url, server.model, load))
        if result["errors"]:
            raise SystemExit(f"{server.name}: {result['errors']}")
        return result

    if kind == "single":
        return {"tok_s": float(go(1, 128, 128)["stream_tok_s"])}  # type: ignore[arg-type]
    if kind == "ttft":
        return {"ttft_s": go(1, 512, 1)["ttft_s"]["p50"]}  # type: ignore[index]
    if kind == "prefix":
        go(1, 512, 1)
        return {"hit_ttft_s": go(1, 512, 1)["ttft_s"]["p50"]}  # type: ignore[index]
    streams = int(kind.removeprefix("chat").removeprefix("c"))
    return {"tok_s": float(go(streams, 32 if chats else 128, 64)["output_tok_s"])}  # type: ignore[arg-type]


def paired(ours: list[list[float]], theirs: list[list[float]]) -> tuple[float, float, float]:
    """The median over the rounds of the ratio, each the median over its passes, and its 90 % interval.

    The interval is by order statistics: the whole range where rounds are too few for one, below five.
    """
    ratios = sorted(
        statistics.median(a / b for a, b in zip(mine, other, strict=True))
        for mine, other in zip(ours, theirs, strict=True)
    )
    count, outside, below = len(ratios), 0, 0.0
    while (below := below + math.comb(count, outside) / 2**count) <= 0.05:
        outside += 1
    first = max(outside - 1, 0)
    return statistics.median(ratios), ratios[first], ratios[count - 1 - first]


def width(kept: dict[str, Figures], scenario: str) -> float:
    """Of the widest interval of a scenario's ratios; unbounded before its first round."""
    first, *others = kept.values()
    names = [name for name in first if name.startswith(f"{scenario} ")]
    bounds = [paired(first[name], other[name])[1:] for other in others for name in names]
    return max((high - low for low, high in bounds), default=math.inf if others else 0.0)


def table(kept: dict[str, Figures]) -> str:
    names, ours = list(kept), next(iter(kept.values()))
    head = ["figure", "rounds", *names, *(f"{names[0]} / {name}" for name in names[1:])]
    lines = ["| " + " | ".join(head) + " |", "| --- |" + " ---: |" * (len(head) - 1)]
    for figure, rounds in ours.items():
        each = [figures[figure][: len(rounds)] for figures in kept.values()]
        medians = [f"{statistics.median(map(statistics.median, values)):.3g}" for values in each]
        ratios = ["{:.3f} [{:.3f}, {:.3f}]".format(*paired(rounds, values)) for values in each[1:]]
        lines.append("| " + " | ".join([figure, f"{len(rounds)}", *medians, *ratios]) + " |")
    return "\n".join(lines)


def play(turn: int, servers: list[Server], scenarios: list[str]) -> None:
    """One round: all of its figures are kept, or none."""
    order = servers[turn % len(servers) :] + servers[: turn % len(servers)]
    found: dict[str, dict[str, list[float]]] = {server.name: {} for server in servers}
    for scenario in scenarios:
        begun, passes = time.monotonic(), 0
        while not passes or time.monotonic() - begun < TURN_SECONDS * len(servers):
            # No scenario finds another's prompts, and no pass an earlier one's.
            seed = 100_000 * passes + 1000 * (turn + 1) + sum(map(ord, scenario))
            for server in order:
                for figure, value in measure(server, scenario, seed).items():
                    found[server.name].setdefault(f"{scenario} {figure}", []).append(value)
            order.reverse()
            passes += 1
    for server in servers:
        for figure, values in found[server.name].items():
            server.keep(figure, values)
        server.keep("peak memory, MiB", [float(server.peak_memory_mib())])
    kept = {server.name: server.figures for server in servers}
    widths = ", ".join(f"{scenario} {width(kept, scenario):.3f}" for scenario in scenarios)
    print(f"round {turn + 1}: intervals {widths}", file=sys.stderr)


def launch(servers: list[Server], commands: dict[str, str], model: str, kept: dict[str, Figures]) -> None:
    """These in place of `servers`, one after the other."""
    while servers:
        servers.pop().stop()
    for name, command in commands.items():
        servers.append(start(name, command, model, kept[name]))
        asyncio.run(run(servers[-1].url, servers[-1].model, WARM_UP))


def main() -> None:
    plain = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=plain)
    parser.add_argument("--model", required=True)
    parser.add_argument("--server", action="append", required=True, metavar="NAME=COMMAND")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--until", type=float, default=math.inf, metavar="WIDTH")
    parser.add_argument("--fresh", action="store_true")
    parser.add_argument("--scenarios", default="single,ttft,prefix,c8,c32")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # the servers end with us
    servers: list[Server] = []
    try:
        commands = {name: command for name, _, command in (item.partition("=") for item in arguments.server)}
        kept: dict[str, Figures] = {name: {} for name in commands}
        with contextlib.suppress(KeyboardInterrupt):
            scenarios = arguments.scenarios.split(",")
            for turn in range(max(arguments.rounds, MOST_ROUNDS)):
                if turn >= arguments.rounds:
                    scenarios = [name for name in scenarios if width(kept, name) > arguments.until]
                if not scenarios:
                    break
                if arguments.fresh or not servers:
                    commands = dict(reversed(commands.items()))  # what is first may find better memory
                    launch(servers, commands, arguments.model, kept)
                    servers.sort(key=lambda server: list(kept).index(server.name))
                play(turn, servers, scenarios)
        print(table(kept))
        if arguments.json:
            arguments.json.write_text(json.dumps(kept, indent=1))
    finally:
        for wish in (signal.SIGINT, signal.SIGTERM):
            signal.signal(wish, signal.SIG_IGN)  # a second one would leave servers behind
        for server in servers:
            server.stop()


if __name__ == "__main__":
    main()
