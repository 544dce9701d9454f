"""A folder of a pod that is put together of tokens, keys of ConfigMaps and Secrets, and fields of the pod."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

from slipway.service.fields import InvalidService, Range, written
from slipway.service.forms import (
    Divisor,
    DownwardPath,
    Mode,
    ObjectName,
    PartName,
    ProjectedKey,
    ProjectedPath,
)

Object = dict[str, Any]

SOURCES = ("serviceAccountToken", "configMap", "secret", "downwardAPI")
FEWEST_SECONDS, MOST_SECONDS, USUAL_SECONDS = 600, 2**32, 3600
"""Lifetimes of a token, as the API server bounds and sets them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AccountToken:
    """A token of the pods' service account, which the kubelet renews in its file."""

    path: ProjectedPath
    audience: str | None = None
    """Who takes the token. Unset, the API server."""
    expiration_seconds: Annotated[int, Range(FEWEST_SECONDS, MOST_SECONDS)] = USUAL_SECONDS
    """Lifetime of a token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyFile:
    """A key of a ConfigMap or Secret as a file."""

    MOST: ClassVar[int] = 16
    key: ProjectedKey
    path: ProjectedPath
    mode: Mode | None = None
    """Permissions of the file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Keys:
    """The keys of a ConfigMap or Secret as files; of some only those in `items`."""

    name: ObjectName
    items: tuple[KeyFile, ...] = ()
    """Unset, each key is a file of its name."""
    optional: bool = False
    """Whether the pods start where it does not exist."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PodField:
    """A field of the pod."""

    field_path: DownwardPath


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerResource:
    """What a container of the pod asks for, or may use."""

    container_name: PartName
    resource: Literal[
        "limits.cpu",
        "limits.memory",
        "limits.ephemeral-storage",
        "requests.cpu",
        "requests.memory",
        "requests.ephemeral-storage",
    ]
    """Which of its requests or limits."""
    divisor: Divisor | None = None
    """The unit in which it is written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldFile:
    """A field of the pod as a file: exactly one of fieldRef and resourceFieldRef."""

    MOST: ClassVar[int] = 16
    path: ProjectedPath
    field_ref: PodField | None = None
    resource_field_ref: ContainerResource | None = None
    mode: Mode | None = None
    """Permissions of the file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PodFields:
    """Fields of the pod as files."""

    items: tuple[FieldFile, ...] = ()
    """One file each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Exactly one of serviceAccountToken, configMap, secret and downwardAPI."""

    MOST: ClassVar[int] = 8
    service_account_token: AccountToken | None = None
    config_map: Keys | None = None
    secret: Keys | None = None
    downward_api: PodFields | None = None

    @property
    def files(self) -> list[tuple[str, str]]:
        """The fields that name paths, with the paths."""
        if token := self.service_account_token:
            return [("serviceAccountToken.path", token.path)]
        lists: dict[str, tuple[KeyFile | FieldFile, ...]] = {
            "configMap": self.config_map.items if self.config_map else (),
            "secret": self.secret.items if self.secret else (),
            "downwardAPI": self.downward_api.items if self.downward_api else (),
        }
        return [
            (f"{name}.items[{index}].path", item.path)
            for name, items in lists.items()
            for index, item in enumerate(items)
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Projected:
    """A folder of files from several sources, as in a pod's own specification."""

    sources: tuple[Source, ...] = ()
    """Where its files come from."""
    default_mode: Mode | None = None
    """Permissions of the files. Unset, 0644."""


def projected_source(wanted: Projected) -> Object:
    """As a volume of a pod has it, with the API server's defaults: the list of sources has one owner, so what
    the API server adds there would read as a difference."""
    made: Object = written(wanted)
    for source in made["sources"]:
        if token := source.get("serviceAccountToken"):
            token.setdefault("expirationSeconds", USUAL_SECONDS)
        for item in source.get("downwardAPI", {}).get("items", ()):
            if reference := item.get("fieldRef"):
                reference["apiVersion"] = "v1"
            if reference := item.get("resourceFieldRef"):
                reference.setdefault("divisor", "0")
    return made


def check_projected(wanted: Projected, path: str) -> None:
    """Raises InvalidService where the API server would not take it."""
    if not wanted.sources:
        raise InvalidService(f"{path}.sources", f"it needs at least one of {_listed(SOURCES)}.")
    for index, source in enumerate(wanted.sources):
        given = (source.service_account_token, source.config_map, source.secret, source.downward_api)
        if sum(one is not None for one in given) != 1:
            raise InvalidService(f"{path}.sources[{index}]", f"exactly one of {_listed(SOURCES)} is needed.")
        for number, item in enumerate(source.downward_api.items if source.downward_api else ()):
            if (item.field_ref is None) == (item.resource_field_ref is None):
                raise InvalidService(
                    f"{path}.sources[{index}].downwardAPI.items[{number}]",
                    "exactly one of fieldRef and resourceFieldRef is needed.",
                )
    taken: set[str] = set()
    for field, file in _files(wanted, path):
        if file in taken:
            raise InvalidService(field, f"{file} is there twice. Choose another path.")
        taken.add(file)


def _files(wanted: Projected, path: str) -> Iterator[tuple[str, str]]:
    for index, source in enumerate(wanted.sources):
        yield from ((f"{path}.sources[{index}].{field}", file) for field, file in source.files)


def _listed(names: tuple[str, ...]) -> str:
    return f"{', '.join(names[:-1])} and {names[-1]}"
