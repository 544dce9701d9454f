"""Which files a file imports, read from its syntax."""

from __future__ import annotations

from pathlib import Path

import pytest

from imports import ImportGraph

FILES = {
    "runtime/pack/__init__.py": "",
    "runtime/pack/plain.py": "import json\nfrom pack import later, types\n",
    "runtime/pack/later.py": "def run():\n    import torch.nn\n    from pack.heavy import multiply\n",
    "runtime/pack/types.py": "if TYPE_CHECKING:\n    import torch\n    import pack.heavy\n",
    "runtime/pack/heavy.py": "if True:\n    try:\n        from torch import nn\n    finally:\n        pass\n",
    "runtime/pack/main.py": "from importlib import import_module\nimport_module(f'pack.cli.{name}')\n",
    "runtime/pack/cli/__init__.py": "import_module(f'{__name__}.{name}')\n",
    "runtime/pack/cli/serve.py": "import pack.plain as plain\n",
    "runtime/pack/cli/all.py": "import importlib\nfrom pack import cli as package\n"
    "importlib.import_module(f'{package.__name__}.{name}')\nimport_module(name)\n",
    "kernels/norm/__init__.py": "ALL = ['norm']\n__getattr__ = exports(__name__, op=ALL, rows=('Rows',))\n",
    "kernels/norm/op.py": "import triton\n",
    "kernels/norm/rows.py": "",
    "tests/conftest.py": "",
    "tests/factory.py": 'PROGRAM = """\nimport torch\n"""\nimport pack.plain\n',
    "tests/worker/conftest.py": "import factory\n",
    "tests/worker/test_op.py": "from norm import norm\n",
    "tests/worker/test_rows.py": "from norm import Rows\n",
    "tests/worker/test_later.py": "from worker.near import text\nfrom deep import text as other\n",
    "tests/worker/near.py": "import pack.later\n",
    "tests/worker/deep.py": "",
    "tests/worker/saved.py": "from safetensors.torch import save_file\n",
}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("project")
    for name, text in FILES.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


@pytest.fixture(scope="module")
def graph(root: Path) -> ImportGraph:
    return ImportGraph(root)


@pytest.mark.parametrize(
    ("path", "ever", "at_module_level"),
    [
        ("runtime/pack/plain.py", "__init__ later types", "__init__ later types"),
        ("runtime/pack/later.py", "__init__ heavy", ""),
        ("runtime/pack/types.py", "", ""),
        ("runtime/pack/main.py", "cli/__init__ cli/all cli/serve", ""),
        ("runtime/pack/cli/__init__.py", "cli/all cli/serve", ""),
        ("runtime/pack/cli/all.py", "__init__ cli/__init__ cli/serve", "__init__ cli/__init__"),
        ("tests/factory.py", "__init__ plain", "__init__ plain"),
    ],
)
def test_a_file_imports_the_modules_that_it_names(
    root: Path, graph: ImportGraph, path: str, ever: str, at_module_level: str
) -> None:
    def named(names: str) -> set[Path]:
        return {root / "runtime/pack" / f"{name}.py" for name in names.split()}

    assert graph.imports(root / path) == named(ever)
    assert graph.imports(root / path, at_module_level=True) == named(at_module_level)


def test_a_name_that_a_package_imports_when_asked_is_of_that_module(root: Path, graph: ImportGraph) -> None:
    conftests = {root / "tests/conftest.py", root / "tests/worker/conftest.py"}
    package = root / "kernels/norm/__init__.py"
    assert graph.imports(root / "tests/worker/test_op.py") == {
        package,
        root / "kernels/norm/op.py",
        *conftests,
    }
    assert graph.imports(root / "tests/worker/test_rows.py") == {
        package,
        root / "kernels/norm/rows.py",
        *conftests,
    }
    assert graph.imports(package) == {root / "kernels/norm/op.py", root / "kernels/norm/rows.py"}
    assert graph.imports(package, at_module_level=True) == set()


def test_modules_are_found_beside_a_script_and_in_the_folders_above(root: Path, graph: ImportGraph) -> None:
    found = graph.imports(root / "tests/worker/test_later.py")
    assert {root / "tests/worker/near.py", root / "tests/worker/deep.py"} < found


def test_a_closure_follows_imports_to_their_end(root: Path, graph: ImportGraph) -> None:
    test = root / "tests/worker/test_later.py"
    beside = {test, test.with_name("near.py"), test.with_name("deep.py"), test.with_name("conftest.py")}
    packed = {root / f"runtime/pack/{name}.py" for name in ("__init__", "plain", "later", "types")}
    at_once = beside | packed | {root / "tests/conftest.py", root / "tests/factory.py"}
    assert graph.closure(test, at_module_level=True) == at_once
    assert graph.closure(test) == at_once | {root / "runtime/pack/heavy.py"}


@pytest.mark.parametrize(
    ("path", "needs"),
    [
        ("runtime/pack/heavy.py", True),
        ("runtime/pack/later.py", False),  # in a function
        ("runtime/pack/types.py", False),  # for types alone
        ("tests/factory.py", False),  # in a string
        ("tests/worker/test_op.py", True),  # Triton, which is named by a chain of two
        ("tests/worker/test_rows.py", False),
        ("tests/worker/test_later.py", False),
        ("tests/worker/saved.py", True),  # by a part of a package that is made for torch
    ],
)
def test_a_file_needs_the_packages_that_are_imported_with_it(
    root: Path, graph: ImportGraph, path: str, needs: bool
) -> None:
    assert graph.needs(root / path) is needs
    assert not graph.needs(root / path, {"numpy"})


def test_packages_outside_the_project_are_told_by_their_first_name(root: Path, graph: ImportGraph) -> None:
    assert graph.packages(root / "runtime/pack/later.py") == {"torch"}
    assert graph.packages(root / "runtime/pack/later.py", at_module_level=True) == set()
    assert graph.packages(root / "runtime/pack/plain.py") == {"json"}


def test_this_projects_own_imports_are_found() -> None:
    root = Path(__file__).parents[2]
    graph = ImportGraph(root)
    served = graph.closure(root / "runtime/slipway/__main__.py")
    assert root / "runtime/slipway/api/routes/tokenize.py" in served
    assert root / "runtime/slipway/model/families/qwen3.py" in served
    assert not graph.needs(root / "runtime/slipway/__main__.py")
    assert graph.needs(root / "runtime/slipway/worker/fallback.py")
    assert graph.needs(root / "kernels/slipway_kernels/rms_norm/kernel.py", {"triton"})


def test_what_all_tests_share_leads_neither_to_the_engine_nor_to_the_operator() -> None:
    """Otherwise every change to either reaches all tests, and the sample rarely holds those that matter."""
    root = Path(__file__).parents[2]
    shared = ImportGraph(root).closure(root / "tests/conftest.py")
    assert root / "tests/imports.py" in shared
    for room in (
        "runtime/slipway/engine/core.py",
        "runtime/slipway/api/app.py",
        "operator/slipway_operator/main.py",
    ):
        assert (root / room).exists()
        assert root / room not in shared
