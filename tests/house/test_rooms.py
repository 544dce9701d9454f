"""Which package may import which: a lower room knows nothing of a higher one, not even its types."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
RUNTIME, KERNELS = ROOT / "runtime" / "slipway", ROOT / "kernels" / "slipway_kernels"

ROOMS = (
    ("driver", "footprint", "machine", "envs", "exits", "features", "processes", "sockets"),
    ("contract", "extras", "plugins", "call_trace", "logs"),
    ("begin",),
    ("metrics",),
    ("args",),
    ("load",),
    ("schemes",),
    ("model",),
    ("dist",),
    ("worker", "text"),
    ("fit",),
    ("engine",),
    ("service",),
    ("api",),
    ("batch", "bench"),
    ("cli",),
    ("generate",),
)
"""From the lowest up; those beside each other do not import each other."""
CONTRACT = {f"slipway.engine.{name}" for name in ("config", "messages", "params", "plan")}
"""What the engine is told and tells, as data: every room may speak of it."""
FLOOR = {room: floor for floor, rooms in enumerate(ROOMS) for room in rooms}

TORCH = {
    "dist/gloo.py",
    "dist/groups.py",
    "dist/stores.py",
    "load/torch_arrays.py",
    "worker/fallback.py",
    "worker/packed_modules.py",
    "worker/probe.py",
    "worker/transformers_model.py",
}
"""Where a module may import torch or transformers as it is imported itself, but for worker/device."""


def modules(place: Path) -> Iterator[tuple[str, Path]]:
    for path in sorted(place.rglob("*.py")):
        parts = path.relative_to(place.parent).with_suffix("").parts
        yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts), path


def imported(node: ast.AST) -> list[str]:
    """What an import statement names; `from slipway import args` names slipway.args."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom) and node.module:
        if node.module == "slipway":
            return [f"slipway.{alias.name}" for alias in node.names]
        return [node.module]
    return []


def imports(path: Path) -> set[str]:
    """Everywhere in a module: in functions and for types alone, too."""
    return {name for node in ast.walk(ast.parse(path.read_text())) for name in imported(node)}


def imports_at_once(path: Path) -> set[str]:
    """What is imported with the module itself."""
    found: set[str] = set()
    left: list[ast.AST] = [ast.parse(path.read_text())]
    while left:
        node = left.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            left += node.orelse
            continue
        found.update(imported(node))
        left += ast.iter_child_nodes(node)
    return found


def room_of(module: str) -> str | None:
    """None for what stands above all rooms or below: the package itself, its version and its command."""
    if module in CONTRACT:
        return "contract"
    parts = module.split(".")
    return parts[1] if parts[0] == "slipway" and len(parts) > 1 and parts[1] in FLOOR else None


def test_every_package_has_its_place() -> None:
    found = {module.split(".")[1] for module, _ in modules(RUNTIME) if "." in module}
    assert found - {"__main__"} == set(FLOOR) - {"contract"}
    assert {module for module, _ in modules(RUNTIME)} >= CONTRACT


@pytest.mark.parametrize("room", FLOOR)
def test_no_import_leads_from_a_lower_room_to_a_higher_one(room: str) -> None:
    wrong = [
        f"{module} imports {name}"
        for module, path in modules(RUNTIME)
        if room_of(module) == room
        for name in sorted(imports(path))
        if (other := room_of(name)) is not None and other != room and FLOOR[other] >= FLOOR[room]
    ]
    assert wrong == []


def test_the_kernels_know_nothing_of_the_runtime_and_the_cpus_nothing_of_torch() -> None:
    for module, path in modules(KERNELS):
        roots = {name.split(".")[0] for name in imports(path)}
        assert "slipway" not in roots, module
        if module.startswith("slipway_kernels.cpu"):
            assert not roots & {"torch", "transformers"}, module


def test_a_model_is_described_without_worker_and_kernels() -> None:
    for module, path in modules(RUNTIME / "model"):
        assert not {name.split(".")[0] for name in imports(path)} & {"slipway_kernels"}, module


def test_torch_is_imported_where_it_computes_and_nowhere_else() -> None:
    eager = {
        str(path.relative_to(RUNTIME))
        for _, path in modules(RUNTIME)
        if {name.split(".")[0] for name in imports_at_once(path)} & {"torch", "transformers"}
    }
    assert {name for name in eager if not name.startswith("worker/device/")} == TORCH
