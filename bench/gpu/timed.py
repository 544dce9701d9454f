"""Carries out a plan of groups of parts, each part within its own limit."""

from __future__ import annotations

import json
import os
import shlex
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from stage import apart
from table import Rows

LOG_TAIL = 4000
"""Bytes of a failed part's log that are kept with it."""
VARIABLES = ("SLIPWAY_KERNELS", "SLIPWAY_CACHE", "PYTHONPATH", "TRITON_", "CUDA_", "NVIDIA_TF32_OVERRIDE")
"""By their beginnings, those that are kept with it: others may be secrets."""


@dataclass(frozen=True, slots=True)
class Group:
    """Parts of one script, which share a process until one fails.

    limits    seconds of each part, in order
    optional  it runs only if the plan's time allows all of its limits
    A part's name begins with its form, as `fp8:decode` does. Where a part fails, later parts of its form are
    skipped, and the others go on in a new process. Where a signal ended its process, those of later groups
    are skipped, too: an exception, or time that ran out, says nothing of them.
    """

    name: str
    script: Path
    limits: Mapping[str, float]
    optional: bool = False

    @property
    def seconds(self) -> float:
        return sum(self.limits.values())


@dataclass(frozen=True, slots=True)
class Plan:
    """Groups in order of worth, and the seconds that all of them may take, optional ones included.

    Raises ValueError if the limits of those that are not optional exceed it.
    """

    groups: Sequence[Group]
    seconds: float

    def __post_init__(self) -> None:
        least = sum(group.seconds for group in self.groups if not group.optional)
        if least > self.seconds:
            raise ValueError(f"the limits add up to {least:g} s, and the plan has {self.seconds:g} s")

    def slower(self, times: float) -> Plan:
        """The same with longer limits, for a rehearsal."""
        groups = [
            Group(
                one.name,
                one.script,
                {part: seconds * times for part, seconds in one.limits.items()},
                one.optional,
            )
            for one in self.groups
        ]
        return Plan(groups, self.seconds * times)


def carry_out(plan: Plan, out: Path) -> int:
    """Writes rows.jsonl, failed.jsonl and log.txt to the folder `out`. Returns how many parts failed."""
    begun = time.monotonic()
    broken: dict[str, str] = {}
    count = 0
    for group in plan.groups:
        rows = Rows(out / "rows.jsonl", group.name, plan.seconds)
        left = plan.seconds - (time.monotonic() - begun)
        if group.optional and group.seconds > left:
            rows.add(skipped=f"{left:.0f} s are left of {plan.seconds:g}, and it may take {group.seconds:g}")
            continue
        pending = dict(group.limits)
        here = dict(broken)
        while pending:
            for part in [part for part in pending if _form(part) in here]:
                rows.add(part=part, skipped=here[_form(part)])
                del pending[part]
            for part, fault in _run(group, dict(pending), out):
                del pending[part]
                if fault:
                    count += 1
                    rows.add(part=part, failed=fault)
                    if fault != WRONG:
                        here[_form(part)] = f"{part} failed: {fault}"
                    if fault.startswith("status -"):
                        broken[_form(part)] = here[_form(part)]
    return count


WRONG = "not as it must be"
"""Of a part that ran to its end: what comes after it is measured all the same."""


def _form(part: str) -> str:
    return part.partition(":")[0]


def _run(group: Group, pending: Mapping[str, float], out: Path) -> Iterator[tuple[str, str]]:
    """Parts and their faults, up to the first that ended its process; what repeats a failed one is kept."""
    if not pending:
        return
    command = [sys.executable, str(group.script), "--out", str(out / "rows.jsonl")]
    with (out / "log.txt").open("ab") as log:
        start = log.tell()
        for part, fault in apart(command, pending, log.fileno()):
            if fault:
                _keep(out, group, part, fault, command, start)
            yield part, fault


def _keep(out: Path, group: Group, part: str, fault: str, command: Sequence[str], start: int) -> None:
    """What repeats a failed part: its command, the variables that matter, and the end of its log. Shapes and
    seeds are the script's own, by the commit in the first row."""
    text = (out / "log.txt").read_bytes()[start:]
    parts = [name for name in group.limits if _form(name) == _form(part)]
    upto = parts[: parts.index(part) + 1]
    kept = {
        "group": group.name,
        "part": part,
        "failed": fault,
        "repeat": shlex.join([*command, "--here", *upto]),
        "environment": {
            name: value for name, value in sorted(os.environ.items()) if name.startswith(VARIABLES)
        },
        "log": text[-LOG_TAIL:].decode(errors="replace"),
    }
    with (out / "failed.jsonl").open("a") as file:
        file.write(json.dumps(kept) + "\n")
        file.flush()
        os.fsync(file.fileno())
