"""`python tools/check_types.py`: mypy, also where torch is not installed.

Without torch its types are unknown, and errors in the files that import it mean nothing: these files are left
to an environment that has torch.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests.imports import TORCH, ImportGraph  # noqa: E402

PLACES = ("runtime", "kernels", "operator")


def unknown() -> list[str]:
    """The modules of the project that import torch, or a package that needs it."""
    graph = ImportGraph(ROOT)
    found = []
    for place in PLACES:
        for path in sorted((ROOT / place).rglob("*.py")):
            if TORCH & graph.packages(path):
                parts = path.relative_to(ROOT / place).with_suffix("").parts
                found.append(".".join(parts[:-1] if parts[-1] == "__init__" else parts))
    return found


def overrides() -> str:
    """Configuration to append to the project's, with which torch need not be there."""
    packages = ", ".join(f'"{name}", "{name}.*"' for name in sorted(TORCH))
    modules = ", ".join(f'"{name}"' for name in unknown())
    return f"""
[[tool.mypy.overrides]]
module = [{packages}]
ignore_missing_imports = true

[[tool.mypy.overrides]]
module = [{modules}]
ignore_errors = true
"""


def main() -> int:
    whole = importlib.util.find_spec("torch") is not None
    with tempfile.TemporaryDirectory() as place:
        configuration = Path(place) / "pyproject.toml"
        configuration.write_text((ROOT / "pyproject.toml").read_text() + ("" if whole else overrides()))
        words = [sys.executable, "-m", "mypy", "--config-file", str(configuration), *sys.argv[1:]]
        status = subprocess.run(words, cwd=ROOT, check=False).returncode
    if not whole and not status:
        print(f"{len(unknown())} files import torch, which is not installed: their types were not checked.")
    return status


if __name__ == "__main__":
    sys.exit(main())
