"""Changes to a running engine, each by a name: what decode and prefill are with it, and so what it is worth.

A new one is a function like those below, which changes an idle engine and undoes it, and a line in SWITCHES.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass

from device import CUDA
from in_process import Engine
from table import Rows

from engine import decoded, prefilled
from slipway.worker.device.graphs import Graphs

BATCHES = (1, 256) if CUDA else (2,)
PROMPT = 2048 if CUDA else 8


@dataclass(frozen=True, slots=True)
class Switch:
    """A change, which lasts as long as its context. Graphs are captured again within it, and behind it."""

    name: str
    applied: Callable[[Engine], AbstractContextManager[None]]


@contextmanager
def graphs_off(engine: Engine) -> Iterator[None]:
    """Every step is launched kernel by kernel."""
    sizes = engine.worker.graph_sizes
    before, sizes.sizes = sizes.sizes, ()
    try:
        yield
    finally:
        sizes.sizes = before


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


SWITCHES = (Switch("graphs off", graphs_off), Switch("overlap off", overlap_off))


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
        engine.worker.graphs = Graphs()  # all sizes are captured again when nothing runs
    return right


def _figures(
    engine: Engine, switch: Switch, seed: int, name: str, base: dict[str, float | None], rows: Rows
) -> dict[str, float | None]:
    """A row for each figure, with its ratio to `base`."""
    found: dict[str, float | None] = {}
    with switch.applied(engine):
        capture_again(engine)
        calls = {f"decode {batch}": (decoded, batch) for batch in BATCHES}
        for of, (call, size) in (calls | {f"prefill {PROMPT}": (prefilled, PROMPT)}).items():
            rate = found[of] = call(engine, size, seed)
            before = base.get(of)
            ratio = rate / before if rate and before else None
            rows.add(model=name, what="switch", switch=switch.name, of=of, tok_s=rate, ratio=ratio)
    return found


def capture_again(engine: Engine) -> None:
    """Forget all graphs, and capture those of the engine's sizes."""
    engine.worker.graphs = Graphs()
    while engine.worker.idle():
        pass
