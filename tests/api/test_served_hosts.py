"""Ranks on two hosts, by the commands that a user starts on each: what clients see, and how both end."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Callable
from pathlib import Path

import openai
import pytest
from e2e.ground.patience import SLOWNESS, scaled

from live_server import live_server
from namespaces import needs_hosts
from served_hosts import answers, begin_stream, long, served_hosts

pytestmark = [pytest.mark.slow, needs_hosts]

TinyModels = Callable[[str], Path]
SHAPES = {
    "a stage on two hosts": ("--tensor-parallel-size", "2"),
    "a stage on each host": ("--tensor-parallel-size", "2", "--pipeline-parallel-size", "2"),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_hosts_answer_what_one_rank_answers_and_end_when_told(
    shape: str, tiny_models: TinyModels, cluster_key: Path
) -> None:
    with live_server(tiny_models("llama"), *long()) as alone:
        expected = answers(alone.url)
    trust = ("--cluster-key-file", str(cluster_key))
    with served_hosts(tiny_models("llama"), *long(), *SHAPES[shape], *trust) as served:
        assert answers(served.server.url) == expected, served.said()
        assert len(served.ranks(1)) == (1 if shape == "a stage on two hosts" else 2)
        assert f"listening on {served.hosts[0].address}, port 29501: ranks report" in served.said()
        assert "may take a rank's place" not in served.said()
        served.server.process.terminate()
        assert served.server.process.wait(scaled(20)) == 0, served.said()
        served.nodes[1].process.wait(scaled(20))
        assert served.left(0) == []


@pytest.mark.parametrize("lost", ["cut off", "rank killed", "node killed"])
@pytest.mark.parametrize("shape", SHAPES)
def test_a_lost_host_ends_streams_with_its_name_and_all_processes(
    shape: str, lost: str, tiny_models: TinyModels, cluster_key: Path
) -> None:
    trust = ("--cluster-key-file", str(cluster_key))
    with served_hosts(tiny_models("llama"), *long(), *SHAPES[shape], *trust) as served:
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
        assert time.monotonic() - begun < 15 * SLOWNESS
        assert re.search(rf"Rank [0-9].* on {served.hosts[1].address} ", str(caught.value)), served.said()
        assert served.left(5) == []
        assert served.server.process.wait(scaled(1)) != 0
        assert served.nodes[1].process.wait(scaled(1)) != 0
