"""One form of an 8B model, stage by stage in one engine: the engine's part of quarter_hour.py."""

from __future__ import annotations

import statistics
import tempfile
import time
from collections import Counter
from functools import partial
from pathlib import Path

import torch
from device import CUDA
from in_process import Engine, Work
from stage import Part, run
from switches import SWITCHES, measured
from table import Rows
from torch.profiler import ProfilerActivity, profile

from engine import FP8, Setup, decode, many, prefill, started

SHAPE = "llama-8b" if CUDA else "tiny"
FORMS = {
    "fp8": (f"{SHAPE}-fp8", Setup(SHAPE, (1, 64, 256), (8192,), settings=FP8)),
    "bf16": (SHAPE, Setup(SHAPE, (1, 256), (2048,))),
    "bf16 more": (SHAPE, Setup(SHAPE, (), ())),
    "awq": (f"{SHAPE}-awq", Setup(SHAPE, (1, 64), (2048,), awq=True)),
}
FIRST_TOKENS = (128, 512, 2048)
"""Lengths of prompts whose time to the first token is measured."""
MANY = {"2048/128": Work(256, 2048, 128), "1000/1000": Work(512, 1000, 1000), "128/128": Work(2000, 128, 128)}
ROUNDS = 5
TOP = 12
"""Kernels of a profile that get a row."""

_open: dict[str, Engine] = {}
"""The engine of this process."""


def start(form: str, rows: Rows) -> bool:
    name, setup = FORMS[form]
    folder = tempfile.TemporaryDirectory()
    _open[form] = started(setup, name, Path(folder.name), rows)
    folder.cleanup()
    return True


def rates(form: str, rows: Rows) -> bool:
    """Decode by batch, time to the first token where only fp8 has the time for it, and prefill."""
    name, setup = FORMS[form]
    batches, lengths = (setup.batches, setup.prefill) if CUDA else (setup.batches[:1], (12,))
    decode(_open[form], batches, name, rows)
    if form == "fp8":
        for length in FIRST_TOKENS if CUDA else (8,):
            first_token(_open[form], length, name, rows)
    prefill(_open[form], lengths, name, rows)
    return True


def first_token(engine: Engine, length: int, name: str, rows: Rows) -> None:
    """Of one request alone, the median of some."""
    if rows.late:
        return
    work, rounds = Work(1, length, 1), ROUNDS if CUDA else 1
    answers = [engine.run(work.of(engine, 31 * length + turn)) for turn in range(rounds + 1)]
    took = statistics.median(answer[0].at for (answer,) in answers[1:]) * 1e3 if CUDA else None
    rows.add(model=name, what="first token", input=length, ttft_ms=took)


def throughput(form: str, work: Work, rows: Rows) -> bool:
    many(_open[form], work, FORMS[form][0], rows)
    return True


def profiled(form: str, rows: Rows) -> bool:
    """The time of each kernel in a graph's step of 64 requests, and in one of 2,048 prompt tokens."""
    name, engine = FORMS[form][0], _open[form]
    works = {"decode 64": Work(64, 64, 24), "prompt 2048": Work(1, 2048, 1)}
    if not CUDA:
        works = {"decode 2": Work(2, 4, 3), "prompt 8": Work(1, 8, 1)}
    for number, (step, work) in enumerate(works.items()):
        seed = 7 + 2 * number  # no prompt begins as another: the prefix cache would spare its beginning
        engine.run(work.of(engine, seed))
        try:
            _step_profile(engine, work, seed + 1, step, name, rows)
        except Exception as error:  # torch's profiler must not cost what is measured without it
            rows.add(model=name, what="profile", step=step, failed=f"{type(error).__name__}: {error}"[:300])
            return False
    return True


def _step_profile(engine: Engine, work: Work, seed: int, step: str, name: str, rows: Rows) -> None:
    """Of one step that has all requests, launched when the device is idle."""
    engine.hub.ask(work.of(engine, seed))
    answers = engine.hub.answers
    while work.output_len > 1 and not all(len(said) >= work.output_len // 2 for said in answers.values()):
        engine.core.run_once()
    kinds = [ProfilerActivity.CUDA] if CUDA else [ProfilerActivity.CPU]
    if CUDA:
        torch.cuda.synchronize()
    begun = time.perf_counter()
    with profile(activities=kinds) as seen:
        engine.core.run_once()
        if CUDA:
            torch.cuda.synchronize()
    wall = (time.perf_counter() - begun) * 1e3
    while engine.hub.unfinished:
        engine.core.run_once()
    times: Counter[str] = Counter()
    counts: Counter[str] = Counter()
    for event in seen.events() or ():
        if event.device_type.name == ("CUDA" if CUDA else "CPU"):
            times[event.name] += event.time_range.elapsed_us()
            counts[event.name] += 1
    total = {"device_ms": sum(times.values()) / 1e3, "wall_ms": wall} if CUDA else {}
    rows.add(model=name, what="profile", step=step, kernels=sum(counts.values()) if CUDA else None, **total)
    for kernel, took in times.most_common(TOP if CUDA else 1):
        figures = {"launches": counts[kernel], "us": float(took)} if CUDA else {}
        rows.add(model=name, what="profile", step=step, kernel=kernel[:80], **figures)


def switches(form: str, rows: Rows) -> bool:
    """What each change is worth. Returns False if one cannot be applied."""
    return measured(_open[form], SWITCHES, FORMS[form][0], rows)


def parts() -> dict[str, Part]:
    own: dict[str, Part] = {}
    for form in FORMS:
        own[f"{form}:start"] = partial(start, form)
        own[f"{form}:decode"] = partial(rates, form)
        own[f"{form}:profile"] = partial(profiled, form)
        own[f"{form}:switches"] = partial(switches, form)
        own |= {f"{form}:{what}": partial(throughput, form, work) for what, work in MANY.items()}
    return own


if __name__ == "__main__":
    raise SystemExit(run("engine", parts(), __doc__))
