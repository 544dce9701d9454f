"""A server that has had nothing to do for long computes a step before probes believe in it."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from live_server import live_server
from slipway.api.idle_check import PATIENCE, IdleCheck
from slipway.engine.messages import Failed
from slipway.engine.stream import EngineDead


class Engine:
    """Idle for as long as a test says, with steps that come when it says so."""

    def __init__(self) -> None:
        self.now = 0.0
        self.idle_seconds = 0.0
        self.num_asked = 0
        self.step: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def compute_one(self) -> None:
        self.num_asked += 1
        await self.step

    def checked(self, interval: float) -> IdleCheck:
        return IdleCheck(self, interval, clock=lambda: self.now)  # type: ignore[arg-type]


async def test_a_step_is_asked_for_where_the_last_was_long_ago_and_once_at_a_time() -> None:
    engine = Engine()
    check = engine.checked(interval=30)
    for idle, asked in ((0, 0), (30, 0), (30.1, 1), (40, 1)):
        engine.idle_seconds = idle
        check.look()
        await asyncio.sleep(0)
        assert engine.num_asked == asked
    engine.step.set_result(None)
    await check.wait()
    check.look()
    await check.wait()
    assert engine.num_asked == 2


async def test_a_step_that_does_not_come_is_overdue_until_it_does() -> None:
    engine = Engine()
    check = engine.checked(interval=30)
    engine.idle_seconds = 31
    check.look()
    engine.now = PATIENCE
    assert not check.overdue
    engine.now = PATIENCE + 0.1
    assert check.overdue
    engine.step.set_result(None)
    await check.wait()
    assert not check.overdue


async def test_slow_steps_come_as_much_less_often() -> None:
    engine = Engine()
    check = engine.checked(interval=30)
    engine.idle_seconds = 31
    check.look()
    engine.now = 0.2
    engine.step.set_result(None)
    await check.wait()
    for idle, asked in ((199, 1), (201, 2)):
        engine.idle_seconds = idle
        check.look()
        await check.wait()
        assert engine.num_asked == asked


async def test_none_is_asked_for_at_an_interval_of_zero_nor_of_an_engine_that_died() -> None:
    engine = Engine()
    engine.idle_seconds = 1e6
    never = engine.checked(interval=0)
    never.look()
    await never.wait()
    assert engine.num_asked == 0
    check = engine.checked(interval=1)
    check.look()
    await asyncio.sleep(0)
    engine.step.set_exception(EngineDead(Failed(1, "Died", "it died")))
    await check.wait()


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments", [(), ("--task", "embed"), ("--tensor-parallel-size", "2"), ("--data-parallel-size", "2")]
)
def test_a_server_whose_engine_hangs_is_not_ready_and_is_again_when_it_goes_on(
    tiny_models: Callable[[str], Path], arguments: tuple[str, ...]
) -> None:
    every_second = ("--idle-check-interval", "1", "--max-model-len", "256", *arguments)
    with live_server(tiny_models("llama"), *every_second) as server:
        before = server.metrics()
        engine = server.engine_pid()
        os.kill(engine, signal.SIGSTOP)
        said = server.wait_until("/ready", 503)
        assert json.loads(said)["phase"] == "stalled"
        assert server.get("/live")[0] == 200
        os.kill(engine, signal.SIGCONT)
        server.wait_until("/ready", 200)
        server.wait_until_said("A step of one token took")
        counted = {
            "vllm:prompt_tokens_total",
            "vllm:generation_tokens_total",
            "vllm:prefix_cache_queries_total",
        }
        after = server.metrics()
        assert {name: after[name] for name in counted} == {name: before[name] for name in counted}
        assert after["vllm:iteration_tokens_total_count"] == before["vllm:iteration_tokens_total_count"]
