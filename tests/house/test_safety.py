"""Rules that every file of the project keeps, read from its syntax tree."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = sorted(
    path for folder in ("runtime", "kernels", "operator", "bench") for path in (ROOT / folder).rglob("*.py")
)
BANNED_MODULES = {"pickle", "cloudpickle", "dill", "shelve", "marshal", "multiprocessing"}
BANNED_WORDS = re.compile("|".join([*BANNED_MODULES, "torch", "eval", "exec", "trust_remote_code"]))
"""One of them stands in each file with a violation: a file without any needs no syntax tree."""
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


def banned(paths: Iterable[Path]) -> Iterator[str]:
    """File and violation."""
    for path in paths:
        # An identifier may be written in other letters than it means.
        if BANNED_WORDS.search(unicodedata.normalize("NFKC", text := path.read_text())):
            yield from (f"{path}: {violation}" for violation in violations(ast.parse(text)))


def test_no_file_unpickles_evaluates_or_trusts_remote_code():
    assert not (found := list(banned(SOURCES))), "\n".join(found)


@pytest.mark.parametrize(
    "bad",
    [
        "import pickle",
        "from marshal import loads",
        "torch.load(x)",
        "f(trust_remote_code=True)",
        "eval('1')",
        "𝐞xec('1')",
    ],
)
def test_the_ban_sees_what_it_bans(bad: str, tmp_path: Path):
    (tmp_path / "bad.py").write_text(f"def f():\n    {bad}\n")
    assert len(list(banned([tmp_path / "bad.py"]))) == 1


def modules_after(statement: str) -> set[str]:
    code = f"{statement}\nimport sys; print(*sorted({{name.split('.')[0] for name in sys.modules}}))"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(answer.stdout.split())


def test_the_schema_and_the_command_line_import_nothing_heavy():
    """One process imports them all: what is missing afterwards none of them has imported."""
    assert modules_after(f"import {', '.join(LIGHT)}") & HEAVY == set()


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
