"""Which package may import which: a lower room knows nothing of a higher one, not even its types."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
RUNTIME, KERNELS = ROOT / "runtime" / "slipway", ROOT / "kernels" / "slipway_kernels"
OPERATOR = ROOT / "operator" / "slipway_operator"

ROOMS = (
    ("driver", "footprint", "machine", "envs", "exits", "features", "processes", "sockets", "topology"),
    ("contract", "extras", "temporary", "plugins", "call_trace", "logs"),
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
    "worker/attention_masks.py",
    "worker/fallback.py",
    "worker/packed_modules.py",
    "worker/probe.py",
    "worker/transformers_model.py",
    "worker/trial.py",
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


class Imports(NamedTuple):
    """What a module imports: in functions and for types alone too, and with the module itself."""

    anywhere: frozenset[str]
    at_once: frozenset[str]


@cache
def imports(path: Path) -> Imports:
    return imports_of(path.read_text())


def imports_of(source: str) -> Imports:
    anywhere: set[str] = set()
    at_once: set[str] = set()
    left: list[tuple[ast.AST, bool]] = [(ast.parse(source), True)]
    while left:
        node, is_at_once = left.pop()
        names = imported(node)
        anywhere.update(names)
        if is_at_once:
            at_once.update(names)
        # An import is a statement and stands among statements: no expression is looked into.
        for field in ("body", "orelse", "handlers", "finalbody", "cases"):
            deferred = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) or (
                field == "body" and isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
            )
            left += [(child, is_at_once and not deferred) for child in getattr(node, field, ())]
    return Imports(frozenset(anywhere), frozenset(at_once))


def roots(names: frozenset[str]) -> set[str]:
    return {name.split(".")[0] for name in names}


def test_an_import_is_seen_wherever_it_stands() -> None:
    found = imports_of(
        """
import a.b
if TYPE_CHECKING:
    import c
else:
    from slipway import d
def f():
    with e:
        import g
class H:
    try:
        import i
    except J:
        for k in l:
            import m
    finally:
        import n
match o:
    case p:
        async def q():
            from r.s import t
"""
    )
    assert found.at_once == {"a.b", "slipway.d", "i", "m", "n"}
    assert found.anywhere == found.at_once | {"c", "g", "r.s"}


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


def test_no_import_leads_from_a_lower_room_to_a_higher_one() -> None:
    wrong = [
        f"{module} imports {name}"
        for module, path in modules(RUNTIME)
        if (room := room_of(module)) is not None
        for name in sorted(imports(path).anywhere)
        if (other := room_of(name)) is not None and other != room and FLOOR[other] >= FLOOR[room]
    ]
    assert not wrong, "\n".join(wrong)


def test_the_kernels_know_nothing_of_the_runtime_and_the_cpus_nothing_of_torch() -> None:
    wrong = []
    for module, path in modules(KERNELS):
        banned = {"slipway"}
        if module.startswith("slipway_kernels.cpu"):
            banned |= {"torch", "transformers"}
        wrong += [f"{module} imports {name}" for name in roots(imports(path).anywhere) & banned]
    assert not wrong, "\n".join(wrong)


def test_a_model_is_described_without_worker_and_kernels() -> None:
    found = {
        module
        for module, path in modules(RUNTIME / "model")
        if "slipway_kernels" in roots(imports(path).anywhere)
    }
    assert found == set()


def test_torch_is_imported_where_it_computes_and_nowhere_else() -> None:
    eager = {
        str(path.relative_to(RUNTIME))
        for _, path in modules(RUNTIME)
        if roots(imports(path).at_once) & {"torch", "transformers"}
    }
    assert {name for name in eager if not name.startswith("worker/device/")} == TORCH


def test_no_module_of_the_operator_has_the_name_of_one_of_the_service() -> None:
    """Both are read together: `explain` or `resources` must be one thing."""
    names = {path.stem.removesuffix("s") for path in OPERATOR.glob("[!_]*.py")}
    assert names & {path.stem.removesuffix("s") for path in (RUNTIME / "service").glob("[!_]*.py")} == set()


def test_one_module_of_the_operator_knows_kopf() -> None:
    found = {path.name for path in OPERATOR.glob("*.py") if "kopf" in roots(imports(path).anywhere)}
    assert found == {"service_watch.py"}
