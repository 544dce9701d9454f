"""A server whose engine has several ranks: what clients and the termination log see when one is lost."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import openai
import pytest
from e2e.ground.patience import scaled

from live_server import LiveServer, live_server
from process_tree import children

pytestmark = pytest.mark.slow

TinyModels = Callable[[str], Path]
LONG = 30_000
"""Tokens: a stream of so many is not over before a signal arrives, on a busy machine either."""
CONTEXT = 32_768
RANKS = (
    *("--dtype", "float32", "--max-model-len", str(CONTEXT)),
    *("--hf-overrides", json.dumps({"max_position_embeddings": CONTEXT})),
)


def processes(server: LiveServer) -> tuple[int, int]:
    """The engine's, which is its first rank, and the other rank's."""
    engine = server.engine_pid()
    (rank,) = children(engine)
    return engine, rank


def gone(pids: tuple[int, ...], within: float) -> bool:
    end = time.monotonic() + scaled(within)
    while any(Path(f"/proc/{pid}").exists() for pid in pids):
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True


@pytest.mark.parametrize("lost", ["other killed", "other stopped", "first stopped", "first killed"])
@pytest.mark.parametrize("parallel", ["tensor", "pipeline"])
def test_a_lost_rank_ends_streams_with_an_error_and_all_processes(
    lost: str, parallel: str, tiny_models: TinyModels, tmp_path: Path
) -> None:
    which, how = lost.split()
    log = tmp_path / "termination"
    ranks = (*RANKS, f"--{parallel}-parallel-size", "2")
    with live_server(tiny_models("llama"), *ranks, env={"SLIPWAY_TERMINATION_LOG": str(log)}) as server:
        engine, rank = processes(server)
        client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)
        stream = client.completions.create(
            model=client.models.list().data[0].id,
            prompt=[5, 6, 7],
            max_tokens=LONG,
            stream=True,
            extra_body={"ignore_eos": True},
        )
        next(iter(stream))
        os.kill(rank if which == "other" else engine, signal.SIGKILL if how == "killed" else signal.SIGSTOP)
        with pytest.raises(openai.APIError) as caught:
            for _ in stream:
                pass
        name = f"Rank 1 (process {rank})" if which == "other" else f"process {engine}"
        assert gone((engine, rank), 5)
        server.process.wait(scaled(5))
    said = "".join(server.lines)
    if lost != "first killed":
        assert name in str(caught.value), said
        assert name in said
    assert server.process.returncode != 0
