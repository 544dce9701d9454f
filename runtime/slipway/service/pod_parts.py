"""What a document says of its pods in Kubernetes' own terms: variables, volumes, containers, hosts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Literal

from slipway.service.forms import (
    Address,
    EnvName,
    FieldPath,
    HostName,
    ImageReference,
    Key,
    Medium,
    MountPath,
    ObjectName,
    PartName,
    PositiveId,
    SeLinuxLevel,
    Size,
    SubPath,
)
from slipway.service.projected import Projected


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyReference:
    """One key of a Secret or a ConfigMap."""

    name: ObjectName
    key: Key


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvVar:
    """A variable with a value, or with the key of a Secret or ConfigMap or the field of the pod to take."""

    KEY: ClassVar[str] = "name"
    name: EnvName
    value: str | None = None
    """The text itself. Credentials belong into a Secret."""
    secret: KeyReference | None = None
    config_map: KeyReference | None = None
    field: FieldPath | None = None
    """The pod's own name, labels, node or address, as Kubernetes' `fieldRef` names it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DnsOption:
    """An option of the resolver, such as ndots: "2"."""

    name: str
    """Of the option, such as ndots."""
    value: str | None = None
    """Of the option, where it has one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DnsConfig:
    """What the pods' /etc/resolv.conf has beside what `dnsPolicy` brings."""

    nameservers: tuple[Address, ...] = ()
    """Addresses of name servers."""
    searches: tuple[HostName, ...] = ()
    """Domains in which short names are looked up."""
    options: tuple[DnsOption, ...] = ()
    """Such as ndots."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostAlias:
    """A line of the pods' /etc/hosts."""

    KEY: ClassVar[str] = "ip"
    ip: Address
    hostnames: tuple[HostName, ...] = ()
    """Names of that address."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SeLinux:
    """The pods' SELinux context, as far as the restricted level admits it: no user and no role."""

    level: SeLinuxLevel | None = None
    """Level and categories. Unset, the node chooses."""
    type: Literal["container_t", "container_init_t", "container_kvm_t", "container_engine_t"] | None = None
    """Type of the processes. Unset, the node's own for containers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VolumeClaim:
    """A PersistentVolumeClaim of the namespace, beside those of model and cache."""

    name: ObjectName
    read_only: bool = False
    """Whether nobody in the pod writes to it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CsiVolume:
    """What a CSI driver brings for each pod, such as the secrets of a store outside the cluster."""

    driver: ObjectName
    read_only: bool = False
    """Whether nobody in the pod writes to it; drivers of secrets ask for true."""
    volume_attributes: Mapping[str, str] = field(default_factory=dict)
    """What the driver is told, such as secretProviderClass."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EmptyDir:
    """A folder that comes and goes with the pod."""

    size_limit: Size | None = None
    """Beyond which the pod is evicted."""
    medium: Medium | None = None
    """Memory, which counts against the limit of whoever writes, or huge pages that a container asks for; with
    their size where the pod has pages of several. Unset, the node's disk."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Volume:
    """A volume of exactly one of pvc, csi, emptyDir and projected. `files` mounts ConfigMaps and Secrets."""

    KEY: ClassVar[str] = "name"
    name: PartName
    mount_path: MountPath | None = None
    """Where the server finds it. Unset, only those of initContainers and sidecars do that mount it."""
    sub_path: SubPath | None = None
    """The folder of the volume that the server finds there. Unset, all of it."""
    pvc: VolumeClaim | None = None
    csi: CsiVolume | None = None
    empty_dir: EmptyDir | None = None
    projected: Projected | None = None

    @property
    def read_only(self) -> bool:
        source = self.pvc or self.csi
        return source is not None and source.read_only


@dataclass(frozen=True, slots=True, kw_only=True)
class VolumeMount:
    """Where a container beside the server finds one of `volumes`."""

    KEY: ClassVar[str] = "mount_path"
    name: PartName
    mount_path: MountPath
    sub_path: SubPath | None = None
    """The folder of the volume that it finds there. Unset, all of it."""
    read_only: bool = False
    """Whether it may not write there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerSecurity:
    """Where the container differs from the server; both meet the restricted security level."""

    run_as_user: PositiveId | None = None
    """Unset, that of the pod. Root is refused."""
    read_only_root_filesystem: bool | None = None
    """Unset, as the server's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Container:
    """A container beside the server, in the words of a pod's own specification."""

    KEY: ClassVar[str] = "name"
    MOST: ClassVar[int] = 8
    name: PartName
    image: ImageReference
    image_pull_policy: Literal["Always", "IfNotPresent", "Never"] | None = None
    """When the node fetches the image."""
    command: tuple[str, ...] = ()
    """In place of the image's entry point. `$(NAME)` stands for a variable, as in any container."""
    args: tuple[str, ...] = ()
    """In place of the image's arguments; variables as in `command`."""
    env: tuple[EnvVar, ...] = ()
    """Its variables; it has none of the server's."""
    volume_mounts: tuple[VolumeMount, ...] = ()
    """Which of `volumes` it finds where. No other volume of the pod is in it."""
    resources: Mapping[str, object] = field(default_factory=dict)
    """requests and limits."""
    security: ContainerSecurity = field(default_factory=ContainerSecurity)
