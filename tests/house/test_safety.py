"""Rules that every file of the project keeps, read from its syntax tree."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = sorted(
    path for folder in ("runtime", "kernels", "operator", "bench") for path in (ROOT / folder).rglob("*.py")
)
BANNED_MODULES = {"pickle", "cloudpickle", "dill", "shelve", "marshal", "multiprocessing"}
LIGHT = (
    "slipway",
    "slipway.args",
    "slipway.envs",
    "slipway.metrics",
    "slipway.service",
    "slipway.cli.main",
)
HEAVY = {"torch", "numpy", "transformers", "fastapi", "pydantic", "tokenizers", "yaml", "uvicorn"}


def violations(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                yield from (a.name for a in names if a.name.split(".")[0] in BANNED_MODULES)
            case ast.ImportFrom(module=str(module)) if module.split(".")[0] in BANNED_MODULES:
                yield module
            case ast.Call(func=ast.Attribute(value=ast.Name(id="torch"), attr="load"), keywords=keywords):
                if not any(
                    k.arg == "weights_only" and getattr(k.value, "value", 0) is True for k in keywords
                ):
                    yield "torch.load without weights_only=True"
            case ast.Call(func=ast.Name(id=("eval" | "exec") as name)):
                yield name
            case ast.keyword(arg="trust_remote_code", value=ast.Constant(value=True)):
                yield "a literal trust_remote_code=True"


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_file_unpickles_evaluates_or_trusts_remote_code(path: Path):
    assert list(violations(ast.parse(path.read_text()))) == []


def test_the_ban_sees_what_it_bans():
    bad = "import pickle; torch.load(x); f(trust_remote_code=True); eval('1')\nfrom marshal import loads"
    assert len(list(violations(ast.parse(bad)))) == 5


def modules_after(statement: str) -> set[str]:
    code = f"{statement}\nimport sys; print(*sorted({{name.split('.')[0] for name in sys.modules}}))"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(answer.stdout.split())


@pytest.mark.parametrize("package", LIGHT)
def test_the_schema_and_the_command_line_import_nothing_heavy(package: str):
    assert modules_after(f"import {package}") & HEAVY == set()


def test_the_api_process_imports_neither_torch_nor_transformers():
    loaded = modules_after(
        "import slipway.api.server, slipway.api.app, slipway.text.tokenizer, slipway.engine.client"
    )
    assert loaded & {"torch", "transformers", "numpy"} == set()


def test_the_parent_of_several_api_processes_imports_nothing_of_the_api_itself():
    heavy = HEAVY | {"torch", "transformers", "numpy", "starlette", "uvicorn", "uvloop", "prometheus_client"}
    assert modules_after("import slipway.api.server, slipway.api.supervisor") & heavy == set()


def test_no_package_shadows_pythons_operator_or_the_kernels_library():
    assert not (ROOT / "operator" / "__init__.py").exists()
    assert not (ROOT / "kernels" / "__init__.py").exists()


def test_no_two_modules_of_tests_have_one_name():
    """pytest imports them by their names alone: the second would be the first."""
    counted = Counter(path.name for path in (ROOT / "tests").rglob("*.py"))
    assert [name for name, number in counted.items() if number > 1 and name != "conftest.py"] == []
