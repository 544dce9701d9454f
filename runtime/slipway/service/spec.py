"""The InferenceService document: what a user says about one served model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Literal

from slipway.service.fields import Form, Range

API_VERSION = "slipway.dev/v1alpha1"
KIND = "InferenceService"

ServiceName = Annotated[
    str,
    Form(
        r"[a-z]([-a-z0-9]{0,48}[a-z0-9])?",
        "a name of at most 50 lower-case letters, digits and dashes that begins with a letter",
    ),
]
ObjectName = Annotated[
    str,
    Form(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?", "the name of a Kubernetes object"),
]
Key = Annotated[str, Form(r"[-._a-zA-Z0-9]{1,253}", "a key of a Secret or ConfigMap")]
AbsolutePath = Annotated[str, Form(r"/(?!(.*/)?\.\.(/|$)).*", "an absolute path without ..")]
RelativePath = Annotated[
    str, Form(r"(?!/)(?!(.*/)?\.\.(/|$)).+", "a path inside the volume, without .. and a first slash")
]
Quantity = Annotated[
    str,
    Form(
        r"[0-9]+(\.[0-9]+)?(m|k|M|G|T|P|Ki|Mi|Gi|Ti|Pi)?",
        "a quantity such as 500m, 2 or 8Gi",
        numbers=True,
    ),
]
Duration = Annotated[str, Form(r"([0-9]+(ms|s|m|h))+", "a duration such as 30s")]
EnvName = Annotated[str, Form(r"[A-Za-z_][A-Za-z0-9_]*", "a name of a variable")]
Seconds = Annotated[int, Range(0, 86400)]
Port = Annotated[int, Range(1, 65535)]
Count = Annotated[int, Range(0, 1000)]
Share = Annotated[int, Range(0, 1000)] | Annotated[str, Form(r"[0-9]{1,2}%|100%", "a number or a percentage")]


@dataclass(frozen=True, slots=True, kw_only=True)
class Metadata:
    name: ServiceName
    namespace: ObjectName | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class VolumeModel:
    """A model on a PersistentVolumeClaim."""

    name: ObjectName
    path: RelativePath | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageModel:
    """A model in an OCI image, mounted as a volume."""

    reference: str
    path: RelativePath | None = None
    pull_policy: Literal["Always", "IfNotPresent", "Never"] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Cache:
    """Where downloads go: a claim that outlives pods, else an emptyDir of at most `size`."""

    pvc: ObjectName | None = None
    size: Quantity | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """Exactly one of hub, pvc, image, s3 and path."""

    hub: Annotated[str, Form(r"[^\s/-][^\s/]*(/[^\s/]+)?", "a model of the hub such as org/name")] | None = (
        None
    )
    pvc: VolumeModel | None = None
    image: ImageModel | None = None
    s3: Annotated[str, Form(r"s3://\S+", "a URL such as s3://bucket/folder")] | None = None
    path: AbsolutePath | None = None
    """In the container's own file system, or that of the machine for `slipway run`."""
    served_names: tuple[str, ...] = ()
    cache: Cache = field(default_factory=Cache)


@dataclass(frozen=True, slots=True, kw_only=True)
class Runtime:
    image: str | None = None
    image_pull_policy: Literal["Always", "IfNotPresent", "Never"] | None = None
    image_pull_secrets: tuple[ObjectName, ...] = ()
    service_account_name: ObjectName | None = None
    pod_labels: Mapping[str, str] = field(default_factory=dict)
    pod_annotations: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyReference:
    """One key of a Secret or a ConfigMap."""

    name: ObjectName
    key: Key


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvVar:
    """A variable with a value, or with the key of a Secret or ConfigMap that holds it."""

    name: EnvName
    value: str | None = None
    secret: KeyReference | None = None
    config_map: KeyReference | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsSecret:
    """Keys of the Secret that hold PEM files."""

    name: ObjectName
    certificate: Key = "tls.crt"
    private_key: Key = "tls.key"
    authority: Key | None = None
    """Of those who sign client certificates."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Secrets:
    hub_token: KeyReference | None = None
    api_key: KeyReference | None = None
    tls: TlsSecret | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Files:
    """The keys of a ConfigMap or Secret as files of a folder, for arguments that are paths."""

    mount_path: AbsolutePath
    config_map: ObjectName | None = None
    secret: ObjectName | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Devices:
    """Without a count and without claims the model runs on CPU."""

    vendor: Literal["nvidia"] = "nvidia"
    count: Annotated[int, Range(0, 64)] = 0
    profile: Annotated[str, Form(r"[0-9]g\.[0-9]+gb(\.\w+)?", "a MIG profile such as 1g.10gb")] | None = None
    claims: tuple[ObjectName, ...] = ()
    """Names of ResourceClaimTemplates, instead of a count."""

    @property
    def present(self) -> bool:
        return self.count > 0 or bool(self.claims)


@dataclass(frozen=True, slots=True, kw_only=True)
class Resources:
    cpu: Quantity | None = None
    memory: Quantity | None = None
    shared_memory: Quantity = "1Gi"
    """Counts against `memory`."""
    ephemeral_storage: Quantity | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Scheduling:
    node_selector: Mapping[str, str] = field(default_factory=dict)
    affinity: Mapping[str, object] = field(default_factory=dict)
    tolerations: tuple[Mapping[str, object], ...] = ()
    topology_spread_constraints: tuple[Mapping[str, object], ...] = ()
    priority_class_name: ObjectName | None = None
    runtime_class_name: ObjectName | None = None
    scheduler_name: ObjectName | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    port: Port = 8000
    type: Literal["ClusterIP", "NodePort", "LoadBalancer"] = "ClusterIP"
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Monitoring:
    enabled: bool = False
    kind: Literal["ServiceMonitor", "PodMonitor"] = "ServiceMonitor"
    labels: Mapping[str, str] = field(default_factory=dict)
    interval: Duration = "30s"


@dataclass(frozen=True, slots=True, kw_only=True)
class Security:
    run_as_user: Annotated[int, Range(1, 2**31 - 1)] | None = None
    """Unset, the image or the platform chooses; root is refused either way."""
    fs_group: Annotated[int, Range(1, 2**31 - 1)] | None = None
    read_only_root_filesystem: bool | None = None
    """Unset means true on CPU and false with devices, whose legacy hooks write into it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Disruption:
    """At most one of the two; one pod may go at a time where neither is given."""

    min_available: Share | None = None
    max_unavailable: Share | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollout:
    max_surge: Share = 1
    max_unavailable: Share = 0
    progress_deadline_seconds: Annotated[int, Range(1, 2**31 - 1)] = 1800
    drain_seconds: Seconds | None = None
    """For running requests to finish: --drain-timeout, whose default it has where unset."""
    template: Literal["Pinned", "Latest"] = "Pinned"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceSpec:
    """The whole document, checked: `slipway.service.load` makes it."""

    metadata: Metadata
    model: Model
    runtime: Runtime = field(default_factory=Runtime)
    engine: Mapping[str, object] = field(default_factory=dict)
    env: tuple[EnvVar, ...] = ()
    secrets: Secrets = field(default_factory=Secrets)
    files: tuple[Files, ...] = ()
    devices: Devices = field(default_factory=Devices)
    resources: Resources = field(default_factory=Resources)
    replicas: Count = 1
    suspend: bool = False
    scheduling: Scheduling = field(default_factory=Scheduling)
    service: Service = field(default_factory=Service)
    monitoring: Monitoring = field(default_factory=Monitoring)
    security: Security = field(default_factory=Security)
    disruption: Disruption = field(default_factory=Disruption)
    rollout: Rollout = field(default_factory=Rollout)

    @property
    def name(self) -> str:
        return self.metadata.name
