"""Where a source file can be made wrong by changing a few characters: the operators of tools/mutants.py.

Each point is a fault that a programmer could make: `<=` for `<`, a negated condition, a missing call.
Texts, log calls, annotations, assertions, versions and generated files stay: no test should notice them.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

COMPARISONS: dict[type[ast.cmpop], tuple[str, str]] = {
    ast.Lt: ("<", "<="),
    ast.LtE: ("<=", "<"),
    ast.Gt: (">", ">="),
    ast.GtE: (">=", ">"),
    ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="),
    ast.Is: ("is", "is not"),
    ast.IsNot: ("is not", "is"),
    ast.In: ("in", "not in"),
    ast.NotIn: ("not in", "in"),
}
OPPOSITES = (ast.Eq, ast.NotEq, ast.Is, ast.IsNot, ast.In, ast.NotIn)
"""Comparisons whose mutant is already the negation of the whole."""
ARITHMETIC: dict[type[ast.operator], tuple[str, str]] = {
    ast.Add: ("+", "-"),
    ast.Sub: ("-", "+"),
    ast.Mult: ("*", "//"),
    ast.FloorDiv: ("//", "*"),
    ast.Div: ("/", "*"),
    ast.Mod: ("%", "//"),
}
EXTREMES = {"min": "max", "max": "min", "minimum": "maximum", "maximum": "minimum"}
LOGS = {"log", "logger", "logging", "warnings"}
TIGHT = (ast.Name, ast.Attribute, ast.Call, ast.Subscript)
"""Expressions that need no parentheses beside any operator."""
LOOSE = (ast.BoolOp, ast.IfExp, ast.NamedExpr, ast.Lambda)
"""Expressions that `not` would not take as a whole."""
DECLARED_ONLY = {"frozen", "slots"}
"""Keywords of classes that forbid what no code does."""
GENERATED = re.compile(r"^(#|//|/\*).*\b[Gg]enerated (by|from)\b", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Point:
    """Characters `start` to `end` of a file, which are `before`, become `after`."""

    start: int
    end: int
    operator: str
    before: str
    after: str

    def apply(self, source: str) -> str:
        assert source[self.start : self.end] == self.before
        return source[: self.start] + self.after + source[self.end :]


def points(path: str, source: str) -> list[Point]:
    """All of a file, in their order; none of a file in another language or that was generated."""
    if GENERATED.search("\n".join(source.split("\n")[:3])):
        return []
    suffix = path.rpartition(".")[2]
    found = PythonPoints(source).found if suffix == "py" else []
    if suffix in ("cpp", "inl", "h"):
        found = CppPoints(source).found
    return sorted(found, key=lambda point: (point.start, point.end, point.operator, point.after))


class PythonPoints(ast.NodeVisitor):
    """The syntax tree says what may change, the tokens between its nodes where."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.found: list[Point] = []
        self.lines = source.split("\n")
        self.begins = [0]
        for line in self.lines:
            self.begins.append(self.begins[-1] + len(line) + 1)
        self.tokens = [
            (self.begins[token.start[0] - 1] + token.start[1], token.string)
            for token in tokenize.generate_tokens(io.StringIO(source).readline)
            if token.type in (tokenize.OP, tokenize.NAME)
        ]
        self.visit(ast.parse(source))

    def offset(self, line: int, column: int) -> int:
        """Of a place as the syntax tree has it, whose columns are bytes."""
        return self.begins[line - 1] + len(self.lines[line - 1].encode()[:column].decode())

    def span(self, node: ast.expr | ast.stmt) -> tuple[int, int]:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return self.offset(node.lineno, node.col_offset), self.offset(node.end_lineno, node.end_col_offset)

    def text(self, node: ast.expr | ast.stmt) -> str:
        start, end = self.span(node)
        return self.source[start:end]

    def add(self, operator: str, span: tuple[int, int], after: str) -> None:
        self.found.append(Point(*span, operator, self.source[slice(*span)], after))

    def replace(self, operator: str, node: ast.expr | ast.stmt, after: str) -> None:
        self.add(operator, self.span(node), after)

    def swap(self, operator: str, left: ast.expr, right: ast.expr, words: tuple[str, str]) -> None:
        """The operator between two operands, which may stand in parentheses; `not in` is two tokens."""
        first, *rest = words[0].split()
        at = bisect_left(self.tokens, (self.span(left)[1], ""))
        while self.tokens[at][1] != first:
            at += 1
        start, last = self.tokens[at + len(rest)]
        self.add(operator, (self.tokens[at][0], start + len(last)), words[1])

    def visit_each(self, nodes: Sequence[ast.AST | None]) -> None:
        for node in nodes:
            if node is not None:
                self.visit(node)

    # What has no points

    def visit_Module(self, node: ast.Module) -> None:
        self.visit_each([statement for statement in node.body if not declares(statement)])

    def visit_Assert(self, node: ast.Assert) -> None:
        pass

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        pass

    def visit_arg(self, node: ast.arg) -> None:
        pass

    def visit_keyword(self, node: ast.keyword) -> None:
        if node.arg not in DECLARED_ONLY:
            self.visit(node.value)

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        self.visit_each([*node.decorator_list, node.args, *node.body])

    visit_AsyncFunctionDef = visit_FunctionDef

    # What has

    def visit_Compare(self, node: ast.Compare) -> None:
        operands = [node.left, *node.comparators]
        for left, kind, right in zip(operands, node.ops, node.comparators, strict=False):
            self.swap("comparison", left, right, COMPARISONS[type(kind)])
        self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        if type(node.op) in ARITHMETIC and not is_text(node):
            self.swap("arithmetic", node.left, node.right, ARITHMETIC[type(node.op)])
        self.generic_visit(node)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        if type(node.op) in ARITHMETIC and not is_text(node.value):
            before, after = ARITHMETIC[type(node.op)]
            self.swap("arithmetic", node.target, node.value, (f"{before}=", f"{after}="))
        if isinstance(node.target, ast.Attribute):
            self.replace("deletion", node, "pass")
        self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        words = ("and", "or") if isinstance(node.op, ast.And) else ("or", "and")
        for left, right in zip(node.values, node.values[1:], strict=False):
            self.swap("boolean", left, right, words)
        self.generic_visit(node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> None:
        if isinstance(node.op, ast.Not):
            start, end = self.span(node)
            self.replace("boolean", node, self.source[start + len("not") : end].lstrip())
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        if isinstance(node.value, bool):
            self.replace("constant", node, str(not node.value))
        elif isinstance(node.value, int | float):
            self.replace("constant", node, next_number(node.value, self.text(node)))

    def visit_Return(self, node: ast.Return) -> None:
        if node.value is not None and not is_none(node.value):
            self.replace("return", node.value, "None")
        self.generic_visit(node)

    def visit_Expr(self, node: ast.Expr) -> None:
        call = node.value.value if isinstance(node.value, ast.Await) else node.value
        if isinstance(call, ast.Call) and not is_log(call):
            self.replace("deletion", node, "pass")
        self.generic_visit(node)

    def visit_Assign(self, node: ast.Assign) -> None:
        targets = [one for to in node.targets for one in (to.elts if isinstance(to, ast.Tuple) else [to])]
        if any(isinstance(target, ast.Attribute) for target in targets):
            self.replace("deletion", node, "pass")
        self.generic_visit(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None and isinstance(node.target, ast.Attribute):
            self.replace("deletion", node, "pass")
        self.visit_each([node.target, node.value])

    def visit_If(self, node: ast.If) -> None:
        if "TYPE_CHECKING" in ast.unparse(node.test):
            self.visit_each(node.orelse)
            return
        self.negate(node.test)
        self.generic_visit(node)

    def visit_IfExp(self, node: ast.IfExp) -> None:
        self.negate(node.test)
        self.generic_visit(node)

    def visit_match_case(self, node: ast.match_case) -> None:
        if node.guard is not None:
            self.negate(node.guard)
        self.generic_visit(node)

    def visit_comprehension(self, node: ast.comprehension) -> None:
        for condition in node.ifs:
            self.negate(condition)
        self.generic_visit(node)

    def negate(self, test: ast.expr) -> None:
        """Unless the mutant of the condition's own operator is the same."""
        if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            return
        if isinstance(test, ast.Compare) and len(test.ops) == 1 and isinstance(test.ops[0], OPPOSITES):
            return
        text = self.text(test)
        self.replace("negation", test, f"not ({text})" if isinstance(test, LOOSE) else f"not {text}")

    def visit_Break(self, node: ast.Break) -> None:
        self.replace("jump", node, "continue")

    def visit_Continue(self, node: ast.Continue) -> None:
        self.replace("jump", node, "break")

    def visit_Call(self, node: ast.Call) -> None:
        if is_log(node):
            return
        name = last_name(node.func)
        if name in EXTREMES:
            end = self.span(node.func)[1]
            self.add("extreme", (end - len(name), end), EXTREMES[name])
        self.generic_visit(node)

    def visit_Slice(self, node: ast.Slice) -> None:
        for bound in (node.lower, node.upper):
            if bound is not None and not is_number(bound):  # the next number is a point by itself
                text = self.text(bound)
                self.replace("slice", bound, f"{text if isinstance(bound, TIGHT) else f'({text})'} + 1")
        self.generic_visit(node)


def declares(statement: ast.stmt) -> bool:
    """Whether it gives the module's version or `__all__`."""
    targets = statement.targets if isinstance(statement, ast.Assign) else [getattr(statement, "target", None)]
    names = [target.id for target in targets if isinstance(target, ast.Name)]
    return any(name == "__all__" or "version" in name.lower().split("_") for name in names)


def is_text(node: ast.expr) -> bool:
    """Whether a string is written in a sum or product, which makes one of all of it."""
    if isinstance(node, ast.BinOp):
        return is_text(node.left) or is_text(node.right)
    return isinstance(node, ast.JoinedStr) or (
        isinstance(node, ast.Constant) and isinstance(node.value, str | bytes)
    )


def is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def is_number(node: ast.expr) -> bool:
    return isinstance(node.operand if isinstance(node, ast.UnaryOp) else node, ast.Constant)


def last_name(function: ast.expr) -> str:
    """`maximum` of `tl.maximum`."""
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""


def is_log(call: ast.Call) -> bool:
    return isinstance(call.func, ast.Attribute) and last_name(call.func.value).lstrip("_") in LOGS


def next_number(value: int | float, text: str) -> str:
    """The number that is one larger, or double where one is lost in rounding."""
    following = value + 1 if value + 1 != value else value * 2
    return hex(int(following)) if text[:2].lower() == "0x" else str(following)


TOKEN = re.compile(
    r"""(?P<unread> //[^\n]* | /\*.*?\*/ | ^[ \t]*\#(?:\\\n|[^\n])* | "(?:\\.|[^"\\])*" | '(?:\\.|[^'\\])*' )
      | (?P<number> \.?\d (?: 0[xX] )? (?: [eEpP][+-]\d | '\d | [\w.] )* )
      | (?P<word> [A-Za-z_]\w* )
      | (?P<operator> <<= | >>= | -> | \+\+ | -- | && | \|\| | [<>=!+\-*/%&|^]= | << | >> | :: | \S )""",
    re.VERBOSE | re.DOTALL | re.MULTILINE,
)
NUMBER = re.compile(
    r"(?P<value> 0[xX][0-9a-fA-F]+ | \d+\.\d*(?:[eE][+-]?\d+)? | \d+[eE][+-]?\d+ | \d+ )"
    r"(?P<suffix> [fFuUlL]* )",
    re.VERBOSE,
)
CPP_OPERATORS = {
    **{before: ("comparison", after) for before, after in COMPARISONS.values() if before[0] in "<>=!"},
    **{"&&": ("boolean", "||"), "||": ("boolean", "&&")},
    **{"+": ("arithmetic", "-"), "-": ("arithmetic", "+"), "*": ("arithmetic", "/")},
    **{"/": ("arithmetic", "*"), "%": ("arithmetic", "/")},
    **{"+=": ("arithmetic", "-="), "-=": ("arithmetic", "+="), "*=": ("arithmetic", "/=")},
}
CPP_WORDS = {"break": ("jump", "continue"), "continue": ("jump", "break")}
CPP_WORDS |= {"true": ("constant", "false"), "false": ("constant", "true")}
CHECKED_AHEAD = {"static_assert", "assert", "alignas"}
"""What the compiler or a debug build checks: no test could."""


@dataclass(frozen=True, slots=True)
class Token:
    start: int
    text: str
    kind: str

    @property
    def end(self) -> int:
        return self.start + len(self.text)


class CppPoints:
    """Read by tokens alone: clang-format puts spaces round operators, but not in templates or types."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.found: list[Point] = []
        self.tokens = [
            Token(match.start(), match.group(), match.lastgroup or "")
            for match in TOKEN.finditer(source)
            if match.lastgroup != "unread"
        ]
        at = 0
        while at < len(self.tokens):
            if self.tokens[at].text in CHECKED_AHEAD and self.text(at + 1) == "(":
                at = self.closing(at + 1)
            self.visit(at)
            at += 1

    def text(self, at: int) -> str:
        return self.tokens[at].text if 0 <= at < len(self.tokens) else ""

    def add(self, operator: str, start: int, end: int, after: str) -> None:
        self.found.append(Point(start, end, operator, self.source[start:end], after))

    def closing(self, at: int) -> int:
        """Where the parenthesis that opens at a token closes."""
        depth = 0
        for i in range(at, len(self.tokens)):
            depth += (self.text(i) == "(") - (self.text(i) == ")")
            if depth == 0:
                return i
        return len(self.tokens) - 1

    def visit(self, at: int) -> None:
        token = self.tokens[at]
        spaced = self.source[token.start - 1].isspace() and self.source[token.end : token.end + 1].isspace()
        if token.kind == "number":
            self.visit_number(token)
        elif token.text in CPP_WORDS:
            operator, after = CPP_WORDS[token.text]
            self.add(operator, token.start, token.end, after)
        elif token.text in CPP_OPERATORS and spaced:
            operator, after = CPP_OPERATORS[token.text]
            self.add(operator, token.start, token.end, after)
        elif token.text == "!":
            self.add("boolean", token.start, token.end, "")
        elif token.text in ("min", "max") and self.text(at + 1) in ("(", "<") and self.text(at + 2) != ")":
            self.add("extreme", token.start, token.end, EXTREMES[token.text])
        elif token.text == "if" and self.text(at + 1) == "(":
            self.visit_if(at + 1)
        if token.kind == "word" and self.text(at - 1) in (";", "{", "}", ")", "else"):
            self.visit_statement(at)

    def visit_number(self, token: Token) -> None:
        """But hexadecimal floats and numbers with separators."""
        number = NUMBER.fullmatch(token.text)
        if number is not None:
            digits = number["value"]
            value = float(digits) if re.search(r"^[^xX]*[.eE]", digits) else int(digits, 0)
            self.add("constant", token.start, token.end, next_number(value, digits) + number["suffix"])

    def visit_if(self, opening: int) -> None:
        """Unless it declares something, or the mutant of its only operator is the same."""
        closing = self.closing(opening)
        inside = [token.text for token in self.tokens[opening + 1 : closing]]
        single = not {"&&", "||"} & set(inside)
        if {"=", ";"} & set(inside) or (single and (inside[0] == "!" or {"==", "!="} & set(inside))):
            return
        start, end = self.tokens[opening].end, self.tokens[closing].start
        self.add("negation", start, end, f"!({self.source[start:end]})")

    def visit_statement(self, at: int) -> None:
        """A call, or an assignment to a member, becomes an empty statement."""
        end = at + 1
        while self.text(end) in (".", "->", "::"):
            end += 2
        last = self.closing(end) + 1 if self.text(end) == "(" else end
        if self.text(end) == "=" and {".", "->"} & {token.text for token in self.tokens[at:end]}:
            last = next(i for i in range(end, len(self.tokens)) if self.text(i) in (";", "{"))
        if last > end and self.text(last) == ";" and self.text(at) not in ("return", "if", "while"):
            self.add("deletion", self.tokens[at].start, self.tokens[last].start, "")


def line_and_column(source: str, offset: int) -> tuple[int, int]:
    """Both from 1 on, in characters."""
    return source.count("\n", 0, offset) + 1, offset - source.rfind("\n", 0, offset)


def offset_of(source: str, line: int, column: int) -> int:
    """The other way round."""
    return sum(len(text) + 1 for text in source.split("\n")[: line - 1]) + column - 1
