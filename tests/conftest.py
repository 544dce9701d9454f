"""What tests of several packages share."""

from __future__ import annotations

import os
import resource
import sys
from collections import Counter
from collections.abc import Callable, Generator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(1, str(Path(__file__).parents[1] / "bench"))  # quantize.py packs what tests read

from e2e.ground.patience import HEADER

from factory import ARCHITECTURES, model_folders
from imports import NOT_IN_TEST, ImportGraph
from slipway import driver

for name in [name for name in os.environ if name.startswith("GIT_")]:
    del os.environ[name]  # git sets them for hooks: with them, tests would commit to this repository

# Hypothesis does the same by itself where CI is set: no deadlines, and the same examples in every run.
settings.register_profile(
    "repeatable", deadline=None, derandomize=True, database=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("repeatable")

if not driver.loaded():
    os.environ["TRITON_INTERPRET"] = "1"  # read when Triton is imported, whichever test does so first


GRAPH = ImportGraph(Path(__file__).parents[1])
MISSING = {name for name in NOT_IN_TEST if find_spec(name) is None}
FILES, TESTS = pytest.StashKey[set[str]](), pytest.StashKey[int]()
TOLD = pytest.StashKey[tuple[int, int]]()
"""Without torch: which files are left out, how many tests, and both numbers as a worker counted them."""

OPERATIONS = pytest.StashKey[set[Path]]()
INTERPRETED = ("tests/kernels/cuda/", "tests/worker/device/")
"""Where Triton's interpreter runs the kernels: a third of all the time that tests take."""
MOST_MEMORY = 8 << 30
"""Bytes of a process at its peak. Linux ends the largest where two workers' processes take more than there
is, without a word of which test it was."""


def pytest_report_header() -> str:
    return HEADER


def pytest_itemcollected(item: pytest.Item) -> None:
    """Interpreted tests are slow. One of each operation on CUDA is `core`: the first of its file."""
    if item.nodeid.startswith(INTERPRETED):
        item.add_marker("slow")
        item.add_marker("interpreted")
    seen = item.config.stash.setdefault(OPERATIONS, set())
    if item.nodeid.startswith(INTERPRETED[0]) and item.path not in seen:
        seen.add(item.path)
        item.add_marker("core")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Files that import a package which is not installed, and folders whose conftest.py does."""
    if not MISSING:
        return None
    conftest = collection_path / "conftest.py"
    if conftest.exists() and GRAPH.needs(conftest, MISSING):
        left_out = {str(path) for path in collection_path.rglob("test_*.py")}
    elif collection_path.match("test_*.py") and GRAPH.needs(collection_path, MISSING):
        left_out = {str(collection_path)}
    else:
        return None
    asked = [config.invocation_params.dir / name.partition("::")[0] for name in config.args]
    named = {path for path in left_out if any(Path(path).is_relative_to(place) for place in asked)}
    config.stash.setdefault(FILES, set()).update(named)
    return True


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Without those marked torch where it is not installed, and in an order.

    Files with slow tests first, then those with many: no worker is left alone with a long one at the end. For
    a run that does not order them by itself (xdist's --no-loadscope-reorder).
    """
    if "torch" in MISSING:
        left_out = [item for item in items if item.get_closest_marker("torch")]
        config.stash[TESTS] = len(left_out)
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]
    sizes = Counter(item.path for item in items)
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: (item.path not in slow, -sizes[item.path]))


def pytest_sessionfinish(session: pytest.Session) -> None:
    """A worker tells the process that prints the summary; all of them collect the same."""
    if (told := getattr(session.config, "workeroutput", None)) is not None:
        told["without torch"] = _left_out(session.config)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """A test's random tensors, and those of fixtures made for it, depend on no test that ran before."""
    if (torch := sys.modules.get("torch")) is not None:
        torch.manual_seed(0)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """A test that takes too much memory fails, also where nothing runs beside it."""
    before = _peak_memory()
    result = yield
    if (peak := _peak_memory()) > max(before, MOST_MEMORY):
        pytest.fail(f"{item.nodeid} took {peak / 2**30:.1f} GiB, and a test has {MOST_MEMORY / 2**30:.0f}.")
    return result


def _peak_memory() -> int:
    """Bytes that this process, or one that it has started and waited for, took at its peak."""
    whose = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    return max(resource.getrusage(one).ru_maxrss for one in whose) << 10


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    node.config.stash[TOLD] = getattr(node, "workeroutput", {}).get("without torch", (0, 0))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    files, tests = config.stash.get(TOLD, None) or _left_out(config)
    if files or tests:
        named = " or ".join(sorted(MISSING - {"transformers", "triton"}))
        are = "are" if " or " in named else "is"
        said = (
            f"{files} files and {tests} tests need {named}, which {are} not installed: they belong to .ci/run"
        )
        terminalreporter.write_line(said)


def _left_out(config: pytest.Config) -> tuple[int, int]:
    return len(config.stash.get(FILES, ())), config.stash.get(TESTS, 0)


@pytest.fixture(scope="session")
def demo_model() -> Path:
    """The demo model's GGUF file, fetched when it is not in the cache."""
    from slipway.load.demo import fetch

    return fetch()


@pytest.fixture
def cluster_key(tmp_path: Path) -> Path:
    """A file for --cluster-key-file."""
    path = tmp_path / "key"
    path.write_bytes(b"k" * 32)
    path.chmod(0o600)
    return path


@pytest.fixture(scope="session")
def tiny_models(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Folder of the tiny random model of an architecture; each is made once a session."""
    return model_folders(tmp_path_factory.mktemp("models"), {name: (name, {}) for name in ARCHITECTURES})
