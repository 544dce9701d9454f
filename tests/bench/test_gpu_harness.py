"""bench/gpu: what its tables and processes do, without a GPU."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from answers import Said, decode_rate, unlike
from checkpoints import write_awq, write_plain
from e2e.ground.patience import scaled
from figures import timed
from report import report
from shapes import written
from table import Rows, markdown, read
from targets import PEERS, READ_FLUSH, SUMS_ALIKE, TARGETS, Row, compared

from slipway.engine.config import EngineConfig
from slipway.engine.messages import TokenLogprobs
from slipway.load.arrays import FP32
from slipway.load.checkpoint import open_checkpoint
from slipway.load.quantized.form import GroupedForm
from slipway_kernels.attention.bench import PEERS as ATTENTION_PEERS
from slipway_kernels.cuda.ahead import cases_of, operations
from slipway_kernels.cuda.cases import Case, Size
from slipway_kernels.cuda.measure import Ceilings, Timing
from tensor_files import numbers_of

ROOT = Path(__file__).parents[2]
GPU = ROOT / "bench" / "gpu"
DECODE: Row = {"stage": "engine", "what": "decode", "batch": 1}
ENVIRONMENT = os.environ | {"PYTHONPATH": os.pathsep.join([str(GPU), str(GPU.parent), *sys.path])}


def asked(*words: str, patience: float = 60, **settings: str) -> subprocess.CompletedProcess[str]:
    environment = ENVIRONMENT | settings
    return subprocess.run(
        words,
        env=environment,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=scaled(patience),
        check=False,
    )


@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS, ids=lambda target: " ".join(target.fields.values()))
def test_every_target_is_of_a_row_that_its_stage_makes(target, setups) -> None:
    if target.fields["stage"] == "kernels":
        operation = target.fields["op"]
        cases = cases_of(operation)(torch.device("meta"), "full")
        rows: list[Row] = [
            {"stage": "kernels", "op": operation, "case": case.name, "timed": READ_FLUSH} for case in cases
        ]
    elif target.fields["stage"] == "engine":
        rows = [
            {"stage": "engine", "model": name, **row}
            for name, setup in setups.items()
            for row in (
                *({"what": "decode", "batch": batch} for batch in setup["batches"]),
                *({"what": "prefill", "input": length} for length in setup["prefill"]),
                *([{"what": "1000/1000"}] if setup["requests"] else []),
            )
        ]
        rows += [{"stage": "engine", "model": "llama-8b-fp8", "what": "first token", "input": 512}]
    else:
        names = "ready", "first request", "one stream", "10 requests a second"
        rows = [{"stage": "http", "model": "llama-8b", "what": what, "cache": "empty"} for what in names]
    assert any(target.is_of(row) for row in rows)


@pytest.fixture(scope="module")
def setups() -> dict[str, dict[str, object]]:
    """The stage's models, asked of a process of its own: the harness has Triton interpret for good."""
    told = "{name: dataclasses.asdict(setup) for name, setup in engine.SETUPS.items()}"
    program = f"import dataclasses, engine, json; print(json.dumps({told}))"
    found = asked(sys.executable, "-c", program)
    assert found.returncode == 0, found.stderr
    return json.loads(found.stdout.splitlines()[-1])


def test_a_target_is_met_missed_or_unsaid_where_nothing_was_measured() -> None:
    for rate, met in ((225.0, True), (224.9, False), (None, None)):
        row = {**DECODE, "model": "llama-8b", "tok_s": rate}
        assert compared(row, []) == {"target": "tok/s ≥ 225", "met": met}
    assert compared({**DECODE, "model": "qwen3-4b", "tok_s": 1.0}, []) == {}


def test_a_quantized_rate_is_compared_with_the_bf16_rate_before_it(tmp_path: Path) -> None:
    rows = Rows(tmp_path / "rows.jsonl", "engine", 60)
    rows.add(model="llama-8b-fp8", what="decode", batch=1, tok_s=400.0)
    rows.add(model="llama-8b", what="decode", batch=1, tok_s=240.0)
    rows.add(model="llama-8b", what="decode", batch=8, tok_s=1000.0)
    rows.add(model="llama-8b-fp8", what="decode", batch=1, tok_s=400.0)
    rows.add(model="llama-8b-awq", what="decode", batch=1, tok_s=480.0)
    met = [row.get("met") for row in read(tmp_path / "rows.jsonl")]
    assert met == [None, True, None, False, True]


LIMITS = Ceilings(read=4e12, read_write=4e12)


def case(flops: int = 0, **peers: Callable[[], object]) -> Case:
    return Case("fp8 8x8x8", torch.empty, bytes=400, written=100, flops=flops, peers=peers)


def stopwatch(**times: Timing) -> Callable[[Callable[[], object]], Timing]:
    """Tells a peer by what it returns; ours is `torch.empty`."""
    return lambda call: times["ours"] if call is torch.empty else times[str(call())]


def test_a_kernels_row_says_how_it_was_timed() -> None:
    watch = stopwatch(ours=Timing(1e-9, 0), torch=Timing(2e-9, 0), slow=Timing(3e-9, 0, captured=False))
    fields = timed(case(torch=lambda: "torch", slow=lambda: "slow"), LIMITS, watch)
    assert fields["timed"] == READ_FLUSH
    assert {name: fields[name] for name in fields if name.endswith(" timed")} == {
        "slow timed": f"{READ_FLUSH}, launched"
    }
    assert [fields[name] for name in ("us", "torch us", "slow us")] == pytest.approx([1e-3, 2e-3, 3e-3])
    assert fields["of ceiling"] == pytest.approx(0.1)


def test_a_time_below_the_resolution_is_said_and_not_shown() -> None:
    watch = stopwatch(ours=Timing(None, 1e-7), torch=Timing(None, 2e-7))
    fields = timed(case(flops=8, torch=lambda: "torch"), LIMITS, watch)
    assert fields == {
        "timed": READ_FLUSH,
        "us": None,
        "arithmetic": "bf16",
        "torch us": None,
        "untimed": "us below 0.1, torch us below 0.2",
    }


def test_a_peer_that_fails_costs_its_cell_alone() -> None:
    def fails() -> object:
        raise RuntimeError("no kernel\nfor it")

    fields = timed(case(torch=fails), LIMITS, stopwatch(ours=Timing(1e-9, 0)))
    assert (fields["torch us"], fields["torch failed"]) == (None, "no kernel")
    assert fields["us"] == pytest.approx(1e-3)


FP8: Row = {
    "stage": "kernels",
    "op": "linear_w8a8",
    "case": "fp8 64x4096x4096",
    "timed": READ_FLUSH,
    "us": 10.0,
    "torch fast us": 7.0,
    "torch exact us": 9.0,
}


@pytest.mark.parametrize(
    ("arithmetic", "met"), [("fp8_fast", False), ("fp8_exact", True), ("bf16", True), ("int8", None)]
)
def test_an_fp8_product_is_compared_with_the_peer_that_sums_alike(arithmetic: str, met: bool | None) -> None:
    assert compared({**FP8, "arithmetic": arithmetic}, [])["met"] is met


def test_what_was_timed_otherwise_is_not_compared() -> None:
    row = {**FP8, "arithmetic": "fp8_fast"}
    assert compared({**row, "torch fast timed": f"{READ_FLUSH}, launched"}, [])["met"] is None
    assert compared({**row, "timed": f"{READ_FLUSH}, launched"}, []) == {}
    del row["timed"]
    assert compared(row, []) == {}
    assert "| False |" not in report([{**row, "target": "speed ≥ 0.8", "met": False}])


@pytest.mark.parametrize(
    "size", ["small", pytest.param("full", marks=pytest.mark.slow, id="full, on every shape")]
)
@pytest.mark.parametrize("operation", operations())
def test_every_case_tells_what_it_writes_and_has_peers_that_are_known(operation: str, size: Size) -> None:
    for one in cases_of(operation)(torch.device("meta"), size):
        assert 0 < one.written <= one.bytes, one.name
        assert set(one.peers) <= set(PEERS), one.name
        if operation == "linear_w8a8" and re.fullmatch(r"fp8 \d+x\d+x\d+", one.name):
            assert SUMS_ALIKE[one.arithmetic] in one.peers, one.name


def test_attention_has_peers_that_are_known() -> None:
    """They need a device: on any other its cases have none."""
    assert set(ATTENTION_PEERS) <= set(PEERS)


def test_what_was_not_measured_is_an_empty_cell() -> None:
    table = markdown([{"us": 1.23456, "met": None}, {"us": None, "met": True}], ["us", "met"])
    assert table.splitlines()[2:] == ["| 1.23 |  |", "|  | True |"]


@pytest.mark.slow
def test_a_part_that_hangs_or_dies_costs_itself_alone(tmp_path: Path) -> None:
    script = tmp_path / "stage_of_three.py"
    script.write_text(
        "import os, threading\n"
        "from stage import run\n"
        "def hangs(rows): threading.Event().wait()\n"
        "def dies(rows): os.abort()\n"
        "def works(rows): rows.add(what='measured'); return True\n"
        "raise SystemExit(run('s', {'hangs': hangs, 'dies': dies, 'works': works}, ''))\n"
    )
    out = tmp_path / "rows.jsonl"
    done = asked(sys.executable, str(script), "--out", str(out), "--deadline", "10")
    assert done.returncode == 1
    assert read(out) == [
        {"stage": "s", "part": "hangs", "failed": "ended after 5 s"},
        {"stage": "s", "part": "dies", "failed": "status -6"},
        {"stage": "s", "what": "measured"},
    ]


@pytest.mark.slow
def test_a_part_that_does_not_exist_is_refused_with_those_that_do(tmp_path: Path) -> None:
    out = str(tmp_path / "rows.jsonl")
    done = asked(sys.executable, str(GPU / "invariance.py"), "--out", out, "float32", "float8")
    assert done.returncode == 2
    assert "no part float8, only float32, bfloat16, fp8, int4" in done.stderr


def said(*tokens: int) -> list[Said]:
    """Each with the next number as its rival."""
    told = [TokenLogprobs(-1.0, 1, [(token, -1.0), (token + 1, -2.0)]) for token in tokens]
    return [Said(token, logprobs, at) for at, (token, logprobs) in enumerate(zip(tokens, told, strict=True))]


def test_answers_differ_by_rounding_where_each_side_knows_the_others_token() -> None:
    assert unlike(said(5, 6), said(5, 6)) == ""
    assert unlike(said(5, 6), said(5, 9)) == "6 for 9 at token 1"
    assert unlike(said(5, 6), said(5, 7)) == "6 for 7 at token 1"  # it knows 7, but 7 knows only 8
    assert unlike(said(5, 6), said(5)) == "2 tokens for 1"


def test_a_decode_rate_counts_only_while_all_requests_decode() -> None:
    early = [Said(1, None, at) for at in (0.0, 1.0, 2.0, 3.0)]
    late = [Said(1, None, at) for at in (1.0, 2.0, 3.0, 4.0)]
    assert decode_rate([early, late]) == pytest.approx(4 / 2)
    with pytest.raises(ValueError, match="let each be of more tokens than the prompts take steps"):
        decode_rate([early[:2], late[1:]])


def test_checkpoints_of_random_weights_can_be_read_as_what_they_say(tmp_path: Path) -> None:
    for write, method in ((write_plain, ""), (write_awq, "awq")):
        model = written("tiny", tmp_path / method)
        write(model, torch.device("cpu"))
        checkpoint = open_checkpoint(EngineConfig(model=str(model), use_tqdm_on_load=False), lambda *_: None)
        assert checkpoint.quantization == method
        matrices = {name: array for name, array in numbers_of(checkpoint, FP32) if array.ndim == 2}
        assert len(matrices) == 2 + 2 * 7
        assert all(0.015 < float(matrix.std()) < 0.025 for matrix in matrices.values())
        forms = list(checkpoint.forms().values())
        assert len(forms) == (14 if method else 0)
        assert all(isinstance(form, GroupedForm) and form.bits == 4 for form in forms)
        checkpoint.close()


@pytest.mark.slow
def test_a_stage_runs_without_a_gpu_and_says_what_is_right(tmp_path: Path) -> None:
    settings = {"OUT": str(tmp_path), "PYTHON": sys.executable}
    done = asked(str(GPU / "run.sh"), "text:random", patience=300, **settings)
    assert done.returncode == 0, done.stderr
    rows = read(tmp_path / "rows.jsonl")
    assert [row["stage"] for row in rows] == ["machine", "text", "text"]
    assert [row["correct"] for row in rows[1:]] == [True, True]
    assert "| random | 20 | 4 | 4 | True |  |" in (tmp_path / "report.md").read_text()
