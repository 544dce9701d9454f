"""tools/packages.sh beside another program's apt."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LOCK = "E: Could not get lock /var/lib/dpkg/lock-frontend. It is held by process 7 (unattended-upgr)"
APT = """#!/usr/bin/env bash
echo "$*" >>"$SEEN"
[ "$(wc -l <"$SEEN")" -gt "$REFUSALS" ] || { echo "$SAID" >&2; exit 100; }
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="packages are installed by root alone")
@pytest.mark.parametrize(
    ("said", "calls", "code"),
    [
        (LOCK, ["update", "update", "install"], 0),
        ("E: Unable to locate package zebra", ["update"], 100),
    ],
)
def test_a_lock_is_waited_for_and_anything_else_fails(
    tmp_path: Path, said: str, calls: list[str], code: int
) -> None:
    (tmp_path / "apt-get").write_text(APT)
    (tmp_path / "apt-get").chmod(0o755)
    seen = tmp_path / "seen"
    environ = {
        **os.environ,
        **{"PATH": f"{tmp_path}:{os.environ['PATH']}", "TMPDIR": str(tmp_path)},
        **{"SEEN": str(seen), "REFUSALS": "1", "SAID": said},
    }
    command = ["tools/packages.sh", "zebra"]
    done = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True)
    assert done.returncode == code, done.stderr
    assert [line.split()[1] for line in seen.read_text().splitlines()] == calls
    assert (said in done.stderr) == bool(code)
