"""What a document may set under a policy: one table.

The operator's check (`slipway.service.policy`) and the API server's (`slipway.service.admission`) are made of
it. Each field of a document is either in BOUNDS or in FREE, which says why no policy bounds it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from slipway.service.devices import VENDORS
from slipway.service.engine import CACHE, MODEL_FOLDER
from slipway.service.usual_variables import DEVICE_VARIABLES, HIDING, NEVER_LEAVING, VARIABLES

OF_VENDORS = tuple(vendor.resource for vendor in VENDORS.values())
MOUNT_ROOTS = ("/adapters", "/data", "/etc/models", "/mnt", "/models", "/srv", "/vault")
"""Where no image of ours has anything: not below /cache either, where compiled code is found and loaded."""
FILE_ROOTS = (str(CACHE), str(MODEL_FOLDER), *MOUNT_ROOTS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """What of some fields a policy admits: what is usual, and what one of its values adds.

    A place is a path of fields. `x[]` is each item of a list, `x[?]` each that `named` or `others` leaves,
    `x[|]` each of a list of texts and objects that is what the place takes it for, and `x{}` each key of a
    map. `x!NAME` says NAME where the field is there at all.
    """

    title: str
    """What the values are, as a plural."""
    places: tuple[str, ...]
    why: str
    """What could come of any other value, as a clause."""
    setting: str = ""
    """Key of the value that admits more; without one a ServingProfile may say it, and no document."""
    usual: tuple[str, ...] = ()
    """Admitted under every policy; what ends with a star is the beginning of a name."""
    match: Literal["name", "folder", "image", "profile"] = "name"
    code: bool = False
    """It is for code of a document's own, and `allowCode` lifts it."""
    optional: bool = False
    """Where the setting is empty, everything is admitted."""
    given: str = ""
    """Another setting without which everything is admitted."""
    named: tuple[str, ...] = ()
    others: tuple[str, ...] = ()
    missing: str = ""
    """What an item that lacks the field is taken to say."""
    subject: str = ""
    """Place of another field, whose value is what `x!` says."""

    def takes(self, item: object) -> bool:
        """Whether the bound is about an item of a list `x[?]`."""
        name = item.get("name") if isinstance(item, Mapping) else None
        return name in self.named if self.named else name not in self.others


def _everywhere(entry: str) -> tuple[str, ...]:
    """The same place in the server and in each container beside it."""
    return tuple(f"spec.{one}{entry}" for one in ("", "initContainers[].", "sidecars[]."))


BOUNDS = (
    Bound(
        title="variables",
        setting="permittedEnv",
        places=(*_everywhere("env[].name"), "spec.trustedCA!SSL_CERT_FILE"),
        usual=VARIABLES,
        code=True,
        why="it could load code, or send credentials and the model's source elsewhere",
    ),
    Bound(
        title="devices",
        places=_everywhere("env[?].value"),
        named=DEVICE_VARIABLES,
        usual=HIDING,
        missing="a value from elsewhere",
        why="a container runtime would hand out devices that nobody counted; spec.devices asks for them",
    ),
    Bound(
        title="folders",
        setting="mountRoots",
        places=(
            "spec.files[].mountPath",
            "spec.volumes[].mountPath",
            "spec.initContainers[].volumeMounts[].mountPath",
            "spec.sidecars[].volumeMounts[].mountPath",
        ),
        usual=MOUNT_ROOTS,
        match="folder",
        code=True,
        why="what is mounted there could take the place of programs and libraries",
    ),
    Bound(
        title="images",
        setting="images",
        places=(
            "spec.runtime.image",
            "spec.model.image.reference",
            "spec.initContainers[].image",
            "spec.sidecars[].image",
        ),
        match="image",
        optional=True,
        why="an image runs what it likes",
    ),
    Bound(
        title="commands",
        places=tuple(
            f"spec.{one}[].{words}[]"
            for one in ("initContainers", "sidecars")
            for words in ("command", "args")
        ),
        given="images",
        code=True,
        why="images are admitted as they are, and with these words they would run what whoever writes this "
        "document likes",
    ),
    Bound(
        title="accounts",
        setting="serviceAccounts",
        places=("spec.runtime.serviceAccountName",),
        usual=("default",),
        optional=True,
        why="the cloud and other services would take the pods for that account",
    ),
    Bound(
        title="accounts with tokens",
        setting="serviceAccounts",
        places=("spec.volumes[].projected.sources[].serviceAccountToken!",),
        subject="spec.runtime.serviceAccountName",
        missing="an account that the document does not name",
        why="who writes this document could read the token, and be that account wherever it is known",
    ),
    Bound(
        title="labels and annotations",
        setting="annotations",
        places=(
            "spec.runtime.podLabels{}",
            "spec.runtime.podAnnotations{}",
            "spec.rollout.labels{}",
            "spec.rollout.annotations{}",
            "spec.service.labels{}",
            "spec.service.annotations{}",
            "spec.monitoring.annotations{}",
            "spec.disruption.labels{}",
            "spec.disruption.annotations{}",
        ),
        why="by these, meshes and webhooks add containers and devices, others' Services find pods, and load "
        "balancers are set up",
    ),
    Bound(
        title="priority classes",
        setting="priorityClasses",
        places=("spec.scheduling.priorityClassName",),
        why="its pods could take the place of others",
    ),
    Bound(
        title="runtime classes",
        setting="runtimeClasses",
        places=("spec.scheduling.runtimeClassName",),
        why="it decides what keeps the containers from the node",
    ),
    Bound(
        title="schedulers",
        setting="schedulers",
        places=("spec.scheduling.schedulerName",),
        usual=("default-scheduler",),
        why="it decides which pods go before others",
    ),
    Bound(
        title="tolerations",
        setting="tolerations",
        places=("spec.scheduling.tolerations[].key",),
        usual=OF_VENDORS,
        missing="every taint",
        why="the nodes are kept for others",
    ),
    Bound(
        title="selectors",
        places=tuple(
            f"spec.scheduling.affinity.podAntiAffinity.{term}.{field}"
            for term in (
                "requiredDuringSchedulingIgnoredDuringExecution[]",
                "preferredDuringSchedulingIgnoredDuringExecution[].podAffinityTerm",
            )
            for field in ("namespaces[]", "namespaceSelector!namespaceSelector")
        ),
        why="it would keep the pods of other namespaces from the nodes",
    ),
    Bound(
        title="extended resources",
        setting="extendedResources",
        places=(
            "spec.devices.resource",
            "spec.resources{}",
            "spec.resources.limits{}",
            *(
                f"spec.{one}[].resources.{amounts}{{}}"
                for one in ("initContainers", "sidecars")
                for amounts in ("requests", "limits")
            ),
        ),
        usual=(
            "cpu",
            "memory",
            "ephemeral-storage",
            "ephemeralStorage",
            "sharedMemory",
            "limits",
            *OF_VENDORS,
            "nvidia.com/gpu.shared",
            "nvidia.com/mig-*",
        ),
        why="it could be any device of the node",
    ),
    Bound(
        title="CSI drivers",
        setting="csiDrivers",
        places=("spec.volumes[].csi.driver",),
        why="a driver may bring the node's own folders, or secrets of others",
    ),
    Bound(
        title="types of Service",
        setting="serviceTypes",
        places=("spec.service.type",),
        usual=("ClusterIP",),
        why="it would open the service to who is outside the cluster",
    ),
    Bound(
        title="readable Secrets",
        setting="secrets",
        places=(
            "spec.files[].secret",
            "spec.volumes[].projected.sources[].secret.name",
            *_everywhere("env[?].secret.name"),
        ),
        others=NEVER_LEAVING,
        why="who writes this document could read it",
    ),
    Bound(
        title="Secrets",
        setting="secrets",
        places=(
            "spec.secrets.hubToken.name",
            "spec.secrets.apiKey.name",
            "spec.secrets.tls.name",
            "spec.model.s3.secret",
            "spec.runtime.imagePullSecrets[]",
            *_everywhere("env[].secret.name"),
        ),
        optional=True,
        why="the service would use what belongs to others",
    ),
    Bound(
        title="claims",
        setting="claims",
        places=("spec.model.pvc.name", "spec.model.cache.pvc", "spec.volumes[].pvc.name"),
        optional=True,
        why="the service could read it, write to it, and load compiled code from it",
    ),
    Bound(
        title="claims of devices",
        setting="claims",
        places=(
            "spec.devices.claims[|]",
            "spec.devices.claims[|].resourceClaimName",
            "spec.devices.claims[|].resourceClaimTemplateName",
        ),
        optional=True,
        why="its devices could be those of others",
    ),
    Bound(
        title="profiles",
        setting="profiles",
        places=("spec.profile",),
        match="profile",
        optional=True,
        why="it is for other namespaces",
    ),
    Bound(
        title="names of hosts",
        places=(
            "spec.scheduling.hostAliases[].ip",
            "spec.scheduling.dnsConfig.nameservers[]",
            "spec.scheduling.dnsConfig.searches[]",
            "spec.scheduling.dnsPolicy",
        ),
        usual=("ClusterFirst",),
        why="credentials could go to others than they are meant for",
    ),
    Bound(
        title="SELinux contexts",
        places=("spec.security.seLinux.level", "spec.security.seLinux.type"),
        usual=("container_t",),
        why="it is what keeps containers of one node apart",
    ),
)

FREE: Mapping[str, tuple[str, ...]] = {
    "weights, tokenizers and templates are data, and run no code": (
        "spec.model.hub",
        "spec.model.pvc.path",
        "spec.model.image.path",
        "spec.model.servedNames",
        "spec.model.cache.size",
        "spec.model.cache.accessMode",
    ),
    "whom pods may ask is for a NetworkPolicy; what a store answers becomes files of the cache": (
        "spec.model.s3.uri",
        "spec.model.s3.endpoint",
    ),
    "bounded by permittedArguments and filePaths": ("spec.engine", "spec.model.path"),
    "values of a variable or Secret that may be named": (
        *(
            f"{entry}.{part}"
            for entry in _everywhere("env[]")
            for part in ("secret.key", "configMap", "field")
        ),
        *(f"{entry}.value" for entry in _everywhere("env[]")),
        "spec.secrets.hubToken.key",
        "spec.secrets.apiKey.key",
        "spec.secrets.tls.certificate",
        "spec.secrets.tls.privateKey",
        "spec.secrets.tls.authority",
    ),
    "ConfigMaps, and fields of its own pod, are for everybody in the namespace": (
        "spec.files[].configMap",
        "spec.volumes[].projected.sources[].configMap",
        "spec.volumes[].projected.sources[].downwardAPI",
    ),
    "which files there are of a token, a Secret or an authority that may be named": (
        *(f"spec.volumes[].projected.sources[].secret.{field}" for field in ("items", "optional")),
        *(
            f"spec.volumes[].projected.sources[].serviceAccountToken.{field}"
            for field in ("path", "audience", "expirationSeconds")
        ),
        "spec.volumes[].projected.defaultMode",
        "spec.trustedCA",
    ),
    "a volume that may be named, mounted where it may be": (
        "spec.volumes[].name",
        "spec.volumes[].subPath",
        "spec.volumes[].pvc.readOnly",
        "spec.volumes[].csi.readOnly",
        "spec.volumes[].csi.volumeAttributes",
        "spec.volumes[].emptyDir",
        *(
            f"spec.{one}[].volumeMounts[].{field}"
            for one in ("initContainers", "sidecars")
            for field in ("name", "subPath", "readOnly")
        ),
    ),
    "how an image that may be named runs, at the restricted level": (
        "spec.runtime.imagePullPolicy",
        "spec.model.image.pullPolicy",
        *(
            f"spec.{one}[].{field}"
            for one in ("initContainers", "sidecars")
            for field in ("name", "imagePullPolicy", "resources", "security")
        ),
    ),
    "counted by quotas": (
        "spec.devices.vendor",
        "spec.devices.count",
        "spec.devices.profile",
        "spec.resources",
        "spec.replicas",
        "spec.suspend",
    ),
    "a choice among nodes that no taint closes, and pods of the namespace": (
        "spec.scheduling.nodeSelector",
        "spec.scheduling.affinity",
        "spec.scheduling.tolerations",
        "spec.scheduling.topologySpreadConstraints",
    ),
    "of names of hosts that may be given": (
        "spec.scheduling.hostAliases[].hostnames",
        "spec.scheduling.dnsConfig.options",
    ),
    "how the Service is reached, of a type that it may have": (
        "spec.service.port",
        "spec.service.ipFamilyPolicy",
        "spec.service.loadBalancerClass",
        "spec.service.loadBalancerSourceRanges",
        "spec.service.externalTrafficPolicy",
        "spec.service.trafficDistribution",
    ),
    "a NetworkPolicy for these pods alone": ("spec.service.from", "spec.service.to"),
    "by which a Prometheus finds the service": (
        "spec.monitoring.enabled",
        "spec.monitoring.kind",
        "spec.monitoring.labels",
        "spec.monitoring.interval",
    ),
    "any user but root, for files of claims that may be named": (
        "spec.security.runAsUser",
        "spec.security.fsGroup",
        "spec.security.supplementalGroups",
        "spec.security.readOnlyRootFilesystem",
    ),
    "how these pods give way to each other, and to an eviction": (
        "spec.disruption.minAvailable",
        "spec.disruption.maxUnavailable",
        "spec.rollout.maxSurge",
        "spec.rollout.maxUnavailable",
        "spec.rollout.progressDeadlineSeconds",
        "spec.rollout.drainSeconds",
        "spec.rollout.fit",
        "spec.rollout.template",
    ),
}
"""Fields, each with all below it, that no policy bounds, by why."""


def said(document: Mapping[str, Any], place: str, bound: Bound) -> Iterator[tuple[str, str]]:
    """What the document says at the place, each with its field."""
    for path, value in _below(document, place.split("."), "", bound):
        yield path, _of_subject(document, bound) if bound.subject else value


def _of_subject(document: Mapping[str, Any], bound: Bound) -> str:
    found = _below(document, bound.subject.split("."), "", bound)
    return next((value for _, value in found), bound.missing)


def _below(node: object, steps: list[str], path: str, bound: Bound) -> Iterator[tuple[str, str]]:
    if not isinstance(node, Mapping):
        return
    step, *rest = steps
    step, there, word = step.partition("!")
    name = step.rstrip("[?|]{}")
    value, path = node.get(name), f"{path}.{name}".lstrip(".")
    if there:
        if name in node:
            yield path, word
    elif step.endswith("{}"):
        yield from ((path, str(key)) for key in (value if isinstance(value, Mapping) else ()))
    elif step.endswith("]"):
        for index, item in enumerate(value if isinstance(value, list) else ()):
            if rest and (not step.endswith("[?]") or bound.takes(item)):
                yield from _below(item, rest, f"{path}[{index}]", bound)
            elif not rest and not isinstance(item, Mapping):
                yield path, str(item)
    elif rest:
        yield from _below(value, rest, path, bound)
    elif value is not None or bound.missing:
        yield path, bound.missing if value is None else str(value)
