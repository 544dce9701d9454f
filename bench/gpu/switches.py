"""Changes to a running engine, each by a name: what decode and prefill are with it, and so what it is worth.

A new one is a function like those below, which changes an idle engine and undoes it, and a line in SWITCHES.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial

from device import CUDA
from in_process import Engine
from table import Rows

from engine import decoded, prefilled

BATCHES = (1, 256) if CUDA else (2,)
PROMPT, ALONE = (2048, 512) if CUDA else (8, 8)
"""Lengths of several prompts at once, and of one."""


@dataclass(frozen=True, slots=True)
class Switch:
    """A change, which lasts as long as its context. Graphs are captured again within it, and behind it."""

    name: str
    applied: Callable[[Engine], AbstractContextManager[None]]


@contextmanager
def graphs_off(engine: Engine) -> Iterator[None]:
    """Every step is launched kernel by kernel."""
    sizes = engine.worker.graph_sizes
    before = sizes.sizes, sizes.mixed
    sizes.sizes = sizes.mixed = ()
    try:
        yield
    finally:
        sizes.sizes, sizes.mixed = before


@contextmanager
def prompt_graphs_off(engine: Engine) -> Iterator[None]:
    """Steps with prompts are launched kernel by kernel."""
    sizes = engine.worker.graph_sizes
    before, sizes.mixed = sizes.mixed, ()
    try:
        yield
    finally:
        sizes.mixed = before


@contextmanager
def whole_steps_of_prompts(engine: Engine) -> Iterator[None]:
    """Prompts take the whole step while others decode."""
    scheduler = engine.core.scheduler
    limits = scheduler.limits
    scheduler.limits = dataclasses.replace(limits, beside_decodes=0)
    try:
        yield
    finally:
        scheduler.limits = limits


@contextmanager
def overlap_off(engine: Engine) -> Iterator[None]:
    """A step is planned when the one before has been collected."""
    executor, scheduler = engine.core.executor, engine.core.scheduler
    depth, limits = executor.depth, scheduler.limits
    executor.depth, scheduler.limits = 1, dataclasses.replace(limits, depth=1)
    try:
        yield
    finally:
        executor.depth, scheduler.limits = depth, limits


SWITCHES = (
    Switch("prompt graphs off", prompt_graphs_off),
    Switch("graphs off", graphs_off),
    Switch("overlap off", overlap_off),
    Switch("whole steps of prompts", whole_steps_of_prompts),
)


def measured(engine: Engine, switches: Sequence[Switch], name: str, rows: Rows) -> bool:
    """Decode and prefill as the engine is, then with each switch. Whether all could be applied."""
    sizes, right = engine.worker.graph_sizes, True
    before, sizes.sizes = sizes.sizes, tuple(one for one in sizes.sizes if one in BATCHES)
    try:
        base = _figures(engine, Switch("none", lambda _: nullcontext()), 1, name, {}, rows)
        for number, switch in enumerate(switches):
            if rows.late:
                rows.add(model=name, what="switch", switch=switch.name, skipped="the part's time is up")
                continue
            try:
                _figures(engine, switch, 2 + number, name, base, rows)
            except Exception as error:  # one that does not fit this engine must not cost the others
                rows.add(model=name, what="switch", switch=switch.name, failed=f"{error}"[:200])
                right = False
    finally:
        sizes.sizes = before
        engine.worker.forget_graphs()  # all sizes are captured again when nothing runs
    return right


def _figures(
    engine: Engine, switch: Switch, seed: int, name: str, base: dict[str, float | None], rows: Rows
) -> dict[str, float | None]:
    """A row for each figure, with its ratio to `base`."""
    found: dict[str, float | None] = {}
    with switch.applied(engine):
        capture_again(engine)
        calls = {f"decode {batch}": partial(decoded, engine, batch, seed) for batch in BATCHES}
        calls[f"prefill {PROMPT}"] = partial(prefilled, engine, PROMPT, seed)
        calls[f"one prompt of {ALONE}"] = partial(prefilled, engine, ALONE, seed, requests=1)
        for of, call in calls.items():
            rate = found[of] = call()
            before = base.get(of)
            ratio = rate / before if rate and before else None
            rows.add(model=name, what="switch", switch=switch.name, of=of, tok_s=rate, ratio=ratio)
    return found


def capture_again(engine: Engine) -> None:
    """Forget all graphs, and capture those of the engine's sizes."""
    engine.worker.forget_graphs()
    while engine.worker.idle():
        pass
