"""What a chat template expects of a message's content: one text, or a list of typed parts."""

from __future__ import annotations

from typing import Literal

from jinja2 import nodes

Role = Literal["messages", "message", "content"]


def iterates_content(template: nodes.Template) -> bool:
    """Whether the template loops over the content of a message, under whatever name it gave it."""
    names = _names(template)
    return any(_role(loop.iter, names) == "content" for loop in template.find_all(nodes.For))


def _names(template: nodes.Template) -> dict[str, Role]:
    """The variables that stand for the messages, one message or its content, by following assignments.

    Scopes and order are left aside: templates do not use one name for two of these.
    """
    names: dict[str, Role] = {"messages": "messages"}
    bindings = _bindings(template)
    known = 0
    while known < len(names):
        known = len(names)
        for name, expression, looped in bindings:
            role = _role(expression, names)
            if looped:
                role = "message" if role == "messages" else None
            if role is not None:
                names.setdefault(name, role)
    return names


def _bindings(template: nodes.Template) -> list[tuple[str, nodes.Node, bool]]:
    """(name, the expression it stands for, whether it stands for each item of it)."""
    macros = {macro.name: macro for macro in template.find_all(nodes.Macro)}
    bindings: list[tuple[str, nodes.Node, bool]] = []
    for node in template.find_all((nodes.Assign, nodes.For, nodes.Call)):
        if isinstance(node, nodes.Assign) and isinstance(node.target, nodes.Name):
            bindings.append((node.target.name, node.node, False))
        elif isinstance(node, nodes.For) and isinstance(node.target, nodes.Name):
            bindings.append((node.target.name, node.iter, True))
        elif isinstance(node, nodes.Call) and isinstance(node.node, nodes.Name):
            macro = macros.get(node.node.name)
            if macro is not None:
                pairs = zip(macro.args, node.args, strict=False)
                bindings += [(parameter.name, value, False) for parameter, value in pairs]
                bindings += [(keyword.key, keyword.value, False) for keyword in node.kwargs]
    return bindings


def _role(node: nodes.Node | None, names: dict[str, Role]) -> Role | None:
    match node:
        case nodes.Name(name=name):
            return names.get(name)
        case nodes.Filter(node=inner):
            return _role(inner, names)
        case nodes.CondExpr(expr1=left, expr2=right) | nodes.Or(left=left, right=right):
            return _role(left, names) or _role(right, names)
        case nodes.Getitem(node=inner, arg=nodes.Slice()):
            return _role(inner, names)
        case (
            nodes.Getattr(node=inner, attr=str(key))
            | nodes.Getitem(node=inner, arg=nodes.Const(value=str(key)))
        ):
            return "content" if key == "content" and _role(inner, names) == "message" else None
        case nodes.Call(node=nodes.Getattr(node=inner, attr="get"), args=[nodes.Const(value="content"), *_]):
            return "content" if _role(inner, names) == "message" else None
        case nodes.Getitem(node=inner):
            return "message" if _role(inner, names) == "messages" else None
    return None
