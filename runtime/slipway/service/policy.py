"""What whoever runs the cluster admits of a document, of all that a document could ask for."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping

from slipway.service.bounds import BOUNDS, FILE_ROOTS, Bound, said
from slipway.service.engine import resolved_of
from slipway.service.fields import InvalidService, shown, written
from slipway.service.policy_values import Policy, starts
from slipway.service.spec import ServiceSpec

NO_FILES = frozenset({"rootPath"})
"""Arguments whose value begins with a slash and is a path of URLs."""
TEMPLATE = "chatTemplate"
"""The argument that is a file where it has no brace, else a text or a file."""
FILE = r"^(/|~|[.][.]?/)|(^|/)[.][.](/|$)"
"""What paths alone have: a name of the hub neither begins so nor leads upwards."""
CODE_ARGUMENTS = ("logConfigFile",)
"""Arguments that run code by what their file says, and that a document may give where no policy is set: a
logging configuration calls whatever it names."""
CODE_KEYS = {
    "kvTransferConfig": ("kv_connector_module_path",),
    "compilationConfig": ("backend",),
    "hfOverrides": ("auto_map",),
}
"""Keys of arguments that are JSON by which a runtime imports a module, as images of others may."""
MODULE = r"\w\.\w"
"""What the name of a module has, and that of a built-in part has not."""
NAMELESS = '""'
"""How an empty text is shown among others."""
FEW = 12
"""Names that a message can list."""


def check_policy(spec: ServiceSpec, policy: Policy) -> None:
    """Raises InvalidService, by policy, at the first field that asks for more than it admits."""
    _check_arguments(spec, policy)
    if not policy.bounded:
        return
    document = {"spec": written(spec)}
    for bound in BOUNDS:
        if (bound.code and policy.allow_code) or (bound.given and not policy.of(bound.given)):
            continue
        admitted = policy.of(bound.setting) if bound.setting else ()
        if bound.optional and not admitted:
            continue
        for place in bound.places:
            for path, value in said(document, place, bound):
                if not _admits(bound, value, admitted, spec.metadata.namespace):
                    raise _denied(path, value, bound, admitted)
    _check_files(spec, policy)


def full_name(image: str) -> str:
    """The image's name with its registry, as a node completes it."""
    first, slash, _ = image.partition("/")
    if not slash:
        return f"docker.io/library/{image}"
    registry = first == "localhost" or set(first) & set(".:") or first != first.lower()
    return image if registry else f"docker.io/{image}"


def _admits(bound: Bound, value: str, admitted: Collection[str], namespace: str | None) -> bool:
    match bound.match:
        case "image":
            return any(_of(full_name(value), one) for one in admitted)
        case "folder":
            return _below(value, (*bound.usual, *admitted))
        case "profile":
            assert isinstance(admitted, Mapping)
            return value in admitted and (not admitted[value] or namespace in admitted[value])
    return starts(value, (*bound.usual, *admitted))


def _of(image: str, admitted: str) -> bool:
    """Whether it is that image, or lies in that registry or folder."""
    admitted = admitted.rstrip("/")
    return image == admitted or (image.startswith(admitted) and image[len(admitted)] in "/:@")


def _below(path: str, folders: Collection[str]) -> bool:
    """Whether the path is one of the folders or lies below one, without a way up."""
    if ".." in path.split("/"):
        return False
    return any(f"{path}/".startswith(f"{folder.rstrip('/')}/") for folder in folders)


def _denied(path: str, value: str, bound: Bound, admitted: Collection[str]) -> InvalidService:
    names = [one for one in (*admitted, *bound.usual) if one]
    listed = f" ({', '.join(names)})" if 0 < len(names) <= FEW else ""
    advice = f"to add it to policy.{bound.setting}" if bound.setting else "for a ServingProfile that says it"
    if bound.given:
        advice = "to set policy.allowCode"
    return InvalidService(
        path,
        f"{value or NAMELESS} is none of the {bound.title} that the policy admits{listed}: {bound.why}. "
        f"Leave it out, or ask whoever runs the cluster {advice}.",
        reason="PolicyDenied",
    )


def _check_arguments(spec: ServiceSpec, policy: Policy) -> None:
    """Those that run code are refused with and without a policy, unless it admits them."""
    from slipway.args.schema import CAMEL

    resolved = resolved_of(spec)
    for name, value in spec.engine.items():
        argument = CAMEL[name]
        code = argument.security_sensitive or (policy.bounded and name in CODE_ARGUMENTS)
        if policy.bounded and name in CODE_KEYS:
            parsed = resolved[argument.name] if argument.name in resolved.given else value
            code |= any(map(_names_module, _values(parsed, CODE_KEYS[name])))
        if not code or not value or value == argument.default:
            continue
        if not policy.allow_code and name not in policy.permitted_arguments:
            raise InvalidService(
                f"spec.engine.{name}",
                "the policy admits nothing that runs code or reads files in the server. With "
                f"{shown(value)} here whoever writes this document could. Leave it out, or ask whoever runs "
                f"the cluster to set policy.allowCode, or to add {name} to policy.permittedArguments.",
                reason="PolicyDenied",
            )


def _values(parsed: object, keys: Collection[str]) -> Iterator[object]:
    """Of these keys, in any spelling that a parser may take for them."""
    if isinstance(parsed, Mapping):
        for key, value in parsed.items():
            if str(key).replace("-", "_").lower() in keys:
                yield value
            yield from _values(value, keys)


def _names_module(value: object) -> bool:
    return any(re.search(MODULE, text) for text in _texts(value))


def _check_files(spec: ServiceSpec, policy: Policy) -> None:
    if policy.allow_code and not policy.file_paths:
        return
    folders = policy.file_paths or (*FILE_ROOTS, *policy.mount_roots)
    for path, file in _files(spec):
        if not _below(file, folders):
            raise InvalidService(
                path,
                f"{file} lies in none of the folders that the policy admits ({', '.join(folders)}): "
                "the server would read it, and could show it. Name another, or ask whoever runs the cluster "
                "to add its folder to policy.filePaths.",
                reason="PolicyDenied",
            )


def _files(spec: ServiceSpec) -> Iterator[tuple[str, str]]:
    """Every value that names a file of the pod, with its field."""
    from slipway.args.declare import Kind
    from slipway.args.schema import CAMEL

    if spec.model.path:
        yield "spec.model.path", spec.model.path
    resolved = resolved_of(spec)
    for name, value in spec.engine.items():
        argument = CAMEL[name]
        parsed = resolved[argument.name] if argument.name in resolved.given else value  # JSON may be text
        for text in _texts(parsed) if name not in NO_FILES else ():
            if argument.kind is Kind.PATH or (name == TEMPLATE and "{" not in text):
                yield f"spec.engine.{name}", text
                continue
            named = text.partition("=")[2] if name != TEMPLATE else ""  # such as sql=/adapters/sql
            yield from ((f"spec.engine.{name}", one) for one in (text, named) if re.search(FILE, one))


def _texts(value: object) -> Iterator[str]:
    match value:
        case str():
            yield value
        case list() | tuple():
            for item in value:
                yield from _texts(item)
        case dict():
            for item in value.values():
                yield from _texts(item)
