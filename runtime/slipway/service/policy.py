"""What whoever runs the cluster admits of a document, of all that a document could ask for."""

from __future__ import annotations

import posixpath
from collections.abc import Iterator
from dataclasses import dataclass

from slipway.service.companions import companions
from slipway.service.engine import resolved_of
from slipway.service.fields import InvalidService, shown
from slipway.service.spec import ServiceSpec

OWN_ACCOUNT = "default"
"""What a pod runs under where nobody names an account; no token of it is mounted."""
NO_FILES = frozenset({"rootPath"})
"""Arguments whose value begins with a slash and is a path of URLs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """What is empty bounds nothing, but for arguments and variables, of which it admits none."""

    allow_code: bool = False
    """Every argument by which a user runs code of their own in the server, or has it read files."""
    arguments: frozenset[str] = frozenset()
    """Single ones of these, as the document spells them."""
    env: frozenset[str] = frozenset()
    """Environment variables that the firewall refuses without an opt-in."""
    images: tuple[str, ...] = ()
    """Images, and registries and folders of images, that a document may name."""
    service_accounts: frozenset[str] = frozenset()
    """Accounts that pods may run under, beside `default`."""
    file_paths: tuple[str, ...] = ()
    """Folders below which arguments may name files."""


def check_policy(spec: ServiceSpec, policy: Policy) -> None:
    """Raises InvalidService, by policy, at the first field that asks for more than it admits."""
    _check_images(spec, policy)
    _check_commands(spec, policy)
    _check_account(spec, policy)
    _check_code(spec, policy)
    _check_files(spec, policy)


def full_name(image: str) -> str:
    """The image's name with its registry, as a node completes it."""
    first, slash, _ = image.partition("/")
    if not slash:
        return f"docker.io/library/{image}"
    return image if first == "localhost" or "." in first or ":" in first else f"docker.io/{image}"


def _check_images(spec: ServiceSpec, policy: Policy) -> None:
    named = {"spec.runtime.image": spec.runtime.image}
    if spec.model.image:
        named["spec.model.image.reference"] = spec.model.image.reference
    named |= {f"{path}.image": container.image for path, container in companions(spec)}
    for path, image in named.items():
        if image and policy.images and not any(_of(full_name(image), one) for one in policy.images):
            raise _denied(path, f"{image} is none of the images", policy.images, "images")


def _check_commands(spec: ServiceSpec, policy: Policy) -> None:
    """An image that the policy admits would run, by a command, what the policy refuses."""
    if policy.allow_code or not policy.images:
        return
    for path, container in companions(spec):
        for name, words in (("command", container.command), ("args", container.args)):
            if words:
                raise InvalidService(
                    f"{path}.{name}",
                    f"the policy admits images as they are, and with {shown(words[0])} here they would run "
                    "what whoever writes this document likes. Leave it out, or ask whoever runs the cluster "
                    "to set policy.allowCode.",
                    reason="PolicyDenied",
                )


def _of(image: str, admitted: str) -> bool:
    """Whether it is that image, or lies in that registry or folder."""
    admitted = admitted.rstrip("/")
    return image == admitted or (image.startswith(admitted) and image[len(admitted)] in "/:@")


def _check_account(spec: ServiceSpec, policy: Policy) -> None:
    account = spec.runtime.service_account_name or OWN_ACCOUNT
    if policy.service_accounts and account not in policy.service_accounts | {OWN_ACCOUNT}:
        raise _denied(
            "spec.runtime.serviceAccountName",
            f"{account} is none of the accounts",
            sorted(policy.service_accounts),
            "serviceAccounts",
        )


def _check_code(spec: ServiceSpec, policy: Policy) -> None:
    from slipway.args.schema import CAMEL

    for name, value in spec.engine.items():
        argument = CAMEL[name]
        if not argument.security_sensitive or not value or value == argument.default:
            continue
        if not policy.allow_code and name not in policy.arguments:
            raise InvalidService(
                f"spec.engine.{name}",
                "the policy admits nothing that runs code or reads files in the server. With "
                f"{shown(value)} here whoever writes this document could. Leave it out, or ask whoever runs "
                f"the cluster to set policy.allowCode, or to add {name} to policy.permittedArguments.",
                reason="PolicyDenied",
            )


def _check_files(spec: ServiceSpec, policy: Policy) -> None:
    if not policy.file_paths:
        return
    for path, file in _files(spec):
        normal = posixpath.normpath(file)
        if not any(f"{normal}/".startswith(f"{folder.rstrip('/')}/") for folder in policy.file_paths):
            raise _denied(path, f"{file} lies in none of the folders", policy.file_paths, "filePaths")


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
            template = name == "chatTemplate" and "{" not in text
            if argument.kind is Kind.PATH or template or text.startswith("/") or "=/" in text:
                yield f"spec.engine.{name}", text.partition("=")[2] if "=/" in text else text


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


def _denied(path: str, what: str, admitted: tuple[str, ...] | list[str], field: str) -> InvalidService:
    return InvalidService(
        path,
        f"{what} that the policy admits: {', '.join(admitted)}. Name another, or ask whoever runs the "
        f"cluster to add it to policy.{field}.",
        reason="PolicyDenied",
    )
