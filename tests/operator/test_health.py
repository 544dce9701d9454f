"""The health server of the operator: /healthz, /readyz and /metrics."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import httpx
import pytest
from e2e.ground.patience import scaled

from slipway_operator.health import HealthServer, Metrics, Vitals, sick, unready

WELL = Vitals(
    synced=True,
    active=True,
    watching=True,
    begun=True,
    queue_depth=0,
    running_for=1e5,
    queue_age=0.0,
    watch_age=30.0,
    answer_age=1.0,
    outage_age=1e6,
    resources=1,
)


@pytest.mark.parametrize(
    ("change", "dead", "absent"),
    [
        ({}, False, False),
        ({"active": False}, False, False),
        ({"synced": False}, False, True),
        ({"begun": False}, False, True),
        ({"queue_age": 301.0}, True, False),
        ({"watch_age": 301.0}, True, False),
        ({"watching": False}, True, False),
        ({"answer_age": 100.0, "queue_age": 900.0, "watch_age": 900.0}, False, True),
        ({"outage_age": 10.0, "queue_age": 900.0, "watch_age": 900.0}, False, False),
        ({"answer_age": 901.0}, True, True),
        ({"answer_age": 1e6, "running_for": 800.0}, False, True),
    ],
)
def test_a_stuck_operator_is_restarted_and_one_without_an_api_server_is_only_not_ready(
    change: dict[str, Any], dead: bool, absent: bool
) -> None:
    vitals = replace(WELL, **change)
    assert (sick(vitals) is not None, unready(vitals) is not None) == (dead, absent)


@asynccontextmanager
async def listening(vitals: Vitals) -> AsyncIterator[httpx.AsyncClient]:
    server = HealthServer(0, lambda: vitals, Metrics(lambda: vitals))
    await server.start()
    try:
        where = f"http://127.0.0.1:{server.port}"
        async with httpx.AsyncClient(base_url=where, timeout=scaled(30)) as client:
            yield client
    finally:
        await server.stop()


async def test_each_path_answers_from_the_vitals() -> None:
    vitals = replace(WELL, synced=False, resources=7)
    async with listening(vitals) as client:
        lives, ready, metrics = [await client.get(path) for path in ("/healthz", "/readyz", "/metrics")]
        assert (lives.status_code, lives.text) == (200, "ok\n")
        assert (ready.status_code, ready.text) == (503, f"{unready(vitals)}\n")
        assert (metrics.status_code, metrics.headers["content-type"][:10]) == (200, "text/plain")
        assert "slipway_operator_resources 7.0\n" in metrics.text
        assert (await client.get("/other")).status_code == 404


async def test_a_fault_that_a_restart_mends_fails_only_the_liveness_probe() -> None:
    vitals = replace(WELL, queue_age=301.0)
    async with listening(vitals) as client:
        lives, ready = await client.get("/healthz"), await client.get("/readyz")
        assert (lives.status_code, lives.text) == (503, f"{sick(vitals)}\n")
        assert (ready.status_code, ready.text) == (200, "ok\n")
