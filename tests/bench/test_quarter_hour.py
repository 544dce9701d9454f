"""bench/gpu/quarter_hour.sh: its plan, and what a stage that overruns, crashes or is killed leaves behind."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from e2e.ground.patience import scaled
from quarter_hour import PLANS, QUARTER_HOUR, START
from table import read
from targets import BASE, Row, compared
from timed import Group, Plan

ROOT = Path(__file__).parents[2]
GPU = ROOT / "bench" / "gpu"
STAGE = """
import os, sys, threading
from pathlib import Path
from stage import run

def adds(rows):
    rows.add(what="measured")
    return True

def raises(rows):
    raise ValueError("no such form")

def blocks(rows):
    rows.add(what="begun")
    Path(os.environ["FIFO"]).write_text(str(os.getpid()))
    threading.Event().wait()

parts = dict.fromkeys(("fp8:start", "fp8:decode", "fp8:switches", "bf16:decode", "more"), adds)
parts |= {"awq:start": raises, "int4:start": blocks, "wrong": lambda rows: False}
sys.exit(run("engine", parts, ""))
"""
ENVIRONMENT = os.environ | {"PYTHONPATH": os.pathsep.join([str(GPU), str(GPU.parent), *sys.path])}


@pytest.fixture
def stage(tmp_path: Path) -> Path:
    script = tmp_path / "stage_of_stubs.py"
    script.write_text(STAGE)
    return script


def begun(plan: Plan, out: Path, **variables: str) -> subprocess.Popen[str]:
    groups = ", ".join(
        f"Group({one.name!r}, Path({str(one.script)!r}), {dict(one.limits)!r}, {one.optional})"
        for one in plan.groups
    )
    program = (
        "from pathlib import Path\nfrom timed import Group, Plan, carry_out\n"
        f"print(carry_out(Plan([{groups}], {plan.seconds}), Path({str(out)!r})))"
    )
    words = [sys.executable, "-c", program]
    return subprocess.Popen(words, env=ENVIRONMENT | variables, stdout=subprocess.PIPE, text=True)


def carried_out(stage: Path, *limits: Mapping[str, float], **variables: str) -> list[Row]:
    out = stage.parent
    groups = [Group(f"group {number}", stage, one) for number, one in enumerate(limits)]
    process = begun(Plan(groups, 10_000), out, **variables)
    process.communicate(timeout=scaled(60))
    assert process.returncode == 0
    return read(out / "rows.jsonl")


MEASURED = {"stage": "engine", "what": "measured"}


def test_both_calls_and_their_starts_fit_into_a_quarter_of_an_hour() -> None:
    assert sum(START + plan.seconds for plan in PLANS.values()) <= QUARTER_HOUR
    for plan in PLANS.values():
        assert sum(group.seconds for group in plan.groups if not group.optional) <= plan.seconds < 600
        assert all(group.script.exists() for group in plan.groups)


def test_a_plan_whose_limits_exceed_its_time_is_refused(stage: Path) -> None:
    with pytest.raises(ValueError, match=r"the limits add up to 12 s, and the plan has 10 s"):
        Plan([Group("engine", stage, {"fp8:start": 5, "fp8:decode": 7})], 10)


@pytest.mark.slow
def test_every_part_of_the_plan_is_one_of_its_script() -> None:
    modules = sorted({group.script.stem for plan in PLANS.values() for group in plan.groups} - {"serving"})
    program = f"import json, {', '.join(modules)}; print(json.dumps({{m.__name__: [*m.parts()] for m in "
    program += f"[{', '.join(modules)}]}}))"
    words = [sys.executable, "-c", program]
    done = subprocess.run(
        words, env=ENVIRONMENT, capture_output=True, text=True, timeout=scaled(60), check=False
    )
    assert done.returncode == 0, done.stderr
    known = json.loads(done.stdout.splitlines()[-1]) | {"serving": ["serve"]}
    for plan in PLANS.values():
        for group in plan.groups:
            assert set(group.limits) <= set(known[group.script.stem])


def test_parts_of_a_form_whose_process_aborts_are_skipped_and_others_go_on(stage: Path) -> None:
    rows = carried_out(
        stage,
        {"fp8:start": 60, "fp8:decode": 60, "fp8:switches": 60, "bf16:decode": 60},
        {"fp8:switches": 60, "bf16:decode": 60},
        REHEARSE_FAULT="fp8:decode=abort",
    )
    why = "fp8:decode failed: status -6"
    assert rows == [
        MEASURED,
        {"stage": "group 0", "part": "fp8:decode", "failed": "status -6"},
        {"stage": "group 0", "part": "fp8:switches", "skipped": why},
        MEASURED,
        {"stage": "group 1", "part": "fp8:switches", "skipped": why},
        MEASURED,
    ]
    (kept,) = map(json.loads, (stage.parent / "failed.jsonl").read_text().splitlines())
    assert kept["repeat"].endswith("--here fp8:start fp8:decode")
    assert kept["environment"]["PYTHONPATH"] == ENVIRONMENT["PYTHONPATH"]


def test_a_part_that_exceeds_its_limit_is_ended_and_others_go_on(stage: Path) -> None:
    limits = {"fp8:start": 1.0, "fp8:decode": 60, "bf16:decode": 60}
    rows = carried_out(stage, limits, REHEARSE_FAULT="fp8:start=hang")
    fault = "ended after 1 s"
    assert rows == [
        {"stage": "group 0", "part": "fp8:start", "failed": fault},
        {"stage": "group 0", "part": "fp8:decode", "skipped": f"fp8:start failed: {fault}"},
        MEASURED,
    ]


def test_a_part_that_raises_keeps_the_end_of_its_log_and_a_wrong_result_skips_nothing(stage: Path) -> None:
    rows = carried_out(stage, {"awq:start": 60, "wrong": 60, "more": 60})
    assert {row.get("failed") for row in rows} == {"status 1", "not as it must be", None}
    assert MEASURED in rows
    first, second = map(json.loads, (stage.parent / "failed.jsonl").read_text().splitlines())
    assert "ValueError: no such form" in first["log"]
    assert second["part"] == "wrong"


def test_an_optional_group_runs_only_where_its_limits_are_left(stage: Path) -> None:
    groups = [Group("long", stage, {"more": 600}, optional=True), Group("short", stage, {"more": 60})]
    process = begun(Plan(groups, 100), stage.parent)
    process.communicate(timeout=scaled(60))
    skipped, measured = read(stage.parent / "rows.jsonl")
    assert skipped == {"stage": "long", "skipped": "100 s are left of 100, and it may take 600"}
    assert measured == MEASURED


def test_a_call_that_is_killed_keeps_its_rows_and_leaves_no_process(stage: Path) -> None:
    fifo = stage.parent / "fifo"
    os.mkfifo(fifo)
    limits = {"bf16:decode": 600, "int4:start": 600, "more": 600}
    process = begun(Plan([Group("group", stage, limits)], 2000), stage.parent, FIFO=str(fifo))
    part = os.pidfd_open(int(fifo.read_text()))  # which is written when the second part has begun
    os.kill(process.pid, signal.SIGKILL)
    process.communicate(timeout=scaled(60))
    assert select.select([part], [], [], scaled(60))[0] == [part]
    os.close(part)
    assert read(stage.parent / "rows.jsonl") == [MEASURED, {"stage": "engine", "what": "begun"}]


def test_targets_scale_with_what_another_device_reaches() -> None:
    ready: Row = {"stage": "http", "model": "llama-8b", "what": "ready", "seconds": 9.0}
    rate: Row = {"stage": "engine", "model": "llama-8b", "what": "1000/1000", "tok_s": 8400.0}
    h200: list[Row] = [{"device": "NVIDIA H200"}, {"ceiling_read_TB_s": 4.2}]
    h100: list[Row] = [
        {"device": "NVIDIA H100 80GB HBM3"},
        {"ceiling_read_TB_s": BASE["ceiling_read_TB_s"] * 0.75},
    ]
    assert compared(rate, h200) == {"target": "tok/s ≥ 11000", "met": False}
    assert compared(rate, h100) == {"target": "tok/s ≥ 8250", "met": True}
    assert compared(ready, h100) == compared(ready, h200) == {"target": "seconds ≤ 10", "met": True}


@pytest.mark.slow
def test_a_rehearsal_says_what_was_compiled_and_writes_no_time(tmp_path: Path) -> None:
    words = [str(GPU / "quarter_hour.sh"), "1", "compile"]
    variables = {"OUT": str(tmp_path), "PYTHON": sys.executable, "SLIPWAY_KERNELS": str(tmp_path / "none")}
    done = subprocess.run(
        words, env=ENVIRONMENT | variables, capture_output=True, text=True, timeout=scaled(120), check=False
    )
    assert done.returncode == 0, done.stderr
    machine, carried, needed = read(tmp_path / "rows.jsonl")
    assert "device" in machine
    assert (carried["carried"], carried["seconds"]) == (0, None)
    assert needed["needed"] > 40
    assert needed["seconds"] is None
    files = {path.name for path in tmp_path.iterdir()}
    assert files == {"rows.jsonl", "report.md", "log.txt"}
