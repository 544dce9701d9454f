"""The commands of the Makefile, and that together they leave no check out."""

from __future__ import annotations

import re
import subprocess
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]


@cache
def make(*arguments: str) -> str:
    """What make prints; it must succeed."""
    done = subprocess.run(["make", "-C", str(ROOT), *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_every_command_of_the_help_is_known() -> None:
    commands = re.findall(r"^make (\S+)", make("help"), re.MULTILINE)
    assert {"run", "test", "check", "e2e", "aot"} <= set(commands)
    make("-n", "--keep-going", *commands)


def test_make_test_and_what_it_leaves_are_all_the_tests_on_clusters() -> None:
    of_test, left = make("-n", "test"), make("-n", "e2e", "WITHOUT=product")
    assert re.search(r"pytest e2e .*-m product$", of_test, re.MULTILINE)
    assert re.search(r'pytest e2e .*-m "not soak and not product"$', left, re.MULTILINE)
    assert re.search(r'pytest e2e .*-m "not soak"$', make("-n", "e2e"), re.MULTILINE)


def test_make_test_and_what_it_leaves_are_all_the_tests_on_this_machine() -> None:
    of_test, left = make("-n", "test"), make("-n", "exhaustive")
    assert re.search(r'pytest tests .*-m "not soak and not exhaustive"$', of_test, re.MULTILINE)
    assert re.search(r"pytest tests .*-m exhaustive$", left, re.MULTILINE)
    assert re.search(r"pytest tests/soak .*-m soak ", make("-n", "soak"), re.MULTILINE)


def test_ci_runs_the_readmes_command_and_what_it_leaves() -> None:
    commands = re.findall(r"^make (.+)$", (ROOT / ".ci" / "run").read_text(), re.MULTILINE)
    assert [one for one in commands if not one.startswith(("setup-dev", "programs"))] == [
        "test",
        "e2e WITHOUT=product",
        "aot",
    ]
