"""The InferenceService document: what a user says about one served model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Literal

from slipway.service.fields import Form, Range, Rest
from slipway.service.forms import (
    BUCKET_STEP,
    OTHER_RESOURCE,
    AbsolutePath,
    AddressRange,
    Count,
    Duration,
    ExtendedResource,
    ImageReference,
    Key,
    LoadBalancerClass,
    MigProfile,
    MountPath,
    ObjectName,
    Port,
    PositiveId,
    Quantity,
    RelativePath,
    Seconds,
    ServiceName,
    Share,
    Surge,
)
from slipway.service.peers import Peer
from slipway.service.pod_parts import Container, DnsConfig, EnvVar, HostAlias, KeyReference, SeLinux, Volume

API_VERSION = "slipway.dev/v1alpha1"
KIND = "InferenceService"


@dataclass(frozen=True, slots=True, kw_only=True)
class Metadata:
    name: ServiceName
    namespace: ObjectName | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)


_OF_HUB = r"[A-Za-z0-9_][^\s/]*"
"""A step of a name, and none of a path: the server looks for a folder before it asks the hub."""
_REF = r"[^\s/.-][^\s/]*"
"""A step of a reference of git's, which begins with no dot."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HubModel:
    """A model of the Hugging Face hub."""

    id: Annotated[str, Form(rf"{_OF_HUB}(/{_OF_HUB}){{0,2}}", "a model of the hub such as org/name")]
    revision: Annotated[str, Form(rf"{_REF}(/{_REF})*", "a branch, a tag or a commit")] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class VolumeModel:
    """A model on a PersistentVolumeClaim."""

    name: ObjectName
    path: RelativePath | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageModel:
    """A model in an OCI image, mounted as a volume."""

    reference: ImageReference
    path: RelativePath | None = None
    pull_policy: Literal["Always", "IfNotPresent", "Never"] | None = None
    """When the node fetches the image, as for a container's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class S3Model:
    """A folder of a bucket, fetched into the cache before the server starts."""

    uri: Annotated[
        str,
        Form(rf"s3://({BUCKET_STEP})(/({BUCKET_STEP}))*/?", "a URI such as s3://bucket/folder"),
    ]
    endpoint: Annotated[str, Form(r"https?://[^\s/]+\S*", "a URL such as https://s3.example.org")] | None = (
        None
    )
    """Of a store that is not Amazon's."""
    secret: ObjectName | None = None
    """With the keys AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, and AWS_SESSION_TOKEN where there is one.

    Without it the service account's own role, or nobody, reads the bucket.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class Cache:
    """Where downloads go: a claim that outlives pods, else an emptyDir of at most `size`."""

    pvc: ObjectName | None = None
    size: Quantity | None = None
    """Of the emptyDir: 100Gi where the model is downloaded, else 10Gi."""
    access_mode: Literal["ReadWriteMany", "ReadWriteOnce", "ReadWriteOncePod"] | None = None
    """Of the claim. All but ReadWriteMany make a rollout stop the old pods before new ones start."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """Exactly one of hub, pvc, image, s3 and path."""

    hub: HubModel | None = None
    pvc: VolumeModel | None = None
    image: ImageModel | None = None
    s3: S3Model | None = None
    path: AbsolutePath | None = None
    """In the runtime's image or below a mount of `volumes` or `files`; on this machine for `slipway run`."""
    served_names: tuple[str, ...] = ()
    """What requests call the model. Unset, the hub's id or the path."""
    cache: Cache = field(default_factory=Cache)


@dataclass(frozen=True, slots=True, kw_only=True)
class Runtime:
    """The image that serves, and what else its pods carry."""

    image: ImageReference | None = None
    """Unset, the operator's own for the devices."""
    image_pull_policy: Literal["Always", "IfNotPresent", "Never"] | None = None
    """When the node fetches the image, as for any container."""
    image_pull_secrets: tuple[ObjectName, ...] = ()
    """Names of Secrets with the registry's credentials. Unset, those that the operator gives to all."""
    service_account_name: ObjectName | None = None
    """Account that the pods run under. Its token is mounted by a projected volume alone."""
    pod_labels: Mapping[str, str] = field(default_factory=dict)
    """Labels of the pods, beside the operator's own."""
    pod_annotations: Mapping[str, str] = field(default_factory=dict)
    """Annotations of the pods."""


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
    """Where credentials are: names and keys of Secrets, never a value."""

    hub_token: KeyReference | None = None
    """Token of the model hub."""
    api_key: KeyReference | None = None
    """What clients must send as their bearer token."""
    tls: TlsSecret | None = None
    """Certificate and key of the API, which then speaks https."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrustedCa:
    """Certificate authorities, as PEM in a ConfigMap of the pods' namespace. They replace the image's own."""

    config_map: ObjectName
    key: Key = "ca.crt"


@dataclass(frozen=True, slots=True, kw_only=True)
class Files:
    """The keys of a ConfigMap or Secret as files of a folder, for arguments that are paths."""

    KEY: ClassVar[str] = "mount_path"
    mount_path: MountPath
    config_map: ObjectName | None = None
    secret: ObjectName | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceClaim:
    """A ResourceClaim that is there, or the template of one for each pod."""

    resource_claim_name: ObjectName | None = None
    """All pods share its devices."""
    resource_claim_template_name: ObjectName | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Devices:
    """Accelerators of each pod. Without a vendor and without claims the model runs on CPU."""

    vendor: Literal["nvidia", "amd", "intel", "habana", "google"] | None = None
    """Whose devices. For all but nvidia the runtime's image is named in `runtime.image`."""
    count: Annotated[int, Range(1, 64)] | None = None
    """Tensor × pipeline × local data parallel size, which is also its default with a vendor."""
    resource: ExtendedResource | None = None
    """Extended resource to ask for. Unset, that of the vendor's own device plugin."""
    profile: MigProfile | None = None
    """Slices of this MIG profile instead of whole devices."""
    claims: tuple[ObjectName | DeviceClaim, ...] = ()
    """Instead of a count: names of ResourceClaimTemplates, of which each pod has a claim of its own, or
    `resourceClaimName: NAME` for a ResourceClaim that all pods share."""

    @property
    def present(self) -> bool:
        return self.vendor is not None or bool(self.claims)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What a pod may use at most, where that is not what it is promised. Extended resources and huge pages
    that stand here by their names are promised, too."""

    cpu: Quantity | None = None
    """Unset, `resources.cpu` on CPU, whose server has a thread for each, and none with devices."""
    memory: Quantity | None = None
    """For the processes, as `resources.memory`, which it is where unset."""
    ephemeral_storage: Quantity | None = None
    """Unset, `resources.ephemeralStorage`."""
    others: Annotated[Mapping[str, Quantity], Rest(OTHER_RESOURCE)] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Resources:
    """What a pod is promised. It is the limit of memory and storage too, unless `limits` says more. Extended
    resources such as rdma/ib and huge pages such as hugepages-2Mi stand here by their names."""

    cpu: Quantity | None = None
    """Unset, with devices one for each of the pod's parallel workers and API servers."""
    memory: Quantity | None = None
    """For the processes; the pod has `sharedMemory` on top. Unset, with devices 4Gi for each parallel worker,
    without a limit."""
    shared_memory: Quantity | None = None
    """Size of /dev/shm. Unset, 1Gi for each of the pod's parallel workers."""
    ephemeral_storage: Quantity | None = None
    others: Annotated[Mapping[str, Quantity], Rest(OTHER_RESOURCE)] = field(default_factory=dict)
    limits: Limits = field(default_factory=Limits)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scheduling:
    """Where the pods may run, in the words of a pod's own specification."""

    node_selector: Mapping[str, str] = field(default_factory=dict)
    """Labels that a node must have."""
    affinity: Mapping[str, object] = field(default_factory=dict)
    """nodeAffinity, podAffinity and podAntiAffinity."""
    tolerations: tuple[Mapping[str, object], ...] = ()
    """Taints that do not keep the pods away. Those of the devices are tolerated anyway."""
    topology_spread_constraints: tuple[Mapping[str, object], ...] = ()
    """How replicas are spread over zones or nodes."""
    priority_class_name: ObjectName | None = None
    """PriorityClass of the pods."""
    runtime_class_name: ObjectName | None = None
    """RuntimeClass of the pods, where devices need one."""
    scheduler_name: ObjectName | None = None
    """Scheduler of the pods, where it is not the cluster's default."""
    dns_policy: Literal["ClusterFirst", "Default", "None"] | None = None
    """Where names of hosts are looked up: in the cluster first, as the node does, or as `dnsConfig` alone
    says. Unset, ClusterFirst."""
    dns_config: DnsConfig = field(default_factory=DnsConfig)
    host_aliases: tuple[HostAlias, ...] = ()
    """Lines of /etc/hosts, for hosts that no name server knows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """The Service that clients call; it has the resource's name."""

    port: Port = 8000
    """Of the Service and of the API in the pods."""
    type: Literal["ClusterIP", "NodePort", "LoadBalancer"] = "ClusterIP"
    """How far it can be reached."""
    labels: Mapping[str, str] = field(default_factory=dict)
    """Labels of the Service, beside the operator's own."""
    annotations: Mapping[str, str] = field(default_factory=dict)
    """Annotations of the Service, such as a load balancer's settings."""
    ip_family_policy: Literal["SingleStack", "PreferDualStack", "RequireDualStack"] = "PreferDualStack"
    """Addresses of one family of IP, of both where the cluster has both, or of both in any case."""
    load_balancer_class: LoadBalancerClass | None = None
    """Which of several load balancers serves it, for type LoadBalancer. It cannot be changed later."""
    load_balancer_source_ranges: tuple[AddressRange, ...] = ()
    """Whose clients a load balancer lets through; everybody's where none is named."""
    external_traffic_policy: Literal["Cluster", "Local"] | None = None
    """Whether a node hands requests on to pods of other nodes, for types NodePort and LoadBalancer. Local
    keeps the clients' addresses."""
    traffic_distribution: Literal["PreferClose", "PreferSameZone", "PreferSameNode"] | None = None
    """Which pods requests reach first: those in the client's zone, or on its node. Unset, all alike."""
    from_: tuple[Peer, ...] | None = None
    """Who may connect to the pods, by a NetworkPolicy, beside the operator and those who scrape metrics; none
    where the list is empty. Unset, everybody may."""
    to: tuple[Peer, ...] | None = None
    """Whom the pods may connect to, by the same policy, beside name servers and, by port, the model's source.
    Unset, everybody."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Monitoring:
    """How the Prometheus Operator finds the metrics."""

    enabled: bool = False
    """Whether there is a monitor. Where the cluster does not know its kind, there is none until it does."""
    kind: Literal["ServiceMonitor", "PodMonitor"] = "ServiceMonitor"
    """Which of the two is made."""
    labels: Mapping[str, str] = field(default_factory=dict)
    """Labels of the monitor, by which a Prometheus selects it."""
    annotations: Mapping[str, str] = field(default_factory=dict)
    """Annotations of the monitor."""
    interval: Duration = "30s"
    """Time between two scrapes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Security:
    """What the pods run as, beside the restricted security level that they always meet."""

    run_as_user: PositiveId | None = None
    """Unset, 1001, or on OpenShift a number of the namespace's range. Root is refused either way."""
    fs_group: PositiveId | None = None
    """Group of the volumes. Unset, `runAsUser`."""
    supplemental_groups: tuple[PositiveId, ...] = ()
    """More groups of the processes, such as those that own files on a shared file system."""
    se_linux: SeLinux = field(default_factory=SeLinux)
    read_only_root_filesystem: bool | None = None
    """Unset means true on CPU and false with devices, whose legacy hooks write into it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Disruption:
    """At most one of its two bounds; one pod may go at a time where neither is given."""

    min_available: Share | None = None
    """Replicas that an eviction must leave, as a number or a percentage."""
    max_unavailable: Share | None = None
    """Replicas that may be evicted at a time, as a number or a percentage."""
    labels: Mapping[str, str] = field(default_factory=dict)
    """Labels of the PodDisruptionBudget."""
    annotations: Mapping[str, str] = field(default_factory=dict)
    """Annotations of the PodDisruptionBudget."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollout:
    """How new pods take the place of old ones."""

    max_surge: Surge | None = None
    """Pods above `replicas` while a change rolls out; each needs devices of its own. Auto: one where a node
    has room for it, else an old pod ends first. Unset, Auto with devices and 1 without."""
    max_unavailable: Share = 0
    """Replicas that may be missing meanwhile. Above 0 where no spare device is left for a surge."""
    progress_deadline_seconds: Annotated[int, Range(1, 2**31 - 1)] = 1800
    """Seconds without progress after which a rollout counts as failed."""
    drain_seconds: Seconds | None = None
    """For running requests to finish: --drain-timeout, whose default it has where unset."""
    fit: Literal["Enforce", "Off"] = "Enforce"
    """Enforce: new pods with NVIDIA's devices start only if `slipway fit` says that the model fits a device
    that labels of nodes name. Off: they start in any case."""
    template: Literal["Pinned", "Latest"] = "Pinned"
    """Pinned: a newer operator changes no running pod. Latest: it rolls out its own template at once."""
    labels: Mapping[str, str] = field(default_factory=dict)
    """Labels of the Deployment."""
    annotations: Mapping[str, str] = field(default_factory=dict)
    """Annotations of the Deployment."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceSpec:
    """The whole document, checked: `slipway.service.load` makes it."""

    metadata: Metadata
    model: Model
    profile: ObjectName | None = None
    """ServingProfile of the cluster, for what is not said here: devices, image, place, variables."""
    runtime: Runtime = field(default_factory=Runtime)
    engine: Mapping[str, object] = field(default_factory=dict)
    env: tuple[EnvVar, ...] = ()
    """Variables of the server. Those of VLLM_ and SLIPWAY_ that it does not know are refused."""
    secrets: Secrets = field(default_factory=Secrets)
    trusted_ca: TrustedCa | None = None
    """Whose certificates server and fetch trust, in place of public ones. Unset, what the operator says."""
    files: tuple[Files, ...] = ()
    """Folders of files from ConfigMaps and Secrets, for arguments that are paths."""
    volumes: tuple[Volume, ...] = ()
    """Claims, CSI volumes, empty folders and projected ones beside those of model, cache and files."""
    init_containers: tuple[Container, ...] = ()
    """Run one after another and end before anything else of the pod starts."""
    sidecars: tuple[Container, ...] = ()
    """Start after initContainers, before the model is fetched, and run as long as the server does."""
    devices: Devices = field(default_factory=Devices)
    resources: Resources = field(default_factory=Resources)
    replicas: Count = 1
    """Pods that serve. An autoscaler of this resource sets it through /scale."""
    suspend: bool = False
    """No pod runs while it is true; everything else stays."""
    scheduling: Scheduling = field(default_factory=Scheduling)
    service: Service = field(default_factory=Service)
    monitoring: Monitoring = field(default_factory=Monitoring)
    security: Security = field(default_factory=Security)
    disruption: Disruption = field(default_factory=Disruption)
    rollout: Rollout = field(default_factory=Rollout)

    @property
    def name(self) -> str:
        return self.metadata.name
