"""Chooses the tests that a change deserves: a pytest plugin, `-p tests.selection --select FRACTION…`.

Four sets, by what their files import (tests/imports.py):

- direct: the test's file is changed, imports a changed file, or stands beside a changed conftest.py. All run.
- reached: a changed file is imported by something that the test's file imports, or is a conftest.py of a
  folder above. A fraction runs.
- the rest. A smaller fraction runs, so that what imports do not show is found within a few changes.
- interpreted: those of the last two sets that run CUDA kernels in Triton's interpreter. A tenth runs.

Of a matrix, a function with several axes of parameters, a fraction of the cells runs, among them each value
of each axis. Tests marked `core` always run, and those marked `soak` never. A seed decides, which is printed;
by default it is the hash of the tree, so that another message of the commit chooses no other tests.

Each set has a time limit; tests/costs.json has the cost of each test. Where the limit is reached, a test that
takes twice as long, or is twice as many imports away from the change, is half as likely to run.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import subprocess
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import Any

import pytest
from packaging.utils import canonicalize_name
from tests.imports import NOT_IN_TEST, ImportGraph

ROOT = Path(__file__).resolve().parents[1]
COSTS = ROOT / "tests" / "costs.json"
KERNELS = ROOT / "kernels" / "slipway_kernels"
BASE = ROOT / ".ci" / "base"
SECONDS = 1.0
"""What a test is taken to cost whose file has no entry in the costs."""

READ_AS_DATA = {
    "kernels/slipway_kernels/": ("kernels/slipway_kernels/cpu/__init__.py",),
    "runtime/slipway/api/console/": ("tests/console/test_console.py", "tests/api/test_console_files.py"),
    "helm/": ("tests/helm/test_charts.py", "e2e/test_helm.py", "e2e/test_helm_templates.py"),
    "crds/": ("e2e/test_crd.py",),
    "examples/": ("e2e/test_examples.py",),
    "monitoring/": ("e2e/test_monitoring_rules.py", "e2e/test_metrics_lint.py"),
    "tests/data/": ("tests/recorded_logits.py",),
    "tests/text/vectors/": ("tests/text/test_gguf.py",),
    "e2e/helm/": ("e2e/test_helm_templates.py",),
    "e2e/charts/": ("e2e/test_helm.py",),
    "docs/reference/families.md": ("tests/model/test_served_families.py",),
    "docs/kubernetes": ("e2e/test_walk.py", "e2e/test_helm.py", "e2e/test_monitoring.py"),
    "MANIFEST.in": ("tests/house/test_package.py", "e2e/test_images.py"),
    ".containerignore": ("e2e/test_images.py",),
    "Containerfile": ("e2e/test_images.py",),
    "locks/image-": ("e2e/test_images.py",),
    "e2e/go/": ("e2e/test_ground.py",),
}
"""Files that no import shows, by the beginning of their path: the Python files that stand for them."""


@dataclass(frozen=True, slots=True)
class Share:
    """Of a set of tests one in `one_in` runs, one in `cells` cells of a matrix, for at most `seconds` of CPU.

    Where a file starts a cluster for all its tests, whole files are chosen.
    """

    one_in: int
    cells: int
    seconds: float
    whole_files: bool = False


NONE = Share(0, 0, 0)
ALL = Share(1, 1, math.inf)
DIRECT = Share(1, 1, 1200)
REACHED = Share(4, 4, 240)
INTERPRETED = Share(10, 10, 60)
LANDING = {
    "core": ALL,
    "direct": DIRECT,
    "reached": REACHED,
    "interpreted": INTERPRETED,
    "rest": Share(8, 6, 120),
}
AFFECTED = {"core": NONE, "direct": DIRECT, "reached": REACHED, "interpreted": INTERPRETED, "rest": NONE}
ON_CLUSTERS = {
    "core": ALL,
    "direct": ALL,
    "reached": Share(3, 3, 300, whole_files=True),
    "rest": Share(3, 3, 180, whole_files=True),
}


class Changes:
    """The changed files, and which tests they reach."""

    def __init__(self, files: Iterable[str], graph: ImportGraph, changed_pins: Iterable[str] = ()) -> None:
        """changed_pins  packages with another locked version than before"""
        self.files = sorted(files)
        self._graph = graph
        stand = {other for file in self.files for other in self._stand_for(file)}
        self.modules = {graph.root / file for file in (*self.files, *stand) if file.endswith(".py")}
        self.modules.update(self._importers(changed_pins))
        self._distances: dict[Path, int | None] = {}

    def reach(self, path: Path) -> str:
        """Of a test's file: `direct`, `reached` or `rest`."""
        imported = {one for one in self._graph.imports(path) if one.name != "conftest.py"}
        if path in self.modules or self.modules & {*imported, path.with_name("conftest.py")}:
            return "direct"
        return "rest" if self.distance(path) is None else "reached"

    def distance(self, path: Path) -> int | None:
        """The number of imports from a file to the nearest changed file; None if none leads there."""
        if path not in self._distances:
            self._distances[path] = self._graph.distance(path, self.modules)
        return self._distances[path]

    def _stand_for(self, file: str) -> Iterator[str]:
        if not file.endswith(".py"):
            for beginning, others in READ_AS_DATA.items():
                if file.startswith(beginning):
                    yield from others
        elif not (self._graph.root / file).exists():
            yield str(Path(file).with_name("__init__.py"))  # a package may list its folder

    def _importers(self, pins: Iterable[str]) -> Iterator[Path]:
        """The project's files that import one of these packages."""
        if wanted := {*pins}:
            imported = packages_distributions().items()
            names = {name for name, found in imported if wanted & {*map(canonicalize_name, found)}}
            yield from (path for path in self._graph.files() if names & self._graph.packages(path))


@dataclass(frozen=True, slots=True)
class Unit:
    """Tests that are chosen together: one test, some cells of a matrix, or a file."""

    items: Sequence[pytest.Item]
    seconds: float
    distance: int
    """The number of imports between its file and the change; at least 1."""
    lot: float
    """A random number between 0 and 1: the lowest are chosen."""
    overrun: float
    """Another one: the lower it is, the further the unit may exceed the time that is left."""


class Selection:
    """Which of the collected tests run, with the same result in every process of a run."""

    def __init__(
        self, seed: str, changes: Changes, shares: dict[str, Share], costs: dict[str, float]
    ) -> None:
        self._seed = seed
        self._changes = changes
        self._shares = shares
        self._costs = costs

    def choose(self, items: Sequence[pytest.Item]) -> dict[str, list[pytest.Item]]:
        """The chosen tests of each set, in the order of `items`."""
        groups: defaultdict[str, defaultdict[str, list[pytest.Item]]] = defaultdict(lambda: defaultdict(list))
        for item in items:
            reach = self._set_of(item)
            whole_file = self._shares[reach].whole_files
            groups[reach][str(item.path) if whole_file else _function(item)].append(item)
        chosen = {}
        for reach, found in groups.items():
            kept = {id(item) for item in self._within(self._shares[reach], found.values())}
            chosen[reach] = [item for item in items if id(item) in kept]
        return chosen

    def _set_of(self, item: pytest.Item) -> str:
        if item.get_closest_marker("core") or item.get_closest_marker("product"):
            return "core"
        reach = self._changes.reach(item.path)
        return "interpreted" if reach != "direct" and item.get_closest_marker("interpreted") else reach

    def seconds(self, items: Iterable[pytest.Item]) -> float:
        """What the tests cost, by what they have cost before."""
        return sum(self._costs.get(_name(item.path), SECONDS) for item in items)

    def _within(self, share: Share, groups: Iterable[list[pytest.Item]]) -> Iterator[pytest.Item]:
        if not share.one_in:
            return
        units = [unit for items in groups for unit in self._units(share, items)]
        left = share.seconds
        for unit in sorted(units, key=lambda unit: unit.lot * unit.seconds * unit.distance):
            if unit.overrun * unit.seconds < left:  # always true of one that fits
                yield from unit.items
            if unit.seconds > left:
                break
            left -= unit.seconds

    def _units(self, share: Share, items: list[pytest.Item]) -> Iterator[Unit]:
        """The units of a group that the lots choose."""
        if share.whole_files:
            units = [self._unit(items, _name(items[0].path))]
        elif axes := axes_of(items):
            cells = cover(items, axes, math.ceil(len(items) / share.cells), self._lot)
            yield self._unit(cells, _function(items[0]))
            return
        else:
            units = [self._unit([item], item.nodeid) for item in items]
        yield from (unit for unit in units if unit.lot < 1 / share.one_in)

    def _unit(self, items: Sequence[pytest.Item], name: str) -> Unit:
        distance = self._changes.distance(items[0].path) or 1
        return Unit(items, self.seconds(items), distance, self._lot(name), self._lot(f"overrun {name}"))

    def _lot(self, name: str) -> float:
        digest = hashlib.sha256(f"{self._seed} {name}".encode()).digest()
        return int.from_bytes(digest[:8]) / 2**64


def axes_of(items: Sequence[pytest.Item]) -> list[dict[str, str]]:
    """The axes of a matrix: each gives the value of a cell by its node id. Empty for fewer than two.

    A parameter whose values hardly repeat tells cells apart and is no axis.
    """
    names = getattr(getattr(items[0], "callspec", None), "params", {})
    axes = []
    for name in names:
        values = {item.nodeid: repr(item.callspec.params[name]) for item in items}  # type: ignore[attr-defined]
        if 1 < len({*values.values()}) <= len(items) / 2:
            axes.append(values)
    return axes if len(axes) > 1 else []


def cover(
    items: Sequence[pytest.Item], axes: Sequence[dict[str, str]], least: int, lot: Callable[[str], float]
) -> list[pytest.Item]:
    """At least so many cells, among which each value of each axis occurs."""
    left = {(number, value) for number, axis in enumerate(axes) for value in axis.values()}
    order = sorted(items, key=lambda item: lot(item.nodeid))
    chosen: list[pytest.Item] = []
    while left:
        best = max(order, key=lambda item: sum((n, axis[item.nodeid]) in left for n, axis in enumerate(axes)))
        order.remove(best)
        chosen.append(best)
        left -= {(n, axis[best.nodeid]) for n, axis in enumerate(axes)}
    return [*chosen, *order[: max(0, least - len(chosen))]]


def changed_files(landing: bool) -> list[str]:
    """Files, new ones too, that differ from the last commit or a landing's base; or SLIPWAY_CHANGED's."""
    if "SLIPWAY_CHANGED" in os.environ:
        return os.environ["SLIPWAY_CHANGED"].split("\n")
    differing = _git("diff", "-z", "--name-only", "--no-renames", _base(landing))
    new = _git("ls-files", "-z", "--others", "--exclude-standard")
    return [name for name in (differing + new).split("\0") if name]


def changed_pins(landing: bool) -> list[str]:
    """Packages that had another locked version at the last commit or at a landing's base."""
    if "SLIPWAY_CHANGED" in os.environ:
        return []
    lines = _git("diff", "--unified=0", _base(landing), "--", "locks")
    old, new = ({*re.findall(rf"^{sign}([a-z0-9-]+)==", lines, re.MULTILINE)} for sign in ("-", r"\+"))
    return sorted(old & new)


def _base(landing: bool) -> str:
    return base_of_landing() if landing else "HEAD"


def base_of_landing() -> str:
    """The commit that .ci/base names: what has landed before this change. Exits where it cannot be that."""
    base = BASE.read_text().strip()
    head = _git("rev-parse", "HEAD").strip()
    ancestor = subprocess.run(["git", "merge-base", "--is-ancestor", base, "HEAD"], cwd=ROOT, check=False)
    if ancestor.returncode == 0:
        base = _git("rev-parse", "--verify", f"{base}^{{commit}}").strip()
    if base == head or ancestor.returncode:
        wrong = "this commit itself" if base == head else "no ancestor of it"
        raise pytest.UsageError(
            f".ci/base names {base}, which is {wrong}. It names the commit that the change begins with: "
            "before the first commit of a change, git rev-parse HEAD > .ci/base"
        )
    return base


def seed() -> str:
    """SLIPWAY_SEED, or the hash of what HEAD holds."""
    return os.environ.get("SLIPWAY_SEED") or _git("rev-parse", "HEAD^{tree}").strip()[:12]


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True).stdout


def _function(item: pytest.Item) -> str:
    return item.nodeid.partition("[")[0]


def _name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("selection")
    group.addoption(
        "--select", choices=("landing", "affected"), help="which tests run: see tests/selection.py"
    )
    group.addoption("--left-by-test", action="store_true", help="without the tests that `make test` runs")
    group.addoption("--record-costs", action="store_true", help="write what tests cost into tests/costs.json")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--select"):
        config.pluginmanager.register(Plugin(config), "slipway-selection")
    if config.getoption("--record-costs") and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Costs(), "slipway-costs")


class Plugin:
    """Deselects what is not chosen, and says so."""

    def __init__(self, config: pytest.Config) -> None:
        landing = config.getoption("--select") == "landing"
        if hasattr(config, "workerinput"):
            self.seed, self._pins, *changed = config.workerinput["selection"]
        else:
            self.seed, self._pins, changed = seed(), changed_pins(landing), changed_files(landing)
        for name in ("SLIPWAY_SEED", "SLIPWAY_CHANGED"):  # servers of tests would not know them
            os.environ.pop(name, None)
        self._graph = ImportGraph(ROOT)
        self._changes = Changes(changed, self._graph, self._pins)
        on_clusters = any("e2e" in Path(argument).parts for argument in config.args)
        shares = ON_CLUSTERS if on_clusters else LANDING if landing else AFFECTED
        self._command = "selected-clusters" if on_clusters else "selected" if landing else "affected"
        costs = json.loads(COSTS.read_text()) if COSTS.exists() else {}
        self._selection = Selection(self.seed, self._changes, shares, costs)
        self._lines: list[str] = []

    def pytest_report_header(self) -> str:
        return f"selection: seed {self.seed}, {len(self._changes.files)} changed files"

    @pytest.hookimpl(tryfirst=True)  # tests/conftest.py puts what is left in an order
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        every = [*items]
        # `-m "not soak"` would drop them only after the choice.
        items[:] = [item for item in items if not item.get_closest_marker("soak")]
        if config.getoption("--left-by-test"):
            items[:] = [item for item in items if not fast(item, self._graph)]
        chosen = self._selection.choose(items)
        self._lines = [*self._report(items, chosen)]
        kept = {id(item) for some in chosen.values() for item in some}
        items[:] = [item for item in items if id(item) in kept]
        config.hook.pytest_deselected(items=[item for item in every if id(item) not in kept])

    def _report(self, items: Sequence[pytest.Item], chosen: dict[str, list[pytest.Item]]) -> Iterator[str]:
        run = {id(item) for some in chosen.values() for item in some}
        for reach, some in sorted(chosen.items()):
            yield f"{reach}: {len(some)} tests, about {self._selection.seconds(some) / 60:.1f} CPU minutes"
        left: Counter[str] = Counter()
        every: Counter[str] = Counter()
        for item in items:
            every[_name(item.path)] += 1
            left[_name(item.path)] += id(item) not in run
        yield "left out: " + (
            ", ".join(f"{name} {n}/{every[name]}" for name, n in sorted(left.items()) if n) or "nothing"
        )

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if hasattr(session.config, "workeroutput"):  # under xdist only workers collect
            session.config.workeroutput["selection"] = self._lines

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        node.workerinput["selection"] = [self.seed, self._pins, *self._changes.files]

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        self._lines = getattr(node, "workeroutput", {}).get("selection", self._lines)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        for line in self._lines:
            terminalreporter.write_line(line)
        terminalreporter.write_line(f"The same tests again: SLIPWAY_SEED={self.seed} make {self._command}")


def fast(item: pytest.Item, graph: ImportGraph) -> bool:
    """Whether `make test` runs a test."""
    marked = any(item.get_closest_marker(name) for name in ("slow", "torch", "soak"))
    return not marked and not graph.needs(item.path, NOT_IN_TEST)


class Costs:
    """Writes what a test of each file takes on average, fixtures included, in seconds of a core."""

    def __init__(self) -> None:
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self._tests: defaultdict[str, set[str]] = defaultdict(set)
        self._skipped: set[str] = set()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.skipped:
            self._skipped.add(report.nodeid)
        name = report.nodeid.partition("::")[0]
        self._seconds[name] += report.duration
        self._tests[name].add(report.nodeid)

    def pytest_sessionfinish(self) -> None:
        known = json.loads(COSTS.read_text()) if COSTS.exists() else {}
        for name, tests in self._tests.items():
            if ran := tests - self._skipped:
                known[name] = round(self._seconds[name] / len(ran), 3)
        known = {name: cost for name, cost in sorted(known.items()) if (ROOT / name).exists()}
        COSTS.write_text(json.dumps(known, indent=0) + "\n")


MOST_KERNELS = 300
"""Of operations that a landing changes, up to so many, in about two minutes for each Triton. What all of them
share, such as the launch, changes them all, and hardly ever what the compiler makes of them."""


def kernels() -> str:
    """Arguments of slipway_kernels.cuda.ahead: what a landing compiles of the CUDA kernels."""
    graph = ImportGraph(ROOT)
    changed = {ROOT / file for file in changed_files(landing=True)}
    other_compiler = not {"triton", "torch"}.isdisjoint(changed_pins(landing=True))
    whole = []
    for folder in sorted(path.parent for path in KERNELS.glob("*/kernel.py")):
        needed = set().union(*(graph.closure(path) for path in folder.glob("*.py")))
        if other_compiler or any(file in needed or folder in file.parents for file in changed):
            whole.append(folder.name)
    return " ".join((f"--sample 60 --most {MOST_KERNELS} --seed {seed()} --whole", *whole))


if __name__ == "__main__":
    print(kernels())
