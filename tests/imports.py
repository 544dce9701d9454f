"""Which files of the project a file imports, read from the syntax: nothing is imported to find out.

A file's imports tell which changes reach a test, and whether it can run where a package is not installed.
"""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

PLACES = ("tests", "tools", "bench", "bench/gpu", "runtime", "kernels", "operator", "")
"""Folders that modules are looked for in, after those above the file that imports them."""
TORCH = frozenset({"torch", "transformers", "triton"})
NOT_IN_TEST = TORCH | {"mistral_common"}
"""Packages that tests import when they are collected and that `make test` does not install."""

_MAY_IMPORT = re.compile(rb"^[ \t]*(?:import|from)\b|import_module\(|^__getattr__ = ", re.MULTILINE)
_NAMED = re.compile(rb"""["'](slipway(?:_operator|_kernels)?(?:\.\w+)*)["']""")
_BEGINS_STATEMENT = re.compile(rb"^[^\s#)\]}]", re.MULTILINE)


class Statement(NamedTuple):
    """`from name import member`, `import name`, or a call of import_module, with * for what is not known."""

    name: str
    member: str | None
    at_module_level: bool


class ImportGraph:
    """The Python files below `root`, and which imports which. Each is parsed once, when first asked for.

    A file imports the modules that its statements name, with the __init__.py of their packages; those that
    its calls of import_module may name; if it is a test, the conftest.py of the folders above it; and in
    tests/ and e2e/ what a string names: `slipway_operator` is started, `slipway.engine.core.Core` replaced.
    What stands under `if TYPE_CHECKING:` does not count. With `at_module_level`, neither do imports in
    functions.
    """

    def __init__(self, root: Path) -> None:
        self.root = root.resolve()
        self._paths = {str(path): path for path in _python_files(self.root)}
        self._files: dict[str, _File] = {}
        self._direct: dict[tuple[str, bool], tuple[set[str], set[str]]] = {}
        self._found: dict[tuple[str, str], tuple[str, ...]] = {}
        self._places: dict[str, list[str]] = {}

    def files(self) -> Iterable[Path]:
        return self._paths.values()

    def imports(self, path: Path, *, at_module_level: bool = False) -> set[Path]:
        """The project's files that a file itself imports."""
        return {self._paths[each] for each in self._of(str(path.resolve()), at_module_level)[0]}

    def packages(self, path: Path, *, at_module_level: bool = False) -> set[str]:
        """The packages outside the project, the standard library's too, that a file itself imports."""
        return {*self._of(str(path.resolve()), at_module_level)[1]}

    def closure(self, path: Path, *, at_module_level: bool = False) -> set[Path]:
        """A file, the files that it imports, those that they import, and so on."""
        return {self._paths[each] for each in self._closure(path, at_module_level)}

    def distance(self, path: Path, others: Iterable[Path]) -> int | None:
        """The number of imports from a file to the nearest of the others; None if none leads there."""
        wanted = {str(other) for other in others}
        seen = level = {str(path.resolve())}
        count = 0
        while level and not level & wanted:
            level = set().union(*(self._of(each, False)[0] for each in level)) - seen
            seen = seen | level
            count += 1
        return count if level else None

    def needs(self, path: Path, packages: Iterable[str] = TORCH) -> bool:
        """Whether one of these packages is imported when the file is."""
        wanted = {*packages}
        return any(wanted & self._of(each, True)[1] for each in self._closure(path, True))

    def _closure(self, path: Path, at_module_level: bool) -> set[str]:
        found: set[str] = set()
        left = {str(path.resolve())}
        while left:
            each = left.pop()
            found.add(each)
            left |= self._of(each, at_module_level)[0] - found
        return found

    def _of(self, path: str, at_module_level: bool) -> tuple[set[str], set[str]]:
        """The project's files and the other packages that a file imports."""
        key = (path, at_module_level)
        if key not in self._direct:
            files: set[str] = set()
            packages: set[str] = set()
            for statement in self._file(path).statements:
                if statement.at_module_level or not at_module_level:
                    found = self._resolved(path, statement)
                    files |= found
                    if not found and "*" not in statement.name:
                        parts = statement.name.split(".")
                        packages |= {parts[0]} | TORCH.intersection(parts)  # safetensors.torch imports torch
            if os.path.basename(path).startswith("test_"):
                above = (f"{folder}/conftest.py" for folder in self._above(os.path.dirname(path)))
                files.update(conftest for conftest in above if conftest in self._paths)
            self._direct[key] = (files - {path}, packages)
        return self._direct[key]

    def _file(self, path: str) -> _File:
        if path not in self._files:
            tests = self._paths[path].relative_to(self.root).parts[0] in ("tests", "e2e")
            self._files[path] = _File(self._paths[path].read_bytes(), self._module(path), tests)
        return self._files[path]

    def _module(self, path: str) -> str:
        """The name by which others import a file: a script's its own, with its packages' a module's."""
        folder, name = os.path.split(path.removesuffix(".py").removesuffix("/__init__"))
        while f"{folder}/__init__.py" in self._paths:
            folder, package = os.path.split(folder)
            name = f"{package}.{name}"
        return name

    def _resolved(self, path: str, statement: Statement) -> set[str]:
        name, member, _ = statement
        if "*" in name:
            pattern = f"{name.replace('.', '/')}.py"
            return {str(file) for place in PLACES for file in (self.root / place).glob(pattern)}
        found = self._find(path, name)
        if member is None:
            return {*found}
        modules = {member}
        if found and found[-1].endswith("/__init__.py") and found[-1] != path:
            modules.add(self._file(found[-1]).exports.get(member, member))
        return {*found}.union(*(self._find(path, f"{name}.{module}") for module in modules))

    def _find(self, path: str, name: str) -> tuple[str, ...]:
        """A module's file, after the __init__.py of its packages; nothing if the project has none such."""
        folder = os.path.dirname(path)
        if (folder, name) not in self._found:
            if folder not in self._places:
                scripts = (each for each in self._above(folder) if f"{each}/__init__.py" not in self._paths)
                named = (str(self.root / place) for place in PLACES)
                self._places[folder] = [*dict.fromkeys([*scripts, *named])]
            found = (self._below(place, name) for place in self._places[folder])
            self._found[folder, name] = next(filter(None, found), ())
        return self._found[folder, name]

    def _below(self, place: str, name: str) -> tuple[str, ...]:
        stem = f"{place}/{name.replace('.', '/')}"
        for file in (f"{stem}/__init__.py", f"{stem}.py"):
            if file in self._paths:
                parts = name.split(".")
                packages = ("/".join([place, *parts[:end], "__init__.py"]) for end in range(1, len(parts)))
                return (*(each for each in packages if each in self._paths), file)
        return ()

    def _above(self, folder: str) -> Iterator[str]:
        """The folder and those above it, up to the root."""
        while folder.startswith(str(self.root)):
            yield folder
            folder = os.path.dirname(folder)


class _File:
    """What one file says, before it is known which of its imports are files of the project."""

    def __init__(self, source: bytes, module: str, tests: bool) -> None:
        tree = _parsed(source)
        self.exports = _exports(tree) if b"\n__getattr__ = " in source else {}
        self.statements = [*_statements(tree.body, module, True)]
        self.statements += [Statement(f"{module}.{name}", None, False) for name in {*self.exports.values()}]
        if tests:
            self.statements += _named(source)
        if b"import_module(" in source:
            self.statements += _calls(tree, module)


def _python_files(root: Path) -> Iterator[Path]:
    for folder, folders, names in os.walk(root):
        folders[:] = [name for name in folders if name[0] not in "._"]
        yield from (Path(folder, name) for name in names if name.endswith(".py"))


def _parsed(source: bytes) -> ast.Module:
    """The syntax tree up to the last import: to parse all the rest takes most of the time."""
    last = max((found.end() for found in _MAY_IMPORT.finditer(source)), default=0)
    after = _BEGINS_STATEMENT.search(source, source.find(b"\n", last) + 1 or len(source))
    if after:
        try:
            return ast.parse(source[: after.start()])
        except SyntaxError:  # that was within a string
            pass
    return ast.parse(source)


def _statements(body: Iterable[ast.AST], module: str, at_module_level: bool) -> Iterator[Statement]:
    for node in body:
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Statement(alias.name, None, at_module_level)
        elif isinstance(node, ast.ImportFrom):
            name = node.module or ""
            if node.level:
                raise ValueError(f"{module} has a relative import, which no file of the project has")
            for alias in node.names:
                yield Statement(name, alias.name, at_module_level)
        elif not (isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)):
            later = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
            for block in ("body", "handlers", "orelse", "finalbody", "cases"):
                inner = getattr(node, block, None)
                if isinstance(inner, list):
                    yield from _statements(inner, module, at_module_level and not later)


def _calls(tree: ast.Module, module: str) -> Iterator[Statement]:
    """import_module(f"slipway.cli.{name}") imports slipway.cli.*, as far as is known."""
    aliases = {
        alias.asname or alias.name: f"{node.module}.{alias.name}"
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
            name = _spelt(node.args[0], module, aliases)
            if name[:1] != "*":
                yield Statement(name, None, False)


def _named(source: bytes) -> Iterator[Statement]:
    for found in {*_NAMED.findall(source)}:
        name, _, member = found.decode().rpartition(".")
        yield Statement(name, member, False) if name else Statement(f"{member}.__main__", None, False)


def _spelt(node: ast.expr, module: str, aliases: dict[str, str]) -> str:
    if isinstance(node, ast.JoinedStr):
        return "".join(_spelt(part, module, aliases) for part in node.values)
    if isinstance(node, ast.Constant):
        return str(node.value)
    text = ast.unparse(node.value if isinstance(node, ast.FormattedValue) else node)
    if text == "__name__":
        return module
    return aliases.get(text.removesuffix(".__name__"), "*")


def _exports(tree: ast.Module) -> dict[str, str]:
    """Which module of a package has a name that the package imports when it is asked for.

    `__getattr__ = exports(__name__, op=("add", "shrink"))`: kernels/slipway_kernels/exports.py.
    """
    values = {ast.unparse(node.targets[0]): node.value for node in tree.body if isinstance(node, ast.Assign)}
    call = values.get("__getattr__")
    found: dict[str, str] = {}
    for keyword in call.keywords if isinstance(call, ast.Call) else ():
        names = keyword.value
        names = values[names.id] if isinstance(names, ast.Name) else names
        found |= {name: str(keyword.arg) for name in ast.literal_eval(names)}
    return found
