"""What a loading server answers at /ready, asked by real HTTP."""

from __future__ import annotations

import asyncio
import datetime
import json
import ssl
import subprocess
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from as_printed import NOW, Object, deployment, kept, pod, ready_pod, replica_set, resource, running
from e2e.ground.patience import SLOWNESS
from explaining import pods_summary

from slipway.service import Facts, from_mapping
from slipway.service.pod import pod_template
from slipway_operator import progress
from slipway_operator.memory import Memory
from slipway_operator.progress import Loading, Progress, Said, asked, loads, parsed, ready_url
from slipway_operator.status import Observed, status

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
LATER = datetime.timedelta(seconds=progress.STALLED_SECONDS)
MUCH_LATER = datetime.timedelta(seconds=progress.LONG_STEP_SECONDS)


class Runtime:
    """A server that says how far it is, and remembers what it was asked."""

    def __init__(self) -> None:
        self.body: object = {"phase": "load", "done": 405, "total": 900}
        self.status = 503
        self.heard: list[web.Request] = []

    async def answer(self, request: web.Request) -> web.Response:
        self.heard.append(request)
        return web.Response(status=self.status, text=json.dumps(self.body))


@pytest.fixture
async def runtime() -> AsyncIterator[tuple[Runtime, int]]:
    told = Runtime()
    application = web.Application()
    application.router.add_get("/ready", told.answer)
    async with TestServer(application, host="127.0.0.1") as server:
        yield told, int(server.port or 0)


def loading_pod(port: int = 8000, scheme: str = "HTTP", host: str = "127.0.0.1") -> Object:
    one = pod(containers=[running()])
    template = pod_template(from_mapping(resource()), Facts())
    server = template["spec"]["containers"][0]
    server["ports"][0]["containerPort"] = port
    server["readinessProbe"]["httpGet"]["scheme"] = scheme
    one["spec"]["containers"] = [server]
    one["status"]["podIP"] = host
    return kept(one)


async def settled(loading: Loading) -> None:
    await asyncio.gather(*(look.task for look in loading.looks.values() if look.task))


async def test_a_pod_that_loads_is_asked_what_its_readiness_probe_asks(runtime):
    told, port = runtime
    loading, one = Loading(), loading_pod(port)
    known, again = loading.of([one], NOW)
    assert known == {}  # the reconciliation did not wait for the answer
    assert again == pytest.approx(progress.INTERVAL, abs=0.5)
    await settled(loading)
    assert loading.of([one], NOW)[0] == {"demo-5d4f2-abcde": Said(Progress("load", 405, 900), None)}
    assert len(told.heard) == 1  # and not again before its time
    assert "Authorization" not in told.heard[0].headers


async def test_the_status_says_how_far_the_server_is(runtime):
    _, port = runtime
    loading, one = Loading(), loading_pod(port)
    loading.of([one], NOW)
    await settled(loading)
    document = resource()
    observed = Observed(
        resource=document,
        deployment=deployment(),
        replica_sets=[replica_set(2)],
        pods=[one],
        progress={pod: said.progress for pod, said in loading.of([one], NOW)[0].items() if said.progress},
        now=NOW,
    )
    assert status(observed, from_mapping(document))["summary"] == "Loading: weights 45 %"


async def test_what_stands_still_is_known_by_when_it_last_moved(runtime):
    told, port = runtime
    loading, one = Loading(), loading_pod(port)
    loading.of([one], NOW)
    await settled(loading)
    (look,) = loading.looks.values()
    moved = look.moved_at
    assert moved is not None
    look.said_at = moved + LATER
    (still,) = loading.of([one], moved + LATER)[0].values()
    assert still.progress == Progress("load", 405, 900, moved)
    look.again_at = 0.0
    told.body = {"phase": "load", "done": 406, "total": 900}
    loading.of([one], moved + LATER)
    await settled(loading)
    (moving,) = loading.of([one], moved + LATER)[0].values()
    assert moving.progress == Progress("load", 406, 900)


@pytest.mark.parametrize(("phase", "done", "total"), [("warmup", 0, 1), ("load", 7, 7), ("load", 0, 0)])
async def test_one_long_step_is_a_standstill_only_after_long(runtime, phase, done, total):
    told, port = runtime
    told.body = {"phase": phase, "done": done, "total": total}
    loading, one = Loading(), loading_pod(port)
    loading.of([one], NOW)
    await settled(loading)
    (look,) = loading.looks.values()
    moved = look.moved_at
    assert moved is not None
    look.said_at = moved + 10 * LATER
    (known,) = loading.of([one], moved + 10 * LATER)[0].values()
    assert known.progress == Progress(phase, done, total)
    assert known.progress.moves
    look.said_at = moved + MUCH_LATER
    (known,) = loading.of([one], moved + MUCH_LATER)[0].values()
    assert known.progress == Progress(phase, done, total, moved)
    assert not known.progress.moves
    assert "unchanged since" in pods_summary_of(one, known.progress)


def pods_summary_of(one: Object, known: Progress) -> str:
    found = pods_summary([one], [], [replica_set(2)], deployment(), (), {one["metadata"]["name"]: known})
    assert found is not None
    assert found.reason.name == "Loading"
    return found.message


async def test_a_server_that_nobody_has_asked_for_long_does_not_stand_still(runtime):
    """The operator was away, or without the Lease: what it knew says nothing of now."""
    told, port = runtime
    loading, one = Loading(), loading_pod(port)
    loading.of([one], NOW)
    await settled(loading)
    (look,) = loading.looks.values()
    assert look.said_at is not None
    now = look.said_at + LATER
    look.again_at = 0.0
    told.body = {"phase": "load", "done": 800, "total": 900}
    assert loading.of([one], now)[0] == {}
    assert loading.awaited([one], now) == {"demo-5d4f2-abcde"}
    await settled(loading)
    assert loading.of([one], NOW)[0]["demo-5d4f2-abcde"].progress == Progress("load", 800, 900)


async def test_of_a_server_that_answers_no_more_nothing_is_known(runtime, unused_tcp_port):
    _, port = runtime
    loading, one = Loading(), loading_pod(port)
    loading.of([one], NOW)
    await settled(loading)
    (look,) = loading.looks.values()
    assert look.said_at is not None
    gone = {**one, "spec": loading_pod(unused_tcp_port)["spec"]}
    for seconds in (10, 60, 119):
        look.again_at = 0.0
        (known,) = loading.of([gone], look.said_at + datetime.timedelta(seconds=seconds))[0].values()
        assert known.progress == Progress("load", 405, 900), "a question or two may be lost"
        await settled(loading)
    now = look.said_at + LATER
    assert loading.of([gone], now)[0] == {}
    assert loading.awaited([gone], now) == set()


@pytest.mark.parametrize("phase", ["draining", "asleep", "stalled"])
async def test_a_server_that_does_not_load_does_not_come_nearer(phase):
    assert not Progress(phase, 0, 0).moves


async def test_a_first_answer_is_awaited_until_it_or_its_failure_is_there(runtime, unused_tcp_port):
    _, port = runtime
    for address in (port, unused_tcp_port):
        loading, one = Loading(), loading_pod(address)
        assert loading.awaited([one], NOW) == set()
        loading.of([one], NOW)
        assert loading.awaited([one], NOW) == {"demo-5d4f2-abcde"}
        await settled(loading)
        assert loading.awaited([one], NOW) == set()


async def test_a_pod_is_asked_one_question_at_a_time_however_long_it_waits_for_its_turn(monkeypatch):
    """Pods that nobody reaches hold the room: what is due meanwhile would pile up without an end."""
    answer = asyncio.Event()
    asking: list[str] = []

    async def nobody(address: str) -> Said:
        asking.append(address)
        await answer.wait()
        raise TimeoutError

    monkeypatch.setattr(progress, "asked", nobody)
    loading = Loading()
    pods = [
        {**loading_pod(), "metadata": {"name": f"demo-{number}", "uid": f"uid-{number}"}}
        for number in range(3 * progress.AT_ONCE)
    ]
    for _ in range(5):
        waits = [loading.of([one], NOW)[1] for one in pods]
        await asyncio.sleep(0)
        for look in loading.looks.values():
            look.again_at = 0.0
    assert len(asking) == progress.AT_ONCE
    assert len({look.task for look in loading.looks.values()}) == len(pods)
    assert len(asyncio.all_tasks()) == len(pods) + 1
    assert min(wait or 0 for wait in waits) >= progress.INTERVAL + 3 * progress.PATIENCE
    answer.set()
    await settled(loading)
    assert len(asking) == len(pods)
    assert loading.of(pods, NOW)[1] == pytest.approx(progress.INTERVAL, abs=0.5)


async def test_a_pod_that_does_not_answer_is_asked_less_and_less(unused_tcp_port):
    loading, one = Loading(), loading_pod(unused_tcp_port)
    intervals = []
    for _ in range(6):
        begun = time.monotonic()
        loading.of([one], NOW)
        await settled(loading)
        (look,) = loading.looks.values()
        intervals.append(look.again_at - begun)
        look.again_at = 0.0
    assert intervals == pytest.approx([5, 10, 20, 40, 60, 60], abs=0.5)
    assert loading.of([one], NOW)[0] == {}


async def test_a_pod_that_does_not_answer_for_days_is_asked_once_a_minute(unused_tcp_port):
    loading, one = Loading(), loading_pod(unused_tcp_port)
    loading.of([one], NOW)
    await settled(loading)
    (look,) = loading.looks.values()
    for _ in range(3 * 24 * 60):
        look.begin()
        look.miss()
    assert look.wait == pytest.approx(60, abs=0.5)


async def test_an_answer_after_many_misses_is_read_as_soon_as_any(runtime, unused_tcp_port):
    _, port = runtime
    loading, one = Loading(), loading_pod(unused_tcp_port)
    for _ in range(4):
        await said_by(loading, one)
    one = {**one, "spec": loading_pod(port)["spec"]}
    assert await said_by(loading, one) is not None
    assert loading.of([one], NOW)[1] == pytest.approx(progress.INTERVAL, abs=0.5)


async def test_a_server_that_came_up_late_is_asked_at_once_when_its_pod_is_ready(runtime, unused_tcp_port):
    """Python takes long to start where processors are busy: until then every question is refused."""
    told, port = runtime
    told.status, told.body = 200, {"phase": "ready", "done": 0, "total": 0, "memory": MEMORY}
    loading, one = Loading(), loading_pod(unused_tcp_port)
    for _ in range(4):
        await said_by(loading, one)
    ready = as_ready({**one, "spec": loading_pod(port)["spec"]})
    _, again = loading.of([ready], NOW, ready)
    assert again == pytest.approx(progress.INTERVAL, abs=0.5)
    await settled(loading)
    assert len(told.heard) == 1
    known, again = loading.of([ready], NOW, ready)
    assert known["demo-5d4f2-abcde"].memory == Memory(900, 500, 400, 0, 64, 64, "")
    assert again == pytest.approx(progress.INTERVAL, abs=0.5)  # it measures by then


async def test_silence_holds_up_nobody(monkeypatch):
    """An address that swallows packets, as behind a NetworkPolicy: nothing answers, nothing refuses."""

    async def silent(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(3600)

    monkeypatch.setattr(progress, "PATIENCE", 0.2)
    server = await asyncio.start_server(silent, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    loading = Loading()
    begun = time.monotonic()
    known, again = loading.of([loading_pod(port)], NOW)
    assert time.monotonic() - begun < 0.5 * SLOWNESS
    assert known == {}
    assert again is not None
    begun = time.monotonic()
    await settled(loading)
    assert time.monotonic() - begun < progress.PATIENCE + SLOWNESS
    server.close()


async def test_nobody_is_asked_once_all_are_ready_or_gone(runtime):
    told, port = runtime
    going = loading_pod(port)
    going["metadata"]["deletionTimestamp"] = "2026-08-22T11:30:00Z"
    assert Loading().of([ready_pod(), going, pod(node=None)], NOW) == ({}, None)
    loading, one = Loading(), loading_pod(port)
    loading.of([one], NOW)
    await settled(loading)
    told.status = 200
    (look,) = loading.looks.values()
    look.again_at = 0.0
    loading.of([one], NOW)
    await settled(loading)
    (said,) = loading.of([one], NOW)[0].values()
    assert said.progress is None
    ready = {**ready_pod(), "metadata": one["metadata"]}
    assert loading.of([ready], NOW) == ({}, None)
    assert loading.looks == {}


MEMORY = {"capacity": 900, "estimated": 500, "at_rest": 400, "kv_tokens": 64, "max_model_len": 64}


def as_ready(one: Object) -> Object:
    """The same pod, once it admits requests."""
    return {**one, "status": {**one["status"], "conditions": ready_pod()["status"]["conditions"]}}


async def said_by(loading: Loading, one: Object, measures: Object | None = None) -> Said | None:
    """The answer to a question that is due now."""
    for look in loading.looks.values():
        look.again_at = 0.0
    loading.of([one], NOW, measures)
    await settled(loading)
    return loading.of([one], NOW, measures)[0].get(one["metadata"]["name"])


async def test_a_server_tells_what_it_takes_while_it_loads_and_what_it_measured_once_it_is_ready(runtime):
    told, port = runtime
    loading, one = Loading(), loading_pod(port)
    told.body = {"phase": "load", "done": 405, "total": 900, "memory": MEMORY}
    said = await said_by(loading, one)
    assert said == Said(Progress("load", 405, 900), Memory(900, 500, 400, 0, 64, 64, ""))
    ready = as_ready(one)
    told.status, told.body = 200, {"phase": "ready", "done": 0, "total": 0, "memory": MEMORY}
    said = await said_by(loading, ready, ready)
    assert said is not None
    assert said.memory is not None
    assert said.memory.measured == 0
    assert loading.of([ready], NOW, ready)[1] is not None  # and it is asked again
    told.body = {**told.body, "memory": {**MEMORY, "measured": 450}}
    said = await said_by(loading, ready, ready)
    assert said is not None
    assert said.memory == Memory(900, 500, 400, 450, 64, 64, "")
    heard = len(told.heard)
    await said_by(loading, ready, ready)
    assert len(told.heard) == heard
    assert loading.of([ready], NOW, ready)[1] is None


@pytest.mark.parametrize("body", ["", "{}", '{"status": "ok"}', "<html>", '{"memory": "all of it"}'])
async def test_a_ready_server_that_knows_nothing_of_memory_is_asked_once(runtime, body, monkeypatch):
    told, port = runtime
    monkeypatch.setattr(json, "dumps", lambda _: body)
    told.status = 200
    ready = as_ready(loading_pod(port))
    loading = Loading()
    assert await said_by(loading, ready, ready) == Said(None, None)
    assert await said_by(loading, ready, ready) == Said(None, None)
    assert len(told.heard) == 1


async def test_a_ready_server_that_never_measures_is_given_up(runtime):
    """Under a kernel that does not say what a process takes."""
    told, port = runtime
    told.status, told.body = 200, {"memory": MEMORY}
    ready = as_ready(loading_pod(port))
    loading = Loading()
    for _ in range(5):
        said = await said_by(loading, ready, ready)
        assert said is not None
        assert said.memory == Memory(900, 500, 400, 0, 64, 64, "")
    assert len(told.heard) == 4
    assert loading.of([ready], NOW, ready)[1] is None


async def test_a_ready_server_that_nobody_reaches_is_given_up(unused_tcp_port):
    ready = as_ready(loading_pod(unused_tcp_port))
    loading = Loading()
    waits = []
    for _ in range(5):
        assert await said_by(loading, ready, ready) is None
        waits.append(loading.of([ready], NOW, ready)[1])
    assert [wait is None for wait in waits] == [False, False, False, True, True]


async def test_a_service_with_tls_is_asked_without_trust_in_its_name(runtime, tmp_path: Path):
    told, _ = runtime
    key, certificate = tmp_path / "key.pem", tmp_path / "cert.pem"
    words = "openssl req -x509 -newkey rsa:2048 -nodes -days 1 -subj /CN=demo.models.svc"
    subprocess.run([*words.split(), "-keyout", key, "-out", certificate], check=True, capture_output=True)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate, key)
    application = web.Application()
    application.router.add_get("/ready", told.answer)
    runner = web.AppRunner(application)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context)
    await site.start()
    port = runner.addresses[0][1]
    address = ready_url(loading_pod(port, scheme="HTTPS"))
    assert address == f"https://127.0.0.1:{port}/ready"
    assert await asked(address) == Said(Progress("load", 405, 900), None)
    await runner.cleanup()


async def test_a_redirect_leads_nowhere(runtime):
    told, port = runtime
    elsewhere = web.Application()

    async def away(_: web.Request) -> web.Response:
        raise web.HTTPTemporaryRedirect(f"http://127.0.0.1:{port}/ready")

    elsewhere.router.add_get("/ready", away)
    async with TestServer(elsewhere, host="127.0.0.1") as server:
        with pytest.raises(ValueError, match=r".*"):
            await asked(str(server.make_url("/ready")))
    assert told.heard == []


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"<html>",
        b'{"phase": "load", "done": "9", "total": 9}',
        b'{"phase": "load", "done": -1, "total": 9}',
        b'{"phase": "load", "done": 1.5, "total": 9}',
        b'{"phase": "pay 1 coin to the address", "done": 1, "total": 9}',
        b'{"phase": {}, "done": 1, "total": 9}',
        b'{"phase": "load", "done": 1, "total": 1e400}',
        b'{"phase": "load", "done": 1, "total": 9, "memory": 7}',
        b'{"phase": "load", "done": 1, "total": 9, "memory": {"capacity": 1}}',
    ],
)
def test_nothing_but_phases_and_counts_gets_into_a_status(body):
    with pytest.raises(ValueError, match=r".*"):
        parsed(body)


def test_the_address_is_that_of_the_pod_s_own_probe():
    assert ready_url(loading_pod(host="fd00::7")) == "http://[fd00::7]:8000/ready"
    foreign = loading_pod()
    foreign["spec"]["containers"][0]["readinessProbe"]["httpGet"]["port"] = 9000
    assert ready_url(foreign) == "http://127.0.0.1:9000/ready"
    del foreign["spec"]["containers"][0]["readinessProbe"]
    assert ready_url(foreign) is None
    assert loads(loading_pod())
    assert not loads(ready_pod())
