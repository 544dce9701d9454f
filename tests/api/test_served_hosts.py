"""Ranks on two hosts, by the commands that a user starts on each: what clients see, and how both end."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import openai
import pytest

from live_server import live_server
from namespaces import needs_hosts
from served_hosts import ServedHosts, served_hosts

pytestmark = [pytest.mark.slow, needs_hosts]

TinyModels = Callable[[str], Path]
CONTEXT = 32_768
LONG = 30_000
"""Tokens: a stream of so many is not over before a host is lost."""
ARGUMENTS = (
    *("--dtype", "float32", "--max-model-len", str(CONTEXT)),
    *("--hf-overrides", json.dumps({"max_position_embeddings": CONTEXT})),
)
SHAPES = {
    "a stage on two hosts": ("--tensor-parallel-size", "2"),
    "a stage on each host": ("--tensor-parallel-size", "2", "--pipeline-parallel-size", "2"),
}


@pytest.fixture
def key(tmp_path: Path) -> Path:
    path = tmp_path / "key"
    path.write_bytes(b"k" * 32)
    path.chmod(0o600)
    return path


def client(url: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)


def answers(url: str) -> list[str]:
    api = client(url)
    model = api.models.list().data[0].id
    asked = ([5, 6, 7], list(range(20, 60)))
    made = (api.completions.create(model=model, prompt=one, max_tokens=32, temperature=0.0) for one in asked)
    return [one.choices[0].text for one in made]


@pytest.mark.parametrize("shape", SHAPES)
def test_hosts_answer_what_one_rank_answers_and_end_when_told(
    shape: str, tiny_models: TinyModels, key: Path
) -> None:
    with live_server(tiny_models("llama"), *ARGUMENTS) as alone:
        expected = answers(alone.url)
    trust = ("--cluster-key-file", str(key))
    with served_hosts(tiny_models("llama"), *ARGUMENTS, *SHAPES[shape], *trust) as served:
        assert answers(served.server.url) == expected, served.said()
        assert len(served.ranks(1)) == (1 if shape == "a stage on two hosts" else 2)
        assert f"listening on {served.hosts[0].address}, port 29501: ranks report" in served.said()
        assert "may take a rank's place" not in served.said()
        served.server.process.terminate()
        assert served.server.process.wait(20) == 0, served.said()
        served.nodes[1].process.wait(20)
        assert not served.hosts[0].processes(), served.said()
        assert not served.hosts[1].processes(), served.said()


def left(served: ServedHosts, within: float) -> list[dict[int, str]]:
    """What still runs on each host by then; nothing where all have ended."""
    end = time.monotonic() + within
    while True:
        for node in served.nodes:
            node.process.poll()
        found = [host.processes() for host in served.hosts]
        if not any(found):
            return []
        if time.monotonic() > end:
            return found
        served.server.wait(0.05)


def begin_stream(served: ServedHosts) -> Iterator[object]:
    api = client(served.server.url)
    stream = api.completions.create(
        model=api.models.list().data[0].id,
        prompt=[5, 6, 7],
        max_tokens=LONG,
        stream=True,
        extra_body={"ignore_eos": True},
    )
    chunks = iter(stream)
    next(chunks)
    return chunks


@pytest.mark.parametrize("lost", ["rank killed", "node killed", "cut off"])
@pytest.mark.parametrize("shape", SHAPES)
def test_a_lost_host_ends_streams_with_its_name_and_all_processes(
    shape: str, lost: str, tiny_models: TinyModels, key: Path
) -> None:
    trust = ("--cluster-key-file", str(key))
    with served_hosts(tiny_models("llama"), *ARGUMENTS, *SHAPES[shape], *trust) as served:
        stream = begin_stream(served)
        begun = time.monotonic()
        if lost == "rank killed":
            os.kill(min(served.ranks(1)), signal.SIGKILL)
        elif lost == "node killed":
            served.nodes[1].process.kill()
        else:
            served.hosts[1].cut_off()
        with pytest.raises(openai.APIError) as caught:
            for _ in stream:
                pass
        assert time.monotonic() - begun < 15
        assert re.search(rf"Rank [0-9].* on {served.hosts[1].address} ", str(caught.value)), served.said()
        assert left(served, 5) == []
        assert served.server.process.wait(1) != 0
        assert served.nodes[1].process.wait(1) != 0
