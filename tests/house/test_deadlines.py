"""What a test waits for may take longer on a slower machine: its deadline is scaled."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from e2e.ground.patience import at_most, scaled

ROOT = Path(__file__).parents[2]
WAITS = {"communicate", "join", "settimeout", "timeout", "wait", "Timeout"}
"""Calls whose first argument is a deadline."""
MEANT_TO_PASS = 4.0
"""Shorter ones are polls, and deadlines that a test wants to see passed."""
ALONE = {("tests/soak/probe.py", 60)}
"""A program by itself, beside the tests."""


def unscaled(source: str) -> Iterator[tuple[int, float]]:
    """Line and seconds of each deadline that is a number alone."""
    for node in ast.walk(ast.parse(source)):
        found: list[ast.expr] = []
        if isinstance(node, ast.Call):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            found += [word.value for word in node.keywords if word.arg == "timeout"]
            found += node.args[:1] if name in WAITS else []
            found += node.args[1:2] if ast.unparse(node.func) == "asyncio.wait_for" else []
            found += node.args[3:4] if ast.unparse(node.func) == "select.select" else []
        elif isinstance(node, ast.BinOp) and ast.unparse(node.left) == "time.monotonic()":
            found.append(node.right)
        for deadline in found:
            seconds = deadline.value if isinstance(deadline, ast.Constant) else None
            if isinstance(seconds, int | float) and seconds >= MEANT_TO_PASS:
                yield deadline.lineno, seconds


def test_deadlines_are_scaled():
    files = [*ROOT.glob("tests/**/*.py"), *ROOT.glob("e2e/**/*.py")]
    found = {
        (str(path.relative_to(ROOT)), line, seconds)
        for path in files
        for line, seconds in unscaled(path.read_text())
    }
    assert {one for one in found if (one[0], one[2]) not in ALONE} == set()


def test_they_are_found_wherever_they_stand():
    source = """
process.wait(30)
process.wait(0.1)
process.communicate(timeout=30)
asyncio.wait_for(task, 5)
end = time.monotonic() + 60
select.select([file], [], [], 10)
process.wait(scaled(30))
"""
    assert list(unscaled(source)) == [(2, 30), (4, 30), (5, 5), (6, 60), (7, 10)]


def test_a_slow_machine_waits_longer_and_tells_what_it_starts():
    code = (
        "from e2e.ground.patience import SLOWNESS, at_most, scaled; print(SLOWNESS, scaled(10), at_most(60))"
    )
    started = os.environ | {"TESTS_SLOWNESS": "2.50"}
    said = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=started, capture_output=True, text=True)
    assert said.stdout.split() == ["2.5", "75.0", "--timeout=450s"], said.stderr
    assert scaled(1) >= 3
    assert at_most(1).startswith("--timeout=")
