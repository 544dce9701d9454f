#!/usr/bin/env python3
"""Show whether the tests that are run for a change catch a fault in it, by mutants of the code.

`draw` takes points of mutation_points.py at random, by a commit's hash: as many of each stratum, and there
each as likely as another. It adds each to the files that one of the last landings changed. `judge` runs tests
on each mutant, in a clean tree of its own, first those of them that import its file. It writes each result
at once, and runs only those that are missing. `equivalent` sets a mutant aside that no test can notice.
`table` shows the results.
"""

from __future__ import annotations

import argparse
import ast
import difflib
import hashlib
import io
import json
import os
import random
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from mutation_points import Point, line_and_column, offset_of, points

sys.path.append(str(Path(__file__).resolve().parents[1]))  # of this script's own tree, whatever it judges
from tests.imports import ImportGraph
from tests.selection import Changes


@dataclass(frozen=True, slots=True)
class Mode:
    """A run of tests. `{lean}` and `{dev}` are interpreters; the first word also runs a failed test again."""

    command: str
    minutes: float
    is_told_changes: bool = False
    """By SLIPWAY_CHANGED, a path a line, and SLIPWAY_SEED, which is another for each mutant."""
    at_start: bool = False
    """In the tree of the commit that the mutants were drawn from, with its tests."""


TESTS = "-m pytest tests -p nearest_first -n 2 --dist loadscope --no-loadscope-reorder -x"
MODES = {
    "lean": Mode("{lean} " + TESTS + " -m 'not slow and not soak and not torch'", 20),
    "selected": Mode(
        "{dev} " + TESTS + " -p tests.selection --select landing --left-by-test -m 'not soak'",
        60,
        is_told_changes=True,
    ),
    "old": Mode("{dev} " + TESTS + " -m 'not soak and not exhaustive'", 120, at_start=True),
}
"""In their order: unless modes are named, a mutant that one caught is left out of those that follow."""

ROOT = Path(__file__).resolve().parents[1]
STRATA = {
    "engine": "runtime/slipway/engine",
    "api": "runtime/slipway/api",
    "args": "runtime/slipway/args",
    "service": "runtime/slipway/service",
    "operator": "operator/slipway_operator",
    "load": "runtime/slipway/load",
    "kernels": "kernels/slipway_kernels",
}
CODE = ("runtime/", "kernels/", "operator/")
LANGUAGES = (".py", ".cpp", ".inl", ".h")
LAST_LANDINGS = 200
DRAWN, RESULTS = ROOT / "build" / "mutants.jsonl", ROOT / "build" / "judged.jsonl"
LIBRARY = "kernels/slipway_kernels/_cpu.so"
ENDS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
CAUGHT = ("caught", "timeout")
ASIDE = ("equivalent", "gone", "does not compile")
FAILED = re.compile(r"^(?:FAILED|ERROR) (tests/.+?)(?: - .*)?$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Mutant:
    """One change of a file as it is at `commit`; line and column count from 1."""

    id: str
    stratum: str
    commit: str
    file: str
    line: int
    column: int
    operator: str
    before: str
    after: str
    text: str
    """The line."""
    landing: str
    """The commit whose changed files it is added to."""

    def point(self, source: str) -> Point:
        start = offset_of(source, self.line, self.column)
        return Point(start, start + len(self.before), self.operator, self.before, self.after)


def git(*arguments: str, root: Path = ROOT) -> str:
    command = ["git", "-C", str(root), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


# Draw


def sources(commit: str, folder: str, root: Path) -> dict[str, str]:
    """Every source file of a folder as it is at a commit."""
    command = ["git", "-C", str(root), "archive", commit, folder]
    archive = io.BytesIO(subprocess.run(command, capture_output=True, check=True).stdout)
    with tarfile.open(fileobj=archive) as files:
        return {
            member.name: extracted.read().decode()
            for member in sorted(files.getmembers(), key=lambda member: member.name)
            if member.name.endswith(LANGUAGES) and (extracted := files.extractfile(member)) is not None
        }


def landings(commit: str, root: Path) -> dict[str, list[str]]:
    """The last commits that touch code, each with the files that it changed."""
    shown = ("--first-parent", "-m", f"-{LAST_LANDINGS}", "--format=%x00%H", "--name-only")
    log = git("log", *shown, commit, root=root)
    entries = [entry.split() for entry in log.split("\0")[1:]]
    return {head: files for head, *files in entries if any(map(is_code, files))}


def is_code(file: str) -> bool:
    return file.startswith(CODE) and file.endswith(LANGUAGES)


def draw(commit: str, count: int, root: Path = ROOT) -> list[Mutant]:
    """`count` mutants, the strata in turn; everything follows from the commit's hash."""
    rng = random.Random(commit)
    changes = landings(commit, root)
    texts = {stratum: sources(commit, folder, root) for stratum, folder in STRATA.items()}
    pools = {
        stratum: [(file, point) for file, source in files.items() for point in points(file, source)]
        for stratum, files in texts.items()
    }
    mutants: list[Mutant] = []
    while len(mutants) < count:
        stratum = list(STRATA)[len(mutants) % len(STRATA)]
        file, point = pools[stratum].pop(rng.randrange(len(pools[stratum])))
        source = texts[stratum][file]
        if file.endswith(".py"):
            ast.parse(point.apply(source))
        line, column = line_and_column(source, point.start)
        folder = STRATA[stratum] + "/"
        near = [head for head, files in changes.items() if any(one.startswith(folder) for one in files)]
        mutants.append(
            Mutant(
                id=f"m{len(mutants) + 1:02}",
                stratum=stratum,
                commit=commit,
                file=file,
                line=line,
                column=column,
                operator=point.operator,
                before=point.before,
                after=point.after,
                text=source.split("\n")[line - 1].strip(),
                landing=rng.choice(near or list(changes)),
            )
        )
    return mutants


# Judge


def control(commit: str) -> Mutant:
    """Nothing is changed: a run that catches it says nothing of the others."""
    return Mutant("none", "control", commit, "", 1, 1, "none", "", "", "", commit)


def moved(point: Point, old: str, new: str) -> Point | None:
    """The point in another version of its file; None where its lines or one beside them changed."""
    first, last = old.count("\n", 0, point.start), old.count("\n", 0, point.end)
    lines, others = old.split("\n"), new.split("\n")
    for block in difflib.SequenceMatcher(None, lines, others, autojunk=False).get_matching_blocks():
        if block.a <= max(first - 1, 0) and min(last + 2, len(lines)) <= block.a + block.size:
            column = line_and_column(old, point.start)[1]
            start = offset_of(new, first - block.a + block.b + 1, column)
            return replace(point, start=start, end=start + len(point.before))
    return None


def mutate(mutant: Mutant, tree: Path, root: Path) -> bool:
    """Whether the code that it changes is still there."""
    if not mutant.before:
        return True
    file, old = tree / mutant.file, git("show", f"{mutant.commit}:{mutant.file}", root=root)
    point = moved(mutant.point(old), old, file.read_text()) if file.exists() else None
    if point is not None:
        file.write_text(point.apply(file.read_text()))
    return point is not None


@contextmanager
def tree_of(commit: str, root: Path) -> Iterator[Path]:
    """A worktree in a temporary folder, which goes with every process that was started for it."""
    folder = Path(tempfile.mkdtemp(prefix="mutant-"))
    tree = folder / "tree"
    try:
        git("worktree", "add", "--detach", str(tree), commit, root=root)
        yield tree
    finally:
        end_processes(tree)
        shutil.rmtree(folder)
        git("worktree", "prune", root=root)


def end_processes(tree: Path) -> None:
    """Also servers that left the process group of a test that did not live to end them."""
    mark = f"MUTANT_TREE={tree}".encode()
    found = True
    while found:
        found = False
        for process in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                environ = (process / "environ").read_bytes()
                if mark in environ.split(b"\0"):
                    os.kill(int(process.name), signal.SIGKILL)
                    found = True
                elif not environ and not (process / "cmdline").read_bytes():
                    (process / "exe").readlink()  # threads of the kernel have none
                    found = True  # it begins a program, and does not show its environment yet


def environment(tree: Path) -> dict[str, str]:
    path = os.pathsep.join([*(str(tree / folder) for folder in CODE), str(Path(__file__).parent)])
    return os.environ | {"PYTHONPATH": path, "SLIPWAY_COMMAND": "bin/slipway", "MUTANT_TREE": str(tree)}


def compile_kernels(tree: Path) -> bool:
    command = [sys.executable, "-m", "slipway_kernels.build"]
    return subprocess.run(command, cwd=tree, env=environment(tree), capture_output=True).returncode == 0


def copy_kernels(root: Path, tree: Path) -> None:
    """As newer than the tree: only what a mutant changes is compiled again."""
    for path in (*sorted((root / "build" / "kernels").iterdir()), root / LIBRARY):
        to = tree / path.relative_to(root)
        to.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, to)


def run(command: Sequence[str], tree: Path, env: dict[str, str], minutes: float) -> tuple[int | None, str]:
    """Exit status and output of a command; None where it had to be ended."""
    with tempfile.TemporaryFile("w+", errors="replace") as output:
        process = subprocess.Popen(command, cwd=tree, env=env, stdout=output, stderr=subprocess.STDOUT)
        status: int | None = None
        try:
            status = process.wait(minutes * 60)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGINT)  # pytest ends what its tests have started
            with suppress(subprocess.TimeoutExpired):
                process.wait(20)
        finally:
            process.kill()
            process.wait()
        output.seek(0)
        return status, output.read()


def verdict(mode: Mode, mutant: Mutant, tree: Path, pythons: dict[str, str], root: Path) -> tuple[str, str]:
    """The outcome of a mode's run in a mutated tree, and the first test that failed or the last line."""
    env = environment(tree)
    if mode.is_told_changes:
        landed = git("diff", "--name-only", f"{mutant.landing}^", mutant.landing, root=root).splitlines()
        env["SLIPWAY_CHANGED"] = "\n".join(sorted({*landed, mutant.file} - {""}))
        env["SLIPWAY_SEED"] = hashlib.sha1(f"{mutant.commit} {mutant.id}".encode()).hexdigest()
    env["NEAREST"] = " ".join(nearest(mutant.file, tree))
    return outcome_of(shlex.split(mode.command.format(**pythons)), tree, env, mode.minutes)


def nearest(file: str, tree: Path) -> list[str]:
    """The files of tests that import a file, those first from which the fewest imports lead to it.

    Of those as far off, the ones first that have the most words of its path in theirs.
    """
    changes = Changes([file] if file else [], ImportGraph(tree))
    words = {*re.split(r"[/_.]", file)}
    found = []
    for path in (tree / "tests").rglob("test_*.py"):
        name = str(path.relative_to(tree))
        if (far := changes.distance(path)) is not None:
            found.append((far, -len(words.intersection(re.split(r"[/_.]", name))), name))
    return [name for _, _, name in sorted(found)]


def outcome_of(command: list[str], tree: Path, env: dict[str, str], minutes: float) -> tuple[str, str]:
    status, output = run(command, tree, env, minutes)
    failed = FAILED.search(output)
    shown = failed[1] if failed else (output.strip().rpartition("\n")[2])
    if status is None:
        return "timeout", shown
    if status in (0, 5):  # 5: no test was selected
        return "missed", ""
    if failed and run([command[0], "-m", "pytest", failed[1]], tree, env, minutes)[0] == 0:
        return "flaky", shown
    return "caught", shown


def judged(name: str, mutant: Mutant, head: str, pythons: dict[str, str], root: Path) -> dict[str, Any]:
    """What a mode's run says of a mutant of a commit."""
    mode = MODES[name]
    row = asdict(mutant) | {"mode": name, "head": head, "seconds": 0.0, "note": ""}
    commit = mutant.commit if mode.at_start else head
    with tree_of(commit, root) as tree:
        if not git("diff", "--name-only", head, commit, "--", "kernels", root=root):
            copy_kernels(root, tree)
        if not mutate(mutant, tree, root):
            return row | {"outcome": "gone"}
        if not compile_kernels(tree):
            return row | {"outcome": "does not compile"}
        begun = time.monotonic()
        outcome, note = verdict(mode, mutant, tree, pythons, root)
        return row | {"outcome": outcome, "note": note, "seconds": round(time.monotonic() - begun, 1)}


def judge(
    drawn: Sequence[Mutant], out: Path, asked: Sequence[str], pythons: dict[str, str], root: Path = ROOT
) -> None:
    """Add to the results what they lack."""
    if git("status", "--porcelain", "--", "kernels", root=root):
        raise SystemExit("error: kernels/ has changes that are not committed\n  The tree of HEAD is judged.")
    if not compile_kernels(root):
        raise SystemExit("error: the CPU kernels do not compile\n  Run python -m slipway_kernels.build.")
    head = git("rev-parse", "HEAD", root=root).strip()
    outcomes: dict[str, dict[str, str]] = {mutant.id: {} for mutant in drawn}
    for row in read(out):
        if row["outcome"] != "flaky":  # which is run again
            outcomes.setdefault(row["id"], {})[row["mode"]] = row["outcome"]
    for mutant in drawn:
        known = outcomes[mutant.id]
        for name in (name for name in MODES if not asked or name in asked):
            caught = any(outcome in CAUGHT for outcome in known.values())
            aside = any(outcome in ASIDE for outcome in known.values())
            if name in known or aside or (caught and (name == "old" or not asked)):
                continue
            row = judged(name, mutant, head, pythons, root)
            write(out, row)
            print(mutant.id, name, row["outcome"], f"{row['seconds']:.0f} s", row["note"], flush=True)
            known[name] = row["outcome"]
            if mutant.stratum == "control" and row["outcome"] != "missed":
                raise SystemExit(f"error: {name} fails without a mutant: {row['note']}")


def read(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def write(file: Path, row: dict[str, Any]) -> None:
    with file.open("a") as lines:
        lines.write(json.dumps(row, ensure_ascii=False) + "\n")


# Table


def table(rows: Sequence[dict[str, Any]]) -> str:
    """The share of its mutants that each mode caught, per stratum; then each mutant that CI would miss."""
    mutants: dict[str, dict[str, Any]] = {}
    for row in rows:
        if row["stratum"] != "control":
            mutants.setdefault(row["id"], row | {"by": {}})["by"][row["mode"]] = row
    lines = [
        "| stratum | mutants | set aside | lean | selected | lean or selected | old |",
        "|" + " --- |" * 7,
    ]
    for stratum in (*STRATA, "all"):
        some = [one for one in mutants.values() if stratum in (one["stratum"], "all")]
        left = [one for one in some if not is_aside(one)]
        modes = (["lean"], ["selected"], ["lean", "selected"], ["old"])
        figures = [stratum, len(some), len(some) - len(left), *(share(left, names) for names in modes)]
        lines.append("| " + " | ".join(map(str, figures)) + " |")
    lines += ["", "| mutant | place | change | landing | outcome |", "|" + " --- |" * 5]
    for one in mutants.values():
        if outcome(one, ["lean", "selected"]) != "caught":
            said = "; ".join(
                f"{mode}: {row['outcome']} {row['note']}".strip() for mode, row in one["by"].items()
            )
            change = f"{code(one['text'])}: {code(one['before'])} → {code(one['after'])}"
            cells = [one["id"], f"{one['file']}:{one['line']}", change, one["landing"][:8], said]
            lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def is_aside(mutant: dict[str, Any]) -> bool:
    return any(row["outcome"] in ASIDE for row in mutant["by"].values())


def outcome(mutant: dict[str, Any], modes: Sequence[str]) -> str | None:
    """Of these modes together; None where no run tells."""
    found = [mutant["by"][mode]["outcome"] if mode in mutant["by"] else None for mode in modes]
    if any(one in CAUGHT for one in found):
        return "caught"
    return "missed" if all(one == "missed" for one in found) else None


def share(mutants: Sequence[dict[str, Any]], modes: Sequence[str]) -> str:
    told = [one for mutant in mutants if (one := outcome(mutant, modes)) is not None]
    return f"{told.count('caught')}/{len(told)} ({told.count('caught') / len(told):.0%})" if told else "–"


def code(text: str) -> str:
    return f"`{' '.join(text.split())}`".replace("|", "\\|") if text else "nothing"


def end(number: int, _: object) -> None:
    """Remove the tree, once."""
    for other in ENDS:
        signal.signal(other, signal.SIG_IGN)
    sys.exit(128 + number)


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    commands = parser.add_subparsers(required=True, dest="command")
    drawing = commands.add_parser("draw", help="print mutants as JSON lines")
    drawing.add_argument("--seed", required=True, help="the commit that is mutated, whose hash is the seed")
    drawing.add_argument("--count", type=int, default=60)
    judging = commands.add_parser("judge", help="run the tests of each mode on each mutant, a control first")
    judging.add_argument("--only", nargs="+", metavar="ID", help="these mutants; the control is called none")
    judging.add_argument("--with", nargs="+", choices=MODES, default=[], dest="modes", help="these modes")
    judging.add_argument("--lean-python", default=sys.executable, help="the interpreter without torch")
    judging.add_argument("--dev-python", default=sys.executable, help="the one with everything")
    setting = commands.add_parser("equivalent", help="set a mutant aside that no test can notice")
    setting.add_argument("id")
    setting.add_argument("--why", required=True)
    for writer in (judging, setting):
        writer.add_argument("--draw", type=Path, default=DRAWN, help="what draw printed")
        writer.add_argument("--out", type=Path, default=RESULTS, help="results, as JSON lines")
    commands.add_parser("table", help="print results as Markdown").add_argument(
        "results", type=Path, nargs="?", default=RESULTS
    )
    words = parser.parse_args(argv)
    if words.command == "draw":
        commit = git("rev-parse", f"{words.seed}^{{commit}}").strip()
        for mutant in draw(commit, words.count):
            print(json.dumps(asdict(mutant), ensure_ascii=False))
    elif words.command == "table":
        print(table(read(words.results)), end="")
    else:
        drawn = [Mutant(**row) for row in read(words.draw)]
        if words.command == "equivalent":
            mutant = next(one for one in drawn if one.id == words.id)
            write(words.out, asdict(mutant) | {"mode": "reading", "outcome": "equivalent", "note": words.why})
            return
        for number in ENDS:
            signal.signal(number, end)
        wanted = [one for one in (control(drawn[0].commit), *drawn) if one.id in (words.only or [one.id])]
        judge(wanted, words.out, words.modes, {"lean": words.lean_python, "dev": words.dev_python})


if __name__ == "__main__":
    main()
