"""What the real runtime says of its end, or of how far it is, reaches the service's own status."""

from __future__ import annotations

import json
import os
import re
import signal
import time
import urllib.error
from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e.failing import KIND, PATIENCE, Case, Failures, explaining
from e2e.ground.node import Cluster
from e2e.images.release import Released
from e2e.operators import Object, until

HASTY = """
import sys
from slipway_operator import progress
progress.INTERVAL, progress.STALLED_SECONDS = 0.5, 12.0
from slipway_operator.main import main
sys.exit(main())
"""
"""The operator's program with less patience: what stands still for two minutes does so for twelve seconds."""
SMALL = {"cpu": "500m", "sharedMemory": "64Mi"}
SLOW = {"cpu": "100m", "memory": "2Gi", "sharedMemory": "64Mi"}
"""At which loading takes several seconds."""
MIB = 1 << 20
CACHE = [{"name": "VLLM_CPU_KVCACHE_SPACE", "value": "1"}]

CASES = {
    "model": Case(
        spec={"model": {"path": "/models/nowhere"}},
        summary="ModelNotFound: There is no folder /models/nowhere",
        advice="Check the path.",
        stalled=True,
    ),
    "network": Case(
        spec={"model": {"hub": {"id": "org/model"}}},
        summary="NoNetwork: .*",
    ),
    "argument": Case(
        spec={"engine": {"disableChunkedMmInput": True}},
        summary="NotSupported: --disable-chunked-mm-input asks for multimodal input: not supported yet",
        stalled=True,
    ),
    "length": Case(
        spec={"engine": {"maxModelLen": 200000}},
        summary="BadArguments: --max-model-len 200000 is too long: .*",
        advice="Set 8192 or less",
        stalled=True,
    ),
    "cache": Case(
        spec={"engine": {"maxModelLen": 8192, "kvCacheMemoryBytes": "16M"}, "env": []},
        summary="KvCacheTooSmall: the KV cache of .* holds .* one request of --max-model-len 8192 needs .*",
        advice="The field is spec.engine.maxModelLen.",
        stalled=True,
    ),
    "memory-limit": Case(
        spec={"resources": {**SMALL, "memory": "200Mi"}},
        summary="OutOfMemory: killed at its limit of 264Mi",
        advice="Raise spec.resources.memory",
        stalled=True,
    ),
}


@pytest.fixture(scope="module")
def failures(
    cluster: Cluster, released: Released, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Failures]:
    with explaining(cluster, tmp_path_factory.mktemp("runtime"), code=HASTY) as found:
        yield found


@pytest.fixture
def demo(released: Released) -> Object:
    """The spec of a service that would serve the demo model."""
    return {
        "model": {"image": {"reference": released.demo_model, "path": "SmolLM2-135M-Instruct.Q4_1.gguf"}},
        "runtime": {"image": released.runtime},
        "env": CACHE,
        "resources": {**SMALL, "memory": "2Gi"},
    }


@pytest.mark.parametrize("name", CASES)
def test_the_cause_in_the_termination_log_is_told_in_one_line(
    failures: Failures, demo: Object, name: str
) -> None:
    case = CASES[name]
    failures.namespace.apply(failures.service(name, **{**demo, **case.spec}))
    failures.until_status(name, case)
    failures.namespace.kubectl("delete", KIND, name)


def test_loading_is_told_in_percent_and_a_standstill_with_the_hour(failures: Failures, demo: Object) -> None:
    failures.namespace.apply(failures.service("slow", **{**demo, "resources": SLOW}))
    engine = stopped_engine(failures, "slow")
    try:
        address = until(lambda: answering(failures, "slow"), "an answer of slow", PATIENCE)
        until(lambda: loaded(failures, address) > 0 or run_on(engine), "a part of the weights", PATIENCE)
        assert loaded(failures, address) < 1
        failures.until_summary("slow", r"Loading: weights \d+ % of [\d.]+ MB")
        failures.until_summary(
            "slow", r"LoadStalled: no byte since \d\d:\d\d UTC, weights \d+ % of [\d.]+ MB"
        )
        assert failures.namespace.condition("slow", "ModelLoaded")["status"] == "False"
        message = failures.namespace.condition("slow", "Ready")["message"]
        assert "Check the network and the volume" in message
    finally:
        os.kill(engine, signal.SIGCONT)
    failures.until_summary("slow", "Serving: .*")
    failures.namespace.kubectl("delete", KIND, "slow")


def test_a_load_that_moves_is_not_late(failures: Failures, demo: Object) -> None:
    """Though the Deployment says so: its deadline knows no progress but that of whole pods."""
    failures.namespace.apply(failures.service("late", **{**demo, "rollout": {"progressDeadlineSeconds": 5}}))
    engine = stopped_engine(failures, "late")
    try:
        address = until(lambda: answering(failures, "late"), "an answer of late", PATIENCE)
        until(lambda: loaded(failures, address) > 0 or run_on(engine), "a part of the weights", PATIENCE)
        until(lambda: deadline_reason(failures, "late") == "ProgressDeadlineExceeded", "the deadline")
        failures.until_summary("late", r"Loading: weights \d+ % of [\d.]+ MB")
        first = loaded(failures, address)
        while loaded(failures, address) == first:
            run_on(engine)
            assert failures.summary("late").startswith("Loading: ")
            assert failures.namespace.condition("late", "Stalled") == {}
    finally:
        os.kill(engine, signal.SIGCONT)
    failures.until_summary("late", "Serving: .*")
    failures.namespace.kubectl("delete", KIND, "late")


def deadline_reason(failures: Failures, name: str) -> str:
    conditions = failures.namespace.the("deployment", name)["status"].get("conditions") or ()
    return next((str(one["reason"]) for one in conditions if one["type"] == "Progressing"), "")


def test_a_server_that_ends_itself_over_a_standstill_is_quoted(failures: Failures, demo: Object) -> None:
    hasty = {"engine": {"loadTimeout": 1}, "resources": SLOW}
    failures.namespace.apply(failures.service("stalled", **{**demo, **hasty}))
    stopped_engine(failures, "stalled")
    case = Case(
        summary="LoadStalled: Loading made no progress for .* s",
        advice="Check the network and the volume",
    )
    failures.until_status("stalled", case)
    failures.namespace.kubectl("delete", KIND, "stalled")


def test_what_fits_says_what_it_takes_of_its_container_s_memory(failures: Failures, demo: Object) -> None:
    failures.namespace.apply(failures.service("fits", **demo))
    until_fits(failures, "fits", "True Measured")
    told = failures.status("fits")["memory"]
    assert told["capacity"] == "2112Mi"  # the limit: what was asked for, and what is shared
    at_rest, measured, in_full = (mib(told[size]) for size in ("estimatedAtRest", "measured", "estimated"))
    assert measured == pytest.approx(at_rest, rel=0.05)
    assert in_full > at_rest
    (pod,) = failures.namespace.all("pods", "-lapp.kubernetes.io/instance=fits")
    assert told["pod"] == pod["metadata"]["name"]
    metrics = failures.cluster.fetch(f"http://{pod['status']['podIP']}:8000/metrics").decode()
    (sample,) = re.findall(r"^slipway_memory_measured_bytes{.*} (.*)$", metrics, re.MULTILINE)
    assert round(float(sample) / MIB) == measured
    failures.namespace.kubectl("delete", KIND, "fits")


def test_what_does_not_fit_says_so_though_it_serves(failures: Failures, demo: Object) -> None:
    """Memory is taken as the cache fills: the server starts, and would be ended when many requests come."""
    larger = {"env": [{"name": "VLLM_CPU_KVCACHE_SPACE", "value": "4"}]}
    failures.namespace.apply(failures.service("large", **{**demo, **larger}))
    until_fits(failures, "large", "False DoesNotFit")
    said = failures.namespace.condition("large", "Fits")["message"]
    assert "VLLM_CPU_KVCACHE_SPACE" in said
    failures.until_summary("large", "DoesNotFit: its KV cache takes more than is left for it, .*")
    assert failures.namespace.condition("large", "Ready")["status"] == "True"
    failures.namespace.kubectl("delete", KIND, "large")


def until_fits(failures: Failures, name: str, wanted: str) -> None:
    def found() -> str:
        told = failures.namespace.condition(name, "Fits")
        return f"{told.get('status')} {told.get('reason')}"

    until(lambda: found() == wanted, lambda: f"{name}: {found()} is {wanted}", PATIENCE)


def mib(quantity: str) -> int:
    return int(quantity.removesuffix("Mi"))


def answering(failures: Failures, name: str) -> str | None:
    """Where the server of the service's only pod says how far it is; None while nothing listens there."""
    (pod,) = failures.namespace.all("pods", f"-lapp.kubernetes.io/instance={name}")
    url = f"http://{pod['status']['podIP']}:8000/ready"
    try:
        loaded(failures, url)
    except OSError:
        return None
    return url


def loaded(failures: Failures, url: str) -> float:
    """The share of the weights that a server says it has read. Raises OSError when none listens there."""
    try:
        failures.cluster.fetch(url)
    except urllib.error.HTTPError as answer:
        told = json.load(answer)
        if told["phase"] == "warmup":
            return 1.0
        return told["done"] / told["total"] if told["phase"] == "load" and told["total"] else 0.0
    return 1.0


def run_on(engine: int) -> None:
    """Let a stopped engine run for a moment that is short beside its loading, however busy the machine is."""
    os.kill(engine, signal.SIGCONT)
    time.sleep(0.2)
    os.kill(engine, signal.SIGSTOP)


def stopped_engine(failures: Failures, name: str) -> int:
    """The process id, as this machine counts, of the engine in the service's only pod; it runs no more."""
    engine: int = until(lambda: engine_of(failures, name), f"the engine of {name}", PATIENCE)
    os.kill(engine, signal.SIGSTOP)
    return engine


def engine_of(failures: Failures, name: str) -> int:
    """0 while it has not been started."""
    for pod in failures.namespace.all("pods", f"-lapp.kubernetes.io/instance={name}"):
        for status in pod["status"].get("containerStatuses", ()):
            container = status.get("containerID", "").removeprefix("containerd://")
            for folder in Path("/proc").iterdir() if container else ():
                if folder.name.isdecimal() and _is_engine(folder, container):
                    return int(folder.name)
    return 0


def _is_engine(folder: Path, container: str) -> bool:
    try:
        words = (folder / "cmdline").read_bytes().split(b"\0")
        return b"slipway.engine" in words and container in (folder / "cgroup").read_text()
    except OSError:  # it has ended
        return False
