"""Runs template code that others wrote: no attribute of Python's own, and bounded time and size.

Jinja's immutable sandbox keeps a template from everything but the values it is given. What it lacks are
limits: every turn of a loop and every call looks at the clock here, and what can make a long text out of
short ones looks at its length first. Not bounded is a single call of a string method or filter: a few of
them in a row can still square the size of a text. Who writes a template may thus fill the memory of the
process, and learns nothing and runs nothing by it: the model and whoever starts the server, and a client only
where that one trusts clients so far (--trust-request-chat-template).
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer

_MAX_POWER = 1000
_PADDING = frozenset({"center", "ljust", "rjust", "zfill", "expandtabs"})
_WIDE_FORMAT = re.compile(r"%[^a-zA-Z%]*(\d{4}|\*)")


class TemplateError(ValueError):
    """A template that is missing, broken, over its limits, or refuses the chat, in words for the client."""


class OverLimit(TemplateError):
    """A template takes too long, or makes too long a text: another chat would not help it."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What one render may take."""

    seconds: float = 10.0
    characters: int = 1 << 26
    """Of the output, and of any text on the way to it."""


_deadline: ContextVar[float] = ContextVar("_deadline", default=float("inf"))


class Sandbox(ImmutableSandboxedEnvironment):
    """The environment that chat templates are written for, with `limits`."""

    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self, limits: Limits) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[Generation, loopcontrols],
            optimized=False,  # constants would be computed while compiling, outside the limits
        )
        self.limits = limits
        self.filters["tojson"] = to_json
        self.globals["raise_exception"] = refuse
        self.globals["strftime_now"] = lambda pattern: datetime.now().strftime(pattern)
        self.globals["dict"] = lambda *args, **kwargs: dict(*args, **kwargs)
        self.globals["namespace"] = TemplateNamespace

    def run(self, template: jinja2.Template, variables: Mapping[str, Any]) -> str:
        """Render within the limits. Raises TemplateError for whatever the template does wrong."""
        token = _deadline.set(time.monotonic() + self.limits.seconds)
        chunks: list[str] = []
        size = 0
        try:
            for chunk in template.generate(variables):
                size += len(chunk)
                self.bounded(size)
                chunks.append(chunk)
        except TemplateError:
            raise
        except jinja2.TemplateError as error:
            reason = (error.message or type(error).__name__).rstrip(".")
            raise TemplateError(f"The chat template failed: {reason}.") from error
        except RecursionError as error:
            raise TemplateError("The chat template calls itself without end.") from error
        except MemoryError as error:
            raise TemplateError("The chat template makes a text that no memory holds.") from error
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            raise TemplateError(f"The chat template failed: {error}.") from error
        finally:
            _deadline.reset(token)
        return "".join(chunks)

    def tick(self) -> None:
        """Raise OverLimit where the time is over."""
        if time.monotonic() > _deadline.get():
            raise OverLimit(
                f"The chat template took longer than {self.limits.seconds:g} s. "
                "Send a shorter chat, or use another template."
            )

    def bounded(self, size: int) -> None:
        """Raise OverLimit where a text of `size` characters is too long."""
        if size > self.limits.characters:
            raise OverLimit(
                f"The chat template makes a text of more than {self.limits.characters} characters. "
                "Send a shorter chat, or use another template."
            )

    def joined(self, *values: Any) -> str:
        """The operator `~`."""
        texts = [str(value) for value in values]
        self.bounded(sum(map(len, texts)))
        return "".join(texts)

    def call(self, context: Any, target: Any, /, *args: Any, **kwargs: Any) -> Any:
        self.tick()
        if getattr(target, "__name__", "") in _PADDING and args and isinstance(args[0], int):
            self.bounded(args[0])
        return super().call(context, target, *args, **kwargs)

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        if operator == "**" and max(abs(left), abs(right)) > _MAX_POWER:
            raise TemplateError(f"The chat template computes {left} ** {right}, which is too large.")
        if operator == "*":
            for sized, times in ((left, right), (right, left)):
                if isinstance(sized, str | list | tuple) and isinstance(times, int):
                    self.bounded(len(sized) * times)
        elif operator == "+" and isinstance(left, str | list) and isinstance(right, str | list):
            self.bounded(len(left) + len(right))
        elif operator == "%" and isinstance(left, str) and _WIDE_FORMAT.search(left):
            raise TemplateError(f"The chat template formats with {left!r}, which is too wide.")
        return super().call_binop(context, operator, left, right)

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        """Parse, and put the limits where generated code could grow or loop without a call."""
        tree = super()._parse(source, name, filename)
        for loop in list(tree.find_all(nodes.For)):
            loop.body.insert(0, nodes.ExprStmt(self.own_call("tick", [])))
        return _JoinByCall(self).visit(tree)  # type: ignore[no-any-return]

    def own_call(self, method: str, args: list[nodes.Expr]) -> nodes.Call:
        return nodes.Call(nodes.EnvironmentAttribute(method), args, [], None, None)


class _JoinByCall(NodeTransformer):
    """Turns `a ~ b` into a call of `Sandbox.joined`."""

    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox = sandbox

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        return self._sandbox.own_call("joined", node.nodes)


class Generation(Extension):
    """`{% generation %}…{% endgeneration %}` marks the assistant's words for training: no effect here."""

    tags = {"generation"}  # noqa: RUF012 (Jinja's interface)

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class TemplateNamespace(Namespace):
    """Jinja's `namespace` without names that begin with an underscore, which would reach Python's own."""

    def __init__(*args: Any, **kwargs: Any) -> None:
        self, *rest = args
        for name in (attributes := dict(*rest, **kwargs)):
            _check_name(name)
        Namespace.__init__(self, attributes)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_name(name)
        super().__setitem__(name, value)


def _check_name(name: Any) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise TemplateError(
            f"The chat template sets {name!r} on a namespace. Use a name without underscore in front."
        )


def refuse(message: str) -> NoReturn:
    """`raise_exception` of the templates: the chat is not one that the model was trained for."""
    raise TemplateError(str(message))


def to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """The filter `tojson` as chat templates know it: characters as they are, nothing escaped for HTML."""
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=min(indent, 16) if isinstance(indent, int) else indent,
        separators=separators,
        sort_keys=sort_keys,
    )
