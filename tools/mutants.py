#!/usr/bin/env python3
"""Show whether the tests that are run for a change catch a fault in it, by mutants of the code.

`draw` takes points of mutation_points.py at random, by a commit's hash: as many of each stratum,
in which each is equally likely. It adds each to the files that one of the last landings changed.
"""

from __future__ import annotations

import argparse
import ast
import io
import json
import random
import subprocess
import tarfile
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path, PurePosixPath

from mutation_points import Point, line_and_column, offset_of, points

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
        if PurePosixPath(file).suffix == ".py":
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


def written(rows: Iterable[Mutant]) -> str:
    return "".join(json.dumps(asdict(row), ensure_ascii=False) + "\n" for row in rows)


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    commands = parser.add_subparsers(required=True, dest="command")
    drawing = commands.add_parser("draw", help="print mutants as JSON lines")
    drawing.add_argument("--seed", required=True, help="the commit that is mutated, whose hash is the seed")
    drawing.add_argument("--count", type=int, default=60)
    words = parser.parse_args(argv)
    commit = git("rev-parse", f"{words.seed}^{{commit}}").strip()
    print(written(draw(commit, words.count)), end="")


if __name__ == "__main__":
    main()
