"""Compiles every kernel that can be launched, for every architecture, on a machine without a GPU.

`python -m slipway_kernels.cuda.ahead [OPERATION ...]` runs each operation's cases on meta tensors, compiles
what they would launch, and prints registers, shared memory and the instructions that matter. It fails where
a kernel does not compile, spills registers without a reason in its tile, wants more shared memory than there
is, or misses an instruction that its case demands.

Results are kept: a kernel is compiled again if it has changed, or if it failed.
`--sample N` compiles N kernels, chosen at random. `--whole` names operations and compiles all their kernels,
or `--most N` of them.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import json
import os
import pkgutil
import re
import subprocess
import sys
import tempfile
import traceback
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import triton

import slipway_kernels
from slipway_kernels.cuda.cases import Cases
from slipway_kernels.cuda.compiled import cache, compile_for, keep, own_folder, place
from slipway_kernels.cuda.specialization import Specialization, recording
from slipway_kernels.cuda.tiles import ARCHITECTURES, Tile

SHARED_LIMIT = {80: 101_376, 90: 232_448, 100: 232_448}
"""Bytes of shared memory that one block may have; of 80 what 8.6 and 8.9 have, which take its rows, too."""

INSTRUCTIONS = (
    *("wgmma.mma_async", "tcgen05.mma", "mma.sync", "cp.async.bulk", "cp.async"),
    "st.global.v",  # of adjacent numbers at once
    *("atom.global.sys.release", "atom.global.sys.acquire", "ld.global.cg.v4"),  # between devices
)
KEPT = 4
"""Part of every result's name in the cache; another number where results of before cannot be trusted."""
_USAGE = re.compile(r"REG:(\d+) STACK:(\d+) SHARED:(\d+)")


@dataclass(frozen=True, slots=True)
class Entry:
    """One kernel to compile, and the cases of `operation` that launch it."""

    operation: str
    specialization: Specialization
    cases: tuple[str, ...]
    instructions: frozenset[str]

    @property
    def key(self) -> str:
        return f"{self.specialization.key}-{KEPT}"

    @property
    def title(self) -> str:
        s = self.specialization
        sizes = " ".join(f"{name}={value}" for name, value in sorted(s.tile.constants.items()))
        tile = f"{sizes} w{s.tile.num_warps} s{s.tile.num_stages}"
        return f"{self.operation} {s.kernel.__name__} sm_{s.arch} [{tile}] for {self.cases[0]}"

    @property
    def result(self) -> Path:
        """File of what compiling it gave."""
        return folder() / f"{self.key}.json"

    @property
    def is_done(self) -> bool:
        """Whether it has been compiled, and launches find it."""
        return self.result.exists() and (own_folder() / place(self.specialization)).exists()

    @property
    def log(self) -> Path:
        """File of what the compiler printed, where it failed."""
        return folder() / f"{self.key}.log"


def operations() -> tuple[str, ...]:
    """Folders with a Triton kernel."""
    root = Path(slipway_kernels.__path__[0])
    return tuple(m.name for m in pkgutil.iter_modules([str(root)]) if (root / m.name / "kernel.py").exists())


def cases_of(operation: str) -> Cases:
    cases: Cases = importlib.import_module(f"slipway_kernels.{operation}.bench").cases
    return cases


def entries(operation: str, architectures: Sequence[int]) -> Iterator[Entry]:
    """Every kernel that the operation's cases launch, once for each architecture."""
    for arch in architectures:
        found: dict[str, Entry] = {}
        for case in cases_of(operation)(torch.device("meta"), "full"):
            if arch < case.arch:
                continue
            with recording(arch) as noted:
                case.run()
            wanted = frozenset(case.always + (case.instructions if arch == 90 else ()))
            for specialization in noted:
                entry = Entry(operation, specialization, (case.name,), wanted)
                before = found.get(entry.key)
                if before is not None:
                    names, wanted_before = before.cases, before.instructions
                    entry = Entry(operation, specialization, (*names, case.name), wanted | wanted_before)
                found[entry.key] = entry
        yield from found.values()


def sample(found: Sequence[Entry], count: int, seed: str) -> list[Entry]:
    """`count` kernels in their order. The seed chooses them, for each version of Triton others."""

    def lot(entry: Entry) -> bytes:
        return hashlib.sha256(f"{seed} {triton.__version__} {entry.title}".encode()).digest()

    chosen = {entry.key for entry in sorted(found, key=lot)[:count]}
    return [entry for entry in found if entry.key in chosen]


def unreached(operation: str, seen: Collection[Entry]) -> Iterator[Tile]:
    """Rows of the operation's tile tables that none of its cases launches."""
    launched = {id(entry.specialization.tile) for entry in seen}
    prefix = f"slipway_kernels.{operation}."
    for name, module in list(sys.modules.items()):
        if name.startswith(prefix):
            yield from (tile for tile in rows_of(vars(module).values()) if id(tile) not in launched)


def rows_of(values: Iterable[object]) -> Iterator[Tile]:
    """The rows among a module's values, which are in tuples or in mappings of tuples; each once."""
    found: dict[int, Tile] = {}
    for value in values:
        tables = value.values() if isinstance(value, Mapping) else (value,)
        for table in tables:
            if isinstance(table, tuple):
                found.update((id(row), row) for row in table if isinstance(row, Tile))
    yield from found.values()


def build(entry: Entry) -> dict[str, object]:
    """Compile one kernel and keep it where launches look for it.

    Returns its registers, stack and shared bytes, and the instructions that it has.
    """
    made, texts = compile_for(entry.specialization)
    keep(entry.specialization, made)
    return {
        **_usage(made.code),
        "shared": made.shared,
        "instructions": [name for name in INSTRUCTIONS if name in texts["ptx"]],
    }


def _usage(cubin: bytes) -> dict[str, object]:
    tool = Path(triton.__path__[0]) / "backends/nvidia/bin/cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        shown = subprocess.run([tool, "-res-usage", file.name], capture_output=True, text=True, check=True)
    found = _USAGE.search(shown.stdout)
    if found is None:
        raise RuntimeError(f"cuobjdump said nothing of registers: {shown.stdout[:500]}")
    return {"registers": int(found[1]), "stack": int(found[2])}


def faults(entry: Entry, result: dict[str, object]) -> Iterator[str]:
    """What is wrong with a kernel, in sentences."""
    if "error" in result:
        yield f"does not compile: {result['error']}; what the compiler printed is in {entry.log}"
        return
    tile, arch = entry.specialization.tile, entry.specialization.arch
    if int(str(result["stack"])) and not tile.spills:
        yield f"spills {result['stack']} bytes of registers: take a smaller tile or more warps"
    if int(str(result["shared"])) > SHARED_LIMIT[arch]:
        yield f"wants {result['shared']} bytes of shared memory, sm_{arch} has {SHARED_LIMIT[arch]}"
    has = result["instructions"]
    assert isinstance(has, list)
    for name in sorted(entry.instructions.difference(has)):
        yield f"has no {name}, only {', '.join(has) or 'scalar code'}"


def folder() -> Path:
    """Where results are kept."""
    path = cache() / "ahead"
    path.mkdir(parents=True, exist_ok=True)
    return path


def compiled(kernels: Iterable[Specialization], jobs: int) -> list[str]:
    """Have these kernels lie where launches look for them. Returns what does not compile, and why."""
    wanted = [Entry("serving", one, (f"sm_{one.arch}",), frozenset()) for one in kernels]
    compile_missing(wanted, jobs)
    results = ((entry, json.loads(entry.result.read_text())) for entry in wanted)
    return [f"{entry.title}: {result['error']}" for entry, result in results if "error" in result]


def compile_missing(wanted: Sequence[Entry], jobs: int) -> int:
    """Compile those that have not been, or that failed. Returns how many."""
    todo = [entry for entry in wanted if not entry.is_done]
    if todo:  # minutes, on a machine that has compiled nothing yet
        print(f"triton {triton.__version__}: compiling {len(todo)} of {len(wanted)} kernels", flush=True)
    compile_all(todo, jobs)
    return len(todo)


def compile_all(todo: Sequence[Entry], jobs: int) -> None:
    """In processes, `jobs` at a time, each writing one file for every kernel that it has compiled.

    A process compiles for one architecture: Triton 3.6 keeps how the first that it compiles for converts fp8,
    and gives the instructions of sm_90 to sm_80 or leaves sm_90 without them.
    """
    shares: deque[Sequence[Entry]] = deque()
    for arch in sorted({entry.specialization.arch for entry in todo}):
        own = [entry for entry in todo if entry.specialization.arch == arch]
        shares += [own[job::jobs] for job in range(min(jobs, len(own)))]
    for entry in todo:
        entry.result.unlink(missing_ok=True)
    running: dict[int, Sequence[Entry]] = {}
    while shares or running:
        while shares and len(running) < jobs:
            share = shares.popleft()
            running[_start(share)] = share
        child, status = os.waitpid(-1, 0)
        left = [entry for entry in running.pop(child) if not entry.result.exists()]
        if left:  # the first of them has ended its process
            _keep(left[0], {"error": f"the compiler ended with status {os.waitstatus_to_exitcode(status)}"})
        if left[1:]:
            shares.append(left[1:])


def _start(share: Sequence[Entry]) -> int:
    """A process that compiles these kernels; its id."""
    sys.stdout.flush()
    child = os.fork()
    if not child:
        status = 1
        try:
            for entry in share:
                _compile(entry)
            status = 0
        finally:
            os._exit(status)
    return child


def _compile(entry: Entry) -> None:
    """Keep what compiling gave; a compiler that fails may print a thousand lines, which go to a file."""
    with entry.log.open("wb") as log:
        for stream in (1, 2):
            os.dup2(log.fileno(), stream)
    try:
        result = build(entry)
    except Exception as error:  # whatever the compiler raises is the result
        lines = traceback.format_exception_only(error)[-1].strip().splitlines()
        result = {"error": " ".join(lines)[:400]}
        sys.stdout.flush()
    else:
        entry.log.unlink()
    _keep(entry, result)


def _keep(entry: Entry, result: dict[str, object]) -> None:
    partial = entry.result.with_suffix(f".{os.getpid()}")
    partial.write_text(json.dumps(result))
    partial.replace(entry.result)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m slipway_kernels.cuda.ahead", description=__doc__)
    parser.add_argument("operation", nargs="*", default=operations())
    parser.add_argument("--arch", nargs="*", type=int, default=ARCHITECTURES, choices=ARCHITECTURES)
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--quiet", action="store_true", help="print what is wrong and a count")
    parser.add_argument(
        "--sample", type=int, metavar="COUNT", help="compile COUNT kernels, which --seed chooses"
    )
    parser.add_argument("--seed", default="", help="chooses the kernels of --sample")
    parser.add_argument(
        "--whole",
        nargs="*",
        default=[],
        choices=operations(),
        metavar="OPERATION",
        help="with --sample, compile all kernels of these, too",
    )
    parser.add_argument(
        "--most", type=int, metavar="COUNT", help="of --whole's kernels COUNT at most, which --seed chooses"
    )
    arguments = parser.parse_args()
    found = [entry for name in arguments.operation for entry in entries(name, arguments.arch)]
    chosen = found
    if arguments.sample is not None:
        whole = [entry for entry in found if entry.operation in arguments.whole]
        others = [entry for entry in found if entry.operation not in arguments.whole]
        drawn = sample(others, arguments.sample, arguments.seed)
        if arguments.most is not None:
            whole = sample(whole, arguments.most, arguments.seed)
        kept = {id(entry) for entry in (*whole, *drawn)}
        chosen = [entry for entry in found if id(entry) in kept]
    count = compile_missing(chosen, arguments.jobs)
    wrong = 0
    for entry in chosen:
        result = json.loads(entry.result.read_text())
        complaints = list(faults(entry, result))
        wrong += bool(complaints)
        if complaints or not arguments.quiet:
            print(f"{'FAILED' if complaints else 'ok':6} {entry.title}: {_shown(result)}")
        for complaint in complaints:
            print(f"       {complaint}")
    if len(arguments.arch) == len(ARCHITECTURES):
        for name in arguments.operation:
            for tile in unreached(name, [entry for entry in found if entry.operation == name]):
                wrong += 1
                print(f"FAILED {name}: no case reaches the row {tile}")
    number = str(len(found)) if chosen is found else f"{len(chosen)} of {len(found)}"
    print(f"triton {triton.__version__}: {number} kernels, {count} compiled now, {wrong} failed")
    return 1 if wrong else 0


def _shown(result: dict[str, object]) -> str:
    if "error" in result:
        return "no code"
    has = result["instructions"]
    assert isinstance(has, list)
    sizes = f"{result['registers']} registers, {result['stack']} spilled, {result['shared']} shared"
    return " ".join((sizes, *has))


if __name__ == "__main__":
    sys.exit(main())
