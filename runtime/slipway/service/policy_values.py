"""The values of a policy, as the chart and the operator's settings file have them under `policy`."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, fields
from typing import Annotated, Any, Literal

from slipway.service.fields import Form, camel
from slipway.service.forms import ObjectName

Argument = Annotated[str, Form(r"[a-z][A-Za-z0-9]*", "an argument as spec.engine spells it")]
Variable = Annotated[
    str, Form(r"[A-Za-z_][A-Za-z0-9_]*\*?|\*", "a variable, or the beginning of some such as NCCL_*")
]
Image = Annotated[
    str,
    Form(
        r"(localhost|[A-Za-z0-9][-A-Za-z0-9]*[.:A-Z][-A-Za-z0-9.:]*|[A-Z][-A-Za-z0-9]*)(/[-A-Za-z0-9._/:@]*)?",
        "a registry, or an image or a folder of images with its registry, such as docker.io/org",
    ),
]
Folder = Annotated[str, Form(r"/\S*", "an absolute path")]
Name = Annotated[
    str,
    Form(r"[a-z0-9][-a-z0-9.]{0,252}\*?|\*", "a name, or the beginning of some such as team-*"),
]
LabelKey = Annotated[
    str,
    Form(r"[A-Za-z0-9][-A-Za-z0-9_./]{0,316}\*?|\*", "a key, or the beginning of some such as example.org/*"),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """What whoever runs the cluster admits of documents; `slipway.service.bounds` says what is usual."""

    allow_code: bool = False
    """Admit all by which a resource runs code from outside the image: arguments such as trustRemoteCode, any
    variable, mounts anywhere. Arguments that have the server read files for its clients, too."""
    permitted_arguments: tuple[Argument, ...] = ()
    """Single ones of these arguments that are admitted all the same, as spec.engine spells them."""
    permitted_env: tuple[Variable, ...] = ()
    """Environment variables that a resource may set although they are refused by default; `NAME_*` is all
    that begin so. SSL_CERT_FILE admits trustedCA, too."""
    images: tuple[Image, ...] = ()
    """Images, registries and folders of images, such as registry.example.com/models, that a resource may
    name. Empty: any."""
    service_accounts: tuple[Name, ...] = ()
    """Service accounts that a resource may name, beside default, and whose tokens it may mount. Empty: any,
    and no token."""
    file_paths: tuple[Folder, ...] = ()
    """Folders below which the arguments of a resource may name files. Empty: the cache, the model and the
    mount roots, once another value sets the policy."""
    mount_roots: tuple[Folder, ...] = ()
    """Folders below which a resource may mount files and volumes, beside /adapters, /data, /etc/models, /mnt,
    /models, /srv and /vault."""
    annotations: tuple[LabelKey, ...] = ()
    """Keys of labels and annotations that a resource may set; `example.org/*` is all that begin so."""
    priority_classes: tuple[Name, ...] = ()
    """Priority classes that a resource may name."""
    runtime_classes: tuple[Name, ...] = ()
    """Runtime classes that a resource may name."""
    schedulers: tuple[Name, ...] = ()
    """Schedulers that a resource may name."""
    tolerations: tuple[LabelKey, ...] = ()
    """Keys of taints that a resource may tolerate, beside those of the devices."""
    extended_resources: tuple[LabelKey, ...] = ()
    """Extended resources and huge pages, such as rdma/ib, that a resource may ask for, beside those of the
    devices."""
    csi_drivers: tuple[Name, ...] = ()
    """CSI drivers that a resource may name."""
    service_types: tuple[Literal["ClusterIP", "NodePort", "LoadBalancer"], ...] = ()
    """Types of Service that a resource may ask for, beside ClusterIP."""
    secrets: tuple[Name, ...] = ()
    """Secrets that a resource may name. Empty: any where Slipway keeps the value to itself (spec.secrets,
    spec.model.s3.secret, imagePullSecrets), and none as files or as variables of other kinds."""
    claims: tuple[Name, ...] = ()
    """PersistentVolumeClaims, ResourceClaims and ResourceClaimTemplates that a resource may name. Empty:
    any."""
    profiles: Mapping[ObjectName, tuple[ObjectName, ...]] = field(default_factory=dict)
    """ServingProfiles that a resource may choose, each with the namespaces that may; an empty list is all of
    them. Empty: any profile in any namespace."""

    @property
    def bounded(self) -> bool:
        """Whether any value bounds documents; then all that is in no list is refused."""
        return any(getattr(self, name) for name in KEYS.values() if name not in ONLY_WIDEN)

    def of(self, key: str) -> Any:
        """The value that the chart calls so."""
        return getattr(self, KEYS[key])


KEYS = {camel(one.name): one.name for one in fields(Policy)}
"""The field of Policy by what documents of YAML call it."""
ONLY_WIDEN = frozenset({"allow_code", "permitted_arguments", "permitted_env"})
"""Values that admit more than is usual, and alone set no policy."""


def starts(value: str, names: Collection[str]) -> bool:
    """Whether it is one of the names, or begins like one that ends with a star."""
    return any(value == one or (one.endswith("*") and value.startswith(one[:-1])) for one in names)
