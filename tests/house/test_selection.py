"""Which tests a change runs."""

from __future__ import annotations

import random
import subprocess
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests import selection
from tests.imports import ImportGraph
from tests.selection import AFFECTED, LANDING, ON_CLUSTERS, Changes, Selection, Share, axes_of, cover

FILES = {
    "runtime/slipway/__init__.py": "",
    "runtime/slipway/core.py": "",
    "runtime/slipway/server.py": "import slipway.core",
    "tests/test_core.py": "from slipway import core",
    "tests/test_server.py": "import slipway.server",
    "tests/test_started.py": 'run("slipway.server")',
    "tests/test_other.py": "import json",
}


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(selection, "ROOT", tmp_path)
    return tmp_path


def item(path: Path, function: str, *marks: str, **params: object) -> Any:
    """As much of a collected test as the selection looks at."""
    cell = f"[{'-'.join(map(str, params.values()))}]" if params else ""
    return SimpleNamespace(
        path=path,
        nodeid=f"{path.relative_to(selection.ROOT)}::{function}{cell}",
        callspec=SimpleNamespace(params=params),
        get_closest_marker=lambda wanted: wanted in marks,
    )


def plain(path: Path, count: int) -> list[Any]:
    return [item(path, f"test_{number}") for number in range(count)]


def chosen(
    project: Path, changed: list[str], items: list[Any], shares: dict[str, Share] = LANDING, **more: Any
) -> dict[str, list[Any]]:
    changes = Changes(changed, ImportGraph(project))
    return Selection(more.get("seed", "seed"), changes, shares, more.get("costs", {})).choose(items)


@pytest.mark.parametrize(
    ("changed", "reach"),
    [
        ("runtime/slipway/core.py", {"core": "direct", "server": "reached", "started": "reached"}),
        ("runtime/slipway/server.py", {"server": "direct", "started": "direct"}),
        ("tests/test_other.py", {"other": "direct"}),
        ("docs/api.md", {}),
    ],
)
def test_a_change_reaches_a_test_by_its_files_imports(
    project: Path, changed: str, reach: dict[str, str]
) -> None:
    changes = Changes([changed], ImportGraph(project))
    for name in ("core", "server", "started", "other"):
        assert changes.reach(project / f"tests/test_{name}.py") == reach.get(name, "rest")


def test_direct_tests_all_run_and_others_by_chance(project: Path) -> None:
    files = {name: plain(project / f"tests/test_{name}.py", 400) for name in ("core", "server", "other")}
    found = chosen(project, ["runtime/slipway/core.py"], [one for some in files.values() for one in some])
    assert found["direct"] == files["core"]
    assert 60 < len(found["reached"]) < 140
    assert 25 < len(found["rest"]) < 80


def test_a_tenth_of_the_interpreted_kernels_runs_unless_they_are_direct(project: Path) -> None:
    files = {
        name: [item(project / f"tests/test_{name}.py", f"test_{n}", "interpreted") for n in range(400)]
        for name in ("core", "server", "other")
    }
    found = chosen(project, ["runtime/slipway/core.py"], [one for some in files.values() for one in some])
    assert found["direct"] == files["core"]
    assert 40 < len(found["interpreted"]) < 120
    assert {one.path.name for one in found["interpreted"]} == {"test_server.py", "test_other.py"}


def test_a_conftest_is_direct_for_its_folder_and_reached_below(project: Path) -> None:
    (project / "tests/deep").mkdir()
    for name in ("tests/conftest.py", "tests/deep/conftest.py", "tests/deep/test_deep.py"):
        (project / name).write_text("")
    graph = ImportGraph(project)
    for changed, reach in (("tests/conftest.py", "reached"), ("tests/deep/conftest.py", "direct")):
        assert Changes([changed], graph).reach(project / "tests/deep/test_deep.py") == reach
    assert Changes(["tests/deep/conftest.py"], graph).reach(project / "tests/test_core.py") == "rest"


def test_a_seed_repeats_its_choice(project: Path) -> None:
    items = plain(project / "tests/test_other.py", 200)
    first, again, other = (chosen(project, ["x.py"], items, seed=seed)["rest"] for seed in ("a", "a", "b"))
    assert first == again != other
    shuffled = random.Random(1).sample(items, len(items))
    assert {one.nodeid for one in chosen(project, ["x.py"], shuffled, seed="a")["rest"]} == {
        one.nodeid for one in first
    }


def test_core_tests_run_whatever_has_changed(project: Path) -> None:
    always = item(project / "tests/test_other.py", "test_always", "core")
    assert chosen(project, ["x.py"], [always])["core"] == [always]


def test_the_edit_loop_runs_what_a_change_reaches_and_nothing_else(project: Path) -> None:
    items = [one for name in ("core", "other") for one in plain(project / f"tests/test_{name}.py", 50)]
    found = chosen(project, ["runtime/slipway/core.py"], items, AFFECTED)
    assert len(found["direct"]) == 50
    assert found["rest"] == []


def test_a_set_stops_where_its_time_ends(project: Path) -> None:
    items = plain(project / "tests/test_core.py", 100)
    costs = {"tests/test_core.py": 30.0}
    found = chosen(project, ["runtime/slipway/core.py"], items, costs=costs)["direct"]
    assert len(found) == LANDING["direct"].seconds / 30


def test_quick_tests_and_near_tests_are_chosen_more_often(project: Path) -> None:
    (project / "tests/test_far.py").write_text("import test_server")
    names = ("server", "started", "far")
    items = [one for name in names for one in plain(project / f"tests/test_{name}.py", 1000)]
    costs = {"tests/test_server.py": 0.4, "tests/test_started.py": 0.8, "tests/test_far.py": 0.4}
    found = chosen(project, ["runtime/slipway/core.py"], items, costs=costs)["reached"]
    count = Counter(one.path.stem for one in found)
    assert count["test_server"] > 1.5 * count["test_started"] > 0
    assert count["test_server"] > 1.2 * count["test_far"] > 0


def test_a_deleted_module_reaches_the_importers_of_its_package(project: Path) -> None:
    found = chosen(project, ["runtime/slipway/gone.py"], plain(project / "tests/test_core.py", 1))
    assert found.keys() == {"direct"}


def test_the_distance_counts_imports(project: Path) -> None:
    changes = Changes(["runtime/slipway/core.py"], ImportGraph(project))
    assert [changes.distance(project / f"tests/test_{name}.py") for name in ("core", "server", "other")] == [
        1,
        2,
        None,
    ]
    assert changes.distance(project / "runtime/slipway/core.py") == 0


def test_a_time_limit_splits_no_file_of_cluster_tests(project: Path) -> None:
    files = [project / f"e2e/test_{number}.py" for number in range(60)]
    (project / "e2e").mkdir()
    for path in files:
        path.write_text("")
    items = [one for path in files for one in plain(path, 7)]
    costs = {f"e2e/{path.name}": 10.0 for path in files}
    found = Counter(one.path for one in chosen(project, ["x.py"], items, ON_CLUSTERS, costs=costs)["rest"])
    assert {*found.values()} == {7}
    assert 0 <= len(found) - ON_CLUSTERS["rest"].seconds // 70 <= 1


def test_a_test_longer_than_the_limit_of_its_set_runs_sometimes(project: Path) -> None:
    (one,) = items = plain(project / "tests/test_other.py", 1)
    costs = {"tests/test_other.py": 2 * LANDING["rest"].seconds}
    ran = [chosen(project, ["x.py"], items, seed=str(number), costs=costs)["rest"] for number in range(800)]
    assert 20 < ran.count([one]) < 80  # one in eight, half of them


def test_on_clusters_files_are_chosen_whole(project: Path) -> None:
    (project / "e2e").mkdir()
    files = [project / f"e2e/test_{number}.py" for number in range(90)]
    for path in files:
        path.write_text("")
    items = [one for path in files for one in plain(path, 4)]
    found = Counter(one.path for one in chosen(project, ["x.py"], items, ON_CLUSTERS)["rest"])
    assert {*found.values()} == {4}
    assert 15 < len(found) < 45


def matrix(path: Path, rows: int, columns: int) -> list[Any]:
    return [item(path, "test_cells", row=i, column=j) for i in range(rows) for j in range(columns)]


@pytest.mark.parametrize(("rows", "columns"), [(2, 2), (3, 12), (8, 15)])
def test_of_a_matrix_each_value_of_each_axis_runs(project: Path, rows: int, columns: int) -> None:
    items = matrix(project / "tests/test_other.py", rows, columns)
    found = chosen(project, ["x.py"], items)["rest"]
    assert {one.callspec.params["row"] for one in found} == {*range(rows)}
    assert {one.callspec.params["column"] for one in found} == {*range(columns)}
    assert len(found) == max(rows, columns, -(-rows * columns // LANDING["rest"].cells))


def test_a_parameter_that_names_the_case_is_no_axis(project: Path) -> None:
    path = project / "tests/test_other.py"
    assert axes_of([item(path, "test_one", name=i, bound=i % 2) for i in range(12)]) == []
    assert len(axes_of(matrix(path, 3, 4))) == 2


def test_cells_beyond_the_cover_are_the_lots(project: Path) -> None:
    items = matrix(project / "tests/test_other.py", 2, 10)
    lots = {one.nodeid: number / 20 for number, one in enumerate(items)}
    found = cover(items, axes_of(items), 14, lambda name: lots[name])
    assert len(found) == 14
    left = [one for one in items if one not in found]
    assert min(lots[one.nodeid] for one in left) > max(lots[one.nodeid] for one in found[10:])


def git(folder: Path, *words: str) -> str:
    done = subprocess.run(["git", *words], cwd=folder, check=True, capture_output=True, text=True)
    return done.stdout.strip()


def commit(folder: Path, message: str) -> str:
    git(folder, "add", "-A")
    git(folder, "commit", "-qm", message)
    return git(folder, "rev-parse", "HEAD")


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Three commits of a repository, the base's file naming the first of them."""
    git(tmp_path, "init", "-q")
    for name, value in {"user.email": "a@b", "user.name": "Nobody", "commit.gpgsign": "false"}.items():
        git(tmp_path, "config", name, value)
    commits = []
    for number in range(3):
        (tmp_path / f"{number}.py").write_text("")
        commits.append(commit(tmp_path, f"Commit {number}"))
    (tmp_path / "base").write_text(f"{commits[0]}\n")
    (tmp_path / "new.py").write_text("")
    monkeypatch.setattr(selection, "ROOT", tmp_path)
    monkeypatch.setattr(selection, "BASE", tmp_path / "base")
    monkeypatch.delenv("SLIPWAY_CHANGED", raising=False)
    return commits


def test_a_change_is_all_since_the_base_and_what_is_not_committed(repository: list[str]) -> None:
    assert selection.base_of_landing() == repository[0]
    assert selection.changed_files(landing=True) == ["1.py", "2.py", "base", "new.py"]
    assert selection.changed_files(landing=False) == ["base", "new.py"]


def test_names_that_are_not_ascii_are_read(repository: list[str], tmp_path: Path) -> None:
    (tmp_path / "ä b.py").write_text("")
    assert selection.changed_files(landing=False) == ["base", "new.py", "ä b.py"]


def test_a_changed_pin_reaches_the_importers_of_the_package(
    repository: list[str], tmp_path: Path, project: Path
) -> None:
    (project / "tests/test_probing.py").write_text("import pytest\nimport httpx")
    (project / "locks").mkdir()
    lock, pin = project / "locks" / "test.txt", "httpx=={} ; python_version > '3' \\\n    --hash=sha256:{}\n"
    lock.write_text(pin.format("0.1", "a"))
    commit(tmp_path, "Lock")
    lock.write_text(pin.format("0.2", "b") + "trio==1 \\\n")  # a new package: its importers are changed files
    assert selection.changed_pins(landing=False) == ["httpx"]
    changes = Changes(["locks/test.txt"], ImportGraph(project), ["httpx"])
    assert changes.reach(project / "tests/test_probing.py") == "direct"
    assert changes.reach(project / "tests/test_core.py") == "rest"


@pytest.mark.parametrize("wrong", ["this commit itself", "no ancestor of it"])
@pytest.mark.parametrize("short", [False, True])
def test_a_base_that_would_leave_out_the_change_is_refused(
    repository: list[str], tmp_path: Path, wrong: str, short: bool
) -> None:
    base = repository[2] if wrong == "this commit itself" else "0" * 40
    (tmp_path / "base").write_text(base[:12] if short else base)
    with pytest.raises(pytest.UsageError, match=rf"{wrong}.*git rev-parse HEAD > \.ci/base"):
        selection.base_of_landing()


def test_another_message_of_a_commit_chooses_no_other_tests(
    repository: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SLIPWAY_SEED", raising=False)
    before = selection.seed()
    git(tmp_path, "commit", "-q", "--amend", "-m", "Another message")
    assert selection.seed() == before


@pytest.mark.parametrize(
    ("changed", "whole"),
    [
        ("cpu/x.cpp", set()),
        ("cuda/ahead.py", set()),
        ("layer_norm/op.py", {"layer_norm"}),
        ("layer_norm/operation.cpp", {"layer_norm"}),
        ("rms_norm/kernel.py", {"layer_norm", "rms_norm", "rope"}),
    ],
)
def test_all_kernels_that_a_change_reaches_are_compiled(
    changed: str, whole: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLIPWAY_SEED", "abc")
    monkeypatch.setenv("SLIPWAY_CHANGED", f"kernels/slipway_kernels/{changed}")
    assert compiled_whole() == whole
    monkeypatch.setenv("SLIPWAY_CHANGED", "kernels/slipway_kernels/cuda/launch.py")
    assert compiled_whole() == {path.parent.name for path in selection.KERNELS.glob("*/kernel.py")}


def compiled_whole() -> set[str]:
    sample, _, whole = selection.kernels().partition(" --whole")
    assert sample == "--sample 60 --most 300 --seed abc"
    return {*whole.split()}
