"""Compiled kernels for a call of quarter_hour.py: carried ones are tried, and missing ones compiled."""

from __future__ import annotations

import os
import re
import tempfile
import time
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path

os.environ["TRITON_INTERPRET"] = "0"  # interpreted kernels cannot be compiled

import deciding
import invariance
import smoke
import torch
from checkpoints import awq_config
from device import CUDA
from form import FORMS
from shapes import written
from stage import Part, run
from table import Rows

from engine import bounds
from slipway.engine.config import EngineConfig
from slipway.fit.kernels import needed_kernels
from slipway_kernels.cuda.ahead import cases_of, compiled
from slipway_kernels.cuda.compiled import Compiled, folders, place
from slipway_kernels.cuda.driver import DriverError, driver
from slipway_kernels.cuda.specialization import Specialization, recording

ARCH = 90
"""Of H100 and H200. Torch is not asked: it would refuse to be used in the processes that compile."""
Wanted = tuple[str, object]
"""`form` and its name, `kind` and invariance's, or `cases` and an operation with a pattern."""
CALLS: dict[str, tuple[Wanted, ...]] = {
    "call 1": (
        *(("form", "fp8"), ("form", "bf16"), ("kind", "int4"), ("kind", "fp8")),
        *(("cases", one) for one in smoke.KERNELS.items()),
        ("cases", ("sampling", r"(greedy|temperature 0.8) \d+x\d+ float32")),  # what processors have edited
    ),
    "call 2": (("form", "bf16"), ("form", "awq"), *(("cases", one) for one in deciding.KERNELS.items())),
}


def carried(rows: Rows) -> bool:
    """Have the driver load each kernel of the folders of SLIPWAY_KERNELS. Whether it took all."""
    named = [Path(one) for one in os.environ.get("SLIPWAY_KERNELS", "").split(os.pathsep) if one]
    files = [file for folder in named for file in sorted((folder / f"sm_{ARCH}").glob("*.cubin"))]
    faults, begun = [], time.monotonic()
    if CUDA:
        driver().enter(0)
    for file in files:
        try:
            found = Compiled.from_bytes(file.read_bytes())
            if CUDA:
                driver().load(found)
        except (ValueError, TypeError, DriverError) as error:
            faults.append(f"{file.name}: {error}"[:200])
    took = time.monotonic() - begun if CUDA else None
    rows.add(carried=len(files), refused=len(faults), first=faults[0] if faults else None, seconds=took)
    return not faults


def missing(call: str, rows: Rows) -> bool:
    """Compile what the call launches and no folder has. Whether all of it compiled."""
    begun = time.monotonic()
    wanted = CALLS[call] if CUDA else (("kind", "fp8"), ("cases", ("ngram", ".*")))
    needed = {one.key: one for kind, what in wanted for one in launched(kind, what)}
    absent = [
        one for one in needed.values() if not any((folder / place(one)).exists() for folder in folders())
    ]
    faults = compiled(absent, len(os.sched_getaffinity(0))) if CUDA else []
    took = time.monotonic() - begun if CUDA else None
    counts = {"needed": len(needed), "missing": len(absent), "failed_to_compile": len(faults)}
    rows.add(**counts, first=faults[0][:200] if faults else None, seconds=took)
    return not faults


def launched(kind: str, what: object) -> list[Specialization]:
    """The kernels of one entry of CALLS."""
    return list(_of_cases(*what)) if isinstance(what, tuple) else _of_engine(kind, str(what))


def _of_cases(operation: str, pattern: str) -> Iterator[Specialization]:
    with recording(ARCH) as noted:
        for case in cases_of(operation)(torch.device("meta"), "full"):
            if case.arch <= ARCH and re.fullmatch(pattern, case.name):
                case.run()
    yield from {one.key: one for one in noted}.values()


def _of_engine(kind: str, name: str) -> list[Specialization]:
    with tempfile.TemporaryDirectory() as folder:
        if kind == "kind":
            model = written("small" if CUDA else "tiny", Path(folder))
            settings: Mapping[str, object] = invariance.BASE | invariance.KINDS[name]
        else:
            setup = FORMS[name][1]
            model, settings = written(setup.shape, Path(folder)), bounds() | dict(setup.settings)
            if setup.awq:
                awq_config(model)
        usual: dict[str, object] = {
            "device": "cuda",
            "use_tqdm_on_load": False,
            "graph_sizes": [1, 256],
        }
        config = EngineConfig(model=str(model), **(usual | dict(settings)))  # type: ignore[arg-type]
        return list(needed_kernels(config, ARCH).values())


def parts() -> dict[str, Part]:
    return {"carried": carried, **{call: partial(missing, call) for call in CALLS}}


if __name__ == "__main__":
    raise SystemExit(run("compile", parts(), __doc__))
