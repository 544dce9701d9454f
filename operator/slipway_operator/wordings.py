"""How Kubernetes words what goes wrong: one row for each message that the operator reads.

Kubernetes has no codes for these causes, and its words differ between versions and container runtimes. Each
row has samples with the version that prints them, and exactly one row of its source takes each sample. Where
a message has several causes, as the scheduler's has for several nodes, the first row of the table counts.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

from slipway_operator import reasons
from slipway_operator.reasons import Reason


class Source(Enum):
    """Where a message stands."""

    PLACEMENT = "the condition PodScheduled, or an event of a pod whose ResourceClaim cannot be made"
    ADMISSION = "what the API server says of an object that it refuses; of pods the ReplicaSet says it"
    VOLUME = "the same, or a container that cannot be created, where a type of volume is not taken"
    NODE = "the status of a pod that its node ended"
    PULL = "a container that waits for its image"
    MOUNT = "a container that waits for its configuration, or an event about a volume"
    SANDBOX = "an event of a pod whose sandbox cannot be made"
    PROBE = "an event of a container that is killed"


@dataclass(frozen=True, slots=True)
class Wording:
    """One cause in the words of Kubernetes."""

    source: Source
    reason: Reason
    """What it means."""
    pattern: re.Pattern[str]
    unless: tuple[Wording, ...]
    """Rows whose pattern is part of this one's: what they take is theirs."""
    samples: str
    """Each begins with the version that prints it; what is indented further belongs to the line above."""
    advice: str
    """What to do, where the row alone says it."""

    def search(self, text: str) -> re.Match[str] | None:
        return None if any(row.search(text) for row in self.unless) else self.pattern.search(text)


TABLE: list[Wording] = []


def _row(
    source: Source,
    reason: Reason,
    pattern: str,
    samples: str,
    *,
    unless: tuple[Wording, ...] = (),
    advice: str = "",
) -> Wording:
    TABLE.append(Wording(source, reason, re.compile(pattern), unless, samples, advice))
    return TABLE[-1]


def meanings(source: Source, text: str) -> Iterator[tuple[Wording, re.Match[str]]]:
    """The rows that take a message, the most important first."""
    for row in TABLE:
        if row.source is source and (match := row.search(text)):
            yield row, match


# A row is read as a row:
# fmt: off

# Why no node takes a pod.
NODES = re.compile(r"(\d+)/(\d+) nodes are available:\s*(.*)", re.DOTALL)
POST_FILTER = re.compile(
    r"[.,]?\s*(?:preemption:|no new claims to deallocate|still not schedulable).*", re.DOTALL
)
"""What preemption adds, which says nothing of the cause."""
INSUFFICIENT = _row(Source.PLACEMENT, reasons.UNSCHEDULABLE,
    r"(?:(?P<nodes>\d+) )?Insufficient (?P<resource>[A-Za-z0-9./_-]*[A-Za-z0-9])", r"""
    1.28: 0/3 nodes are available: 3 Insufficient nvidia.com/gpu. preemption: 0/3 nodes are available: 3
        No preemption victims found for incoming pod..
    1.34: 0/1 nodes are available: 1 Insufficient memory. no new claims to deallocate, preemption: 0/1
        nodes are available: 1 Preemption is not helpful for scheduling.
""")
DEVICES_TAKEN = _row(Source.PLACEMENT, reasons.UNSCHEDULABLE, r"cannot allocate all claims", r"""
    1.34: 0/1 nodes are available: 1 cannot allocate all claims. still not schedulable, preemption: 0/1
        nodes are available: 1 Preemption is not helpful for scheduling.
""")
DEVICES_ELSEWHERE = _row(Source.PLACEMENT, reasons.UNSCHEDULABLE,
    r"resourceclaim not available on the node", r"""
    1.34: 0/1 nodes are available: 1 resourceclaim not available on the node.
""")
VOLUME_HELD = _row(Source.PLACEMENT, reasons.UNSCHEDULABLE, r"ReadWriteOncePod access mode", r"""
    1.29: 0/1 nodes are available: 1 node has pod using PersistentVolumeClaim with the same name and
        ReadWriteOncePod access mode.
""")
CLAIM_UNBOUND = _row(Source.PLACEMENT, reasons.CLAIM_MISSING,
    r"unbound immediate PersistentVolumeClaims", r"""
    1.28: 0/1 nodes are available: pod has unbound immediate PersistentVolumeClaims. preemption: 0/1
        nodes are available: 1 Preemption is not helpful for scheduling.
    1.33: 0/1 nodes are available: pod has unbound immediate PersistentVolumeClaims. not found
""")
VOLUME_NOT_MADE = _row(Source.PLACEMENT, reasons.CLAIM_MISSING,
    r'running \w+ plugin "VolumeBinding": (?P<cause>.+)', r"""
    1.28: running PreBind plugin "VolumeBinding": binding volumes: timed out waiting for the condition
    1.31: running PreBind plugin "VolumeBinding": binding volumes: context deadline exceeded
    1.34: running PreBind plugin "VolumeBinding": binding volumes: provisioning failed for PVC "cache"
""")
CLAIM_ABSENT = _row(Source.PLACEMENT, reasons.CLAIM_MISSING,
    r'persistentvolumeclaims? "(?P<name>[^"]+)" not found', r"""
    1.34: 0/1 nodes are available: persistentvolumeclaim "weights" not found.
""")
TEMPLATE_ABSENT = _row(Source.PLACEMENT, reasons.CLAIM_MISSING,
    r'resourceclaimtemplate\S* "(?P<name>[^"]+)" not found', r"""
    1.34: PodResourceClaim gpus: resource claim template "two-gpus":
        resourceclaimtemplate.resource.k8s.io "two-gpus" not found
""")
DEVICE_CLAIM_ABSENT = _row(Source.PLACEMENT, reasons.CLAIM_MISSING,
    r'resourceclaims?(?:\.\S+)? "(?P<name>[^"]+)" not found', r"""
    1.34: 0/1 nodes are available: resourceclaim.resource.k8s.io "pair" not found.
""")
DEVICE_CLASS_ABSENT = _row(Source.PLACEMENT, reasons.CLAIM_MISSING,
    r"device class (?P<name>\S+) does not exist", r"""
    1.32: 0/1 nodes are available: request gpu: device class gpu.nvidia.com does not exist.
""")
CLAIM_WAITS = _row(Source.PLACEMENT, reasons.CLAIM_MISSING,
    r"(?i)persistentvolumeclaim|pvc\(s\)|resource ?claim|device ?class", r"""
    1.28: 0/1 nodes are available: persistentvolumeclaim "weights" is being deleted.
    1.28: 0/1 nodes are available: persistentvolumeclaim "x" bound to non-existent persistentvolume "y".
    1.28: 0/1 nodes are available: 1 node(s) unavailable due to one or more pvc(s) bound to non-existent
        pv(s).
    1.34: 0/1 nodes are available: waiting for dynamic resource controller to create the resourceclaim
        "demo-gpus".
""",
    unless=(DEVICES_ELSEWHERE, VOLUME_HELD, CLAIM_UNBOUND,
            CLAIM_ABSENT, TEMPLATE_ABSENT, DEVICE_CLAIM_ABSENT, DEVICE_CLASS_ABSENT))
TAINTED = _row(Source.PLACEMENT, reasons.UNSCHEDULABLE, r"untolerated taint", r"""
    1.28: 0/1 nodes are available: 1 node(s) had untolerated taint {nvidia.com/gpu: present}.
        preemption: 0/1 nodes are available: 1 Preemption is not helpful for scheduling..
    1.34: 0/1 nodes are available: 1 node(s) had untolerated taint {dedicated: models}. preemption: 0/1
        nodes are available: 1 Preemption is not helpful for scheduling.
    1.36: 0/1 nodes are available: 1 node(s) had untolerated taint(s). preemption: 0/1 nodes are
        available: 1 Preemption is not helpful for scheduling.
""", advice="Add spec.scheduling.tolerations, or untaint a node.")
NOT_SELECTED = _row(Source.PLACEMENT, reasons.UNSCHEDULABLE, r"node affinity/selector", r"""
    1.28: 0/1 nodes are available: 1 node(s) didn't match Pod's node affinity/selector.
""", advice="Change spec.scheduling.nodeSelector or affinity, or label a node.")
NOT_BESIDE = _row(Source.PLACEMENT, reasons.UNSCHEDULABLE,
    r"pod (?:anti-)?affinity rules|existing pods anti-affinity rules", r"""
    1.28: 0/1 nodes are available: 1 node(s) didn't match pod affinity rules.
    1.28: 0/1 nodes are available: 1 node(s) didn't match pod anti-affinity rules.
    1.28: 0/1 nodes are available: 1 node(s) didn't satisfy existing pods anti-affinity rules.
""", advice="Change spec.scheduling.affinity, or the affinity of the pods that are there.")
NOT_SPREAD = _row(Source.PLACEMENT, reasons.UNSCHEDULABLE, r"topology spread", r"""
    1.28: 0/1 nodes are available: 1 node(s) didn't match pod topology spread constraints.
    1.28: 0/1 nodes are available: 1 node(s) didn't match pod topology spread constraints (missing
        required label).
""", advice="Change spec.scheduling.topologySpreadConstraints.")
TOO_MANY_PODS = _row(Source.PLACEMENT, reasons.UNSCHEDULABLE, r"Too many pods", r"""
    1.28: 0/1 nodes are available: 1 Too many pods.
""", advice="Add a node, or raise how many pods a node takes.")
CORDONED = _row(Source.PLACEMENT, reasons.UNSCHEDULABLE, r"were unschedulable", r"""
    1.28: 0/1 nodes are available: 1 node(s) were unschedulable.
""", advice="Uncordon a node.")
VOLUME_ELSEWHERE = _row(Source.PLACEMENT, reasons.UNSCHEDULABLE,
    r"volume node affinity conflict|PersistentVolume's node affinity|no available volume zone", r"""
    1.28: 0/1 nodes are available: 1 node(s) had volume node affinity conflict.
    1.28: 0/1 nodes are available: 1 node(s) had no available volume zone.
    1.34: 0/1 nodes are available: 1 node(s) didn't match PersistentVolume's node affinity.
""", advice="A claim's volume is tied to other nodes or another zone. Add a node there, or name another.")
NO_VOLUME = _row(Source.PLACEMENT, reasons.UNSCHEDULABLE,
    r"didn't find available persistent volumes to bind|did not have enough free storage", r"""
    1.28: 0/1 nodes are available: 1 node(s) didn't find available persistent volumes to bind.
    1.28: 0/1 nodes are available: 1 node(s) did not have enough free storage.
""", advice="No volume can be made or found for a claim: `kubectl describe pvc` names its storage class.")
TOO_MANY_VOLUMES = _row(Source.PLACEMENT, reasons.UNSCHEDULABLE, r"exceed max volume count", r"""
    1.28: 0/1 nodes are available: 1 node(s) exceed max volume count.
""", advice="Its nodes have as many volumes as they can attach: add a node, or use shared storage.")

# Why the API server refuses an object.
FORBIDDEN = re.compile(r'^(?:Error creating: )?(?:pods "[^"]*" is forbidden: )?')
"""What stands before the cause where pods are refused."""
QUOTA = _row(Source.ADMISSION, reasons.QUOTA_EXCEEDED,
    r"exceeded quota: (?P<quota>\S+), requested: (?P<asked>.+?), used: (?P<used>.+?), "
    r"limited: (?P<limit>\S+)", r"""
    1.28: pods "demo-5d4f2-abcde" is forbidden: exceeded quota: small, requested:
        limits.cpu=2,limits.memory=4Gi, used: limits.cpu=1,limits.memory=2Gi, limited:
        limits.cpu=2,limits.memory=4Gi
""")
LIMIT_RANGE = _row(Source.ADMISSION, reasons.QUOTA_EXCEEDED,
    r"(?:maximum|minimum) \S+ usage per|max limit to request ratio per|failed quota|"
    r"must specify (?:limits|requests)", r"""
    1.28: pods "demo-5d4f2-abcde" is forbidden: maximum memory usage per Container is 1Gi, but limit is
        2Gi
    1.28: pods "demo-5d4f2-abcde" is forbidden: [minimum cpu usage per Container is 100m, but request is
        50m, minimum memory usage per Container is 1Gi, but request is 64Mi]
    1.28: pods "demo-5d4f2-abcde" is forbidden: memory max limit to request ratio per Container is 2,
        but provided ratio is 4.000000
    1.28: pods "demo-5d4f2-abcde" is forbidden: failed quota: small: must specify limits.cpu for:
        server; requests.memory for: server
""")
POLICY = _row(Source.ADMISSION, reasons.ADMISSION_REFUSED,
    r"ValidatingAdmissionPolicy '(?P<name>[^']+)' with binding '[^']+' denied request(?:: (?P<why>.+))?", r"""
    1.28: pods "demo-5d4f2-abcde" is forbidden: ValidatingAdmissionPolicy 'teams' with binding 'all'
        denied request: failed expression: has(object.metadata.labels.team)
    1.34: deployments.apps "demo" is forbidden: ValidatingAdmissionPolicy 'teams' with binding 'all'
        denied request: no such team
""")
WEBHOOK = _row(Source.ADMISSION, reasons.ADMISSION_REFUSED,
    r'admission webhook "(?P<name>[^"]+)" denied the request(?:: (?P<why>.+))?', r"""
    1.28: admission webhook "pods.example.com" denied the request: no images from r
    1.28: admission webhook "pods.example.com" denied the request without explanation
    Kyverno 1.13: admission webhook "validate.kyverno.svc-fail" denied the request: \n\nresource
        Pod/models/demo was blocked due to the following policies \n\nlabels:\n team: 'validation error:
        no team'\n
    Gatekeeper 3.17: admission webhook "validation.gatekeeper.sh" denied the request: [labels] you must
        provide labels: {"team"}
""")
WEBHOOK_AWAY = _row(Source.ADMISSION, reasons.ADMISSION_REFUSED,
    r'failed calling webhook "(?P<name>[^"]+)"(?:: (?P<why>.+))?', r"""
    1.28: Internal error occurred: failed calling webhook "pods.example.com": failed to call webhook:
        Post "https://hook.default.svc:443/validate?timeout=10s": dial tcp 10.96.1.2:443: connect:
        connection refused
    1.34: Internal error occurred: failed calling webhook "pods.example.com": failed to call webhook:
        Post "https://hook.default.svc:443/validate?timeout=10s": context deadline exceeded
""")
POD_SECURITY = _row(Source.ADMISSION, reasons.ADMISSION_REFUSED,
    r"violates PodSecurity|security context constraint", r"""
    1.28: pods "demo-5d4f2-abcde" is forbidden: violates PodSecurity "restricted:latest": runAsNonRoot
        != true (pod or container "server" must set securityContext.runAsNonRoot=true)
    OpenShift 4.16: pods "demo-5d4f2-" is forbidden: unable to validate against any security context
        constraint: [provider "anyuid": Forbidden: not usable by user or serviceaccount]
""")
DENIED = _row(Source.ADMISSION, reasons.ADMISSION_REFUSED, r"denied", r"""
    1.28: pods "demo-5d4f2-abcde" is forbidden: image policy webhook backend denied one or more images
""", unless=(POLICY, WEBHOOK, WEBHOOK_AWAY))
ACCOUNT_ABSENT = _row(Source.ADMISSION, reasons.PODS_NOT_CREATED,
    r'serviceaccount "(?P<name>[^"]+)" not found', r"""
    1.28: pods "demo-5d4f2-" is forbidden: error looking up service account models/x: serviceaccount "x"
        not found
""")
PRIORITY_ABSENT = _row(Source.ADMISSION, reasons.PODS_NOT_CREATED,
    r"no PriorityClass with name (?P<name>\S+) was found", r"""
    1.28: pods "demo-5d4f2-" is forbidden: no PriorityClass with name urgent was found
""")
RUNTIME_ABSENT = _row(Source.ADMISSION, reasons.PODS_NOT_CREATED,
    r'RuntimeClass\S* "(?P<name>[^"]+)" not found', r"""
    1.28: pods "demo-5d4f2-abcde" is forbidden: pod rejected: RuntimeClass "kata" not found
""")
MALFORMED = _row(Source.ADMISSION, reasons.INVALID_SPEC,
    r"failed to create typed patch object \([^)]*\): ", r"""
    1.34: failed to create typed patch object (models/demo; apps/v1, Kind=Deployment): .spec.no: field
        not declared in schema
""")

# Who does not take a type of volume, such as the image of spec.model.image.
IMAGE_RESTRICTED = _row(Source.VOLUME, reasons.ADMISSION_REFUSED,
    r'restricted volume types? [^)]*"(?:image|unknown)"', r"""
    1.30: pods "demo-5d4f2-x" is forbidden: violates PodSecurity "restricted:latest": restricted volume
        types (volume "model" uses restricted volume type "unknown")
    1.31: pods "demo-5d4f2-x" is forbidden: violates PodSecurity "restricted:v1.31": restricted volume
        types (volumes "a", "model" use restricted volume types "hostPath", "image")
""", advice="Pod Security admits volumes of images at the restricted level from Kubernetes 1.33 on. "
    "Upgrade, or have the namespace's level lowered to baseline.")
IMAGE_CONSTRAINED = _row(Source.VOLUME, reasons.ADMISSION_REFUSED,
    r"\bimage volumes are not allowed to be used|unknown volume type for volume", r"""
    OpenShift 4.19: pods "demo-5d4f2-" is forbidden: unable to validate against any security context
        constraint: [spec.volumes[3]: Invalid value: "image": image volumes are not allowed to be used]
    OpenShift 4.16: pods "demo-5d4f2-" is forbidden: unable to validate against any security context
        constraint: [spec.volumes[3]: Invalid value: "": unknown volume type for volume: core.Volume{}]
""", advice="OpenShift's own SecurityContextConstraints admit volumes of images from 4.22 on, and from "
    "4.20.15 in 4.20. Upgrade, or let spec.runtime.serviceAccountName use one that has image "
    "among its volumes.")
IMAGE_NOT_LISTED = _row(Source.VOLUME, reasons.ADMISSION_REFUSED,
    r"volume type image is not allowed|types of volumes may be used(?!.*\bimage\b)", r"""
    Kyverno 1.13: admission webhook "validate.kyverno.svc-fail" denied the request: resource
        Pod/models/demo was blocked due to the following policies restrict-volume-types:
        restricted-volumes: 'validation failure: Only the following types of volumes may be used:
        configMap, csi, downwardAPI, emptyDir, ephemeral, persistentVolumeClaim, projected, and secret.'
    Gatekeeper 3.17: admission webhook "validation.gatekeeper.sh" denied the request: [psp-volume-types]
        The volume type image is not allowed, pod: demo-5d4f2-x. Allowed volume types: ["configMap"]
""", advice="A policy of the cluster does not list volumes of images. Have image added to the types that it "
    "lists.")
IMAGE_DROPPED = _row(Source.VOLUME, reasons.ADMISSION_REFUSED, r"must specify a volume type", r"""
    1.30: Deployment.apps "demo" is invalid: spec.template.spec.volumes[0]: Required value: must specify a
        volume type
""", advice="The API server drops volumes of images, which need the feature gate ImageVolume: it is on by "
    "default from Kubernetes 1.35. Upgrade, or have the gate turned on for API server and kubelets.")
IMAGE_NOT_MOUNTED = _row(Source.VOLUME, reasons.CONTAINER_REFUSED, r'failed to mkdir ""', r"""
    containerd 1.7: failed to generate container "1f" spec: failed to apply OCI options: failed to mkdir
        "": mkdir : no such file or directory
""", advice="The node's container runtime mounts no volumes of images: containerd does from 2.1 on, CRI-O "
    "from 1.31. Upgrade it, or choose other nodes in spec.scheduling.")
VOLUME_CONSTRAINED = _row(Source.VOLUME, reasons.ADMISSION_REFUSED,
    r"(?P<kind>\w+) volumes are not allowed to be used", r"""
    OpenShift 4.16: pods "demo-5d4f2-" is forbidden: unable to validate against any security context
        constraint: [spec.volumes[4]: Invalid value: "csi": csi volumes are not allowed to be used]
""", unless=(IMAGE_CONSTRAINED,))

# Why a node ended a pod.
CACHE_FULL = _row(Source.NODE, reasons.NODE_REFUSED, r'EmptyDir volume "cache" exceeds', r"""
    1.28: Usage of EmptyDir volume "cache" exceeds the limit "10Gi".
""", advice="Raise spec.model.cache.size.")
SHM_FULL = _row(Source.NODE, reasons.NODE_REFUSED, r'EmptyDir volume "shm" exceeds', r"""
    1.28: Usage of EmptyDir volume "shm" exceeds the limit "1Gi".
""", advice="Raise spec.resources.sharedMemory.")
FOLDER_FULL = _row(Source.NODE, reasons.NODE_REFUSED, r'EmptyDir volume "(?!cache"|shm")', r"""
    1.28: Usage of EmptyDir volume "spool" exceeds the limit "1Gi".
""", advice="Raise its sizeLimit in spec.volumes.")
STORAGE_FULL = _row(Source.NODE, reasons.NODE_REFUSED,
    r"ephemeral local storage|local ephemeral storage limit", r"""
    1.28: Pod ephemeral local storage usage exceeds the total limit of containers 1Gi.
    1.28: Container server exceeded its local ephemeral storage limit "1Gi".
""", advice="Raise spec.resources.ephemeralStorage.")
DEVICES_LOST = _row(Source.NODE, reasons.NODE_REFUSED,
    r"no healthy devices present|number of devices unavailable for", r"""
    1.28: Pod was rejected: Allocate failed due to no healthy devices present; cannot allocate unhealthy
        devices nvidia.com/mig-1g.5gb, which is unexpected
    1.32: Pod was rejected: Allocate failed due to requested number of devices unavailable for
        nvidia.com/gpu. Requested: 1, Available: 0, which is unexpected
""", advice="The device plugin on that node has lost devices; its log says why.")

# Why an image cannot be pulled.
BACK_OFF, PULL_CAUSE, PULL_FAILED = "Back-off", "ErrImagePull: ", "Failed to pull image"
"""How the kubelet begins while it waits, what stands before the cause then, and how its event begins."""
QUOTED_IMAGE = re.compile(r'image "([^"]+)"')
RPC = re.compile(r"rpc error: code = \w+ desc = ")
LAYERS = re.compile(
    r"(?:failed to (?:create|start) (?:containerd|shim) task|OCI runtime create failed|runc create failed|"
    r"unable to start container process|(?:Failed to )?prepare dynamic resources|"
    r'failed to pull and unpack image "[^"]*"|failed to resolve (?:image|reference "[^"]*")|'
    r'failed to do request|(?:Get|Head) "[^"]*"): '
)
"""What containerd and its parts put before the cause, each its own words."""
PULL_DENIED = _row(Source.PULL, reasons.IMAGE_PULL_DENIED,
    # A file whose "permission is denied" is the node's.
    r"(?i)\b(?:401|403)\b|unauthori[sz]ed|(?<!: permission )denied|forbidden|authentication required|"
    r"authorization failed|no basic auth credentials|invalid username/password", r"""
    containerd 1.7: failed to pull and unpack image "r/x:1": failed to resolve reference "r/x:1": pull
        access denied, repository does not exist or may require authorization: server message:
        insufficient_scope: authorization failed
    containerd 2.0: failed to pull and unpack image "r/x:1": failed to resolve reference "r/x:1":
        unexpected status from HEAD request to https://r/v2/x/manifests/1: 401 Unauthorized
    containerd 1.7: failed to pull and unpack image "r/x:1": failed to resolve reference "r/x:1": failed
        to authorize: failed to fetch oauth token: unexpected status from GET request to
        https://r/token: 403 Forbidden
    CRI-O 1.30: initializing source docker://r/x:1: reading manifest 1 in r/x: requested access to the
        resource is denied
    CRI-O 1.21: unable to retrieve auth token: invalid username/password
    ECR: Head "https://1.dkr.ecr.eu-west-1.amazonaws.com/v2/x/manifests/1": no basic auth credentials
""")
PLATFORM_ABSENT = _row(Source.PULL, reasons.IMAGE_NOT_FOUND,
    r"no match for platform in manifest|no matching manifest for|no image found in (?:image index|manifest)",
    r"""
    containerd 1.7: failed to pull and unpack image "r/x:1": no match for platform in manifest: not
        found
    CRI-O 1.30: choosing an image from manifest list docker://r/x:1: no image found in image index for
        architecture "arm64", variant "v8", OS "linux"
    Docker 27: no matching manifest for linux/arm64/v8 in the manifest list entries
""")
IMAGE_ABSENT = _row(Source.PULL, reasons.IMAGE_NOT_FOUND,
    # A program that is "not found" helps the node to log in.
    r"(?i)(?<!executable file )not found|manifest unknown|name unknown|does not exist|couldn't parse", r"""
    containerd 1.7: failed to pull and unpack image "r/x:9": failed to resolve reference "r/x:9": r/x:9:
        not found
    CRI-O 1.30: initializing source docker://r/x:9: reading manifest 9 in r/x: manifest unknown
    CRI-O 1.30: initializing source docker://r/x:9: reading manifest 9 in r/x: name unknown: no such
        repo
""", unless=(PULL_DENIED, PLATFORM_ABSENT))

# Why a container has no configuration or volume.
VOLUME = re.compile(r'volume "([^"]+)"')
SECRET_ABSENT = _row(Source.MOUNT, reasons.SECRET_MISSING, r'(?i)secrets? "(?P<name>[^"]+)" not found', r"""
    1.28: secret "cert" not found
    1.28: MountVolume.SetUp failed for volume "files" : secret "cert" not found
    1.28 without watches: MountVolume.SetUp failed for volume "files" : secrets "cert" not found
""")
CONFIG_MAP_ABSENT = _row(Source.MOUNT, reasons.CONFIG_MAP_MISSING,
    r'(?i)configmaps? "(?P<name>[^"]+)" not found', r"""
    1.28: configmap "tuning" not found
    1.28: MountVolume.SetUp failed for volume "files" : configmap "tuning" not found
    1.28 without watches: MountVolume.SetUp failed for volume "files" : configmaps "tuning" not found
""")
SECRET_KEY_ABSENT = _row(Source.MOUNT, reasons.SECRET_MISSING,
    r"couldn't find key (?P<key>\S+) in Secret [^/\s]+/(?P<name>\S+)", r"""
    1.28: couldn't find key token in Secret models/cert
""")
CONFIG_MAP_KEY_ABSENT = _row(Source.MOUNT, reasons.CONFIG_MAP_MISSING,
    r"couldn't find key (?P<key>\S+) in ConfigMap [^/\s]+/(?P<name>\S+)", r"""
    1.28: couldn't find key token in ConfigMap models/tuning
""")
SECRET_FILE_ABSENT = _row(Source.MOUNT, reasons.SECRET_MISSING,
    r"references non-existent secret key: (?P<key>\S+)", r"""
    1.28: MountVolume.SetUp failed for volume "files" : references non-existent secret key: tls.crt
""")
CONFIG_MAP_FILE_ABSENT = _row(Source.MOUNT, reasons.CONFIG_MAP_MISSING,
    r"references non-existent config key: (?P<key>\S+)", r"""
    1.28: MountVolume.SetUp failed for volume "files" : configmap references non-existent
        config key: a.json
""")
VOLUME_ATTACHED = _row(Source.MOUNT, reasons.VOLUME_NOT_MOUNTED, r"^Multi-Attach error", r"""
    1.28: Multi-Attach error for volume "pvc-1" Volume is already used by pod(s) demo-5d4f1-a
    1.28: Multi-Attach error for volume "pvc-1" Volume is already exclusively attached to one node and
        can't be attached to another
""")
MOUNT_AWAITED = _row(Source.MOUNT, reasons.VOLUME_NOT_MOUNTED, r"^Unable to attach or mount volumes", r"""
    1.28: Unable to attach or mount volumes: unmounted volumes=[cache], unattached volumes=[], failed to
        process volumes=[]: timed out waiting for the condition
    1.31: Unable to attach or mount volumes: unmounted volumes=[cache], unattached volumes=[], failed to
        process volumes=[]: context deadline exceeded
""")

# Why a sandbox cannot be made, and why a container is killed.
NO_RUNTIME = _row(Source.SANDBOX, reasons.CONTAINER_REFUSED,
    r'no runtime for "(?P<name>[^"]+)" is configured|failed to find runtime handler (?P<handler>\S+)', r"""
    containerd 1.7: Failed to create pod sandbox: rpc error: code = Unknown desc = failed to get sandbox
        runtime: no runtime for "nvidia" is configured
    CRI-O 1.30: Failed to create pod sandbox: rpc error: code = Unknown desc = failed to find runtime
        handler nvidia from runtime list map[crun:0xc0001 runc:0xc0002]
""")
PROBE_FAILED = _row(Source.PROBE, reasons.UNRESPONSIVE,
    r"Container (?P<container>\S+) failed (?P<probe>startup|liveness) probe", r"""
    1.28: Container server failed startup probe, will be restarted
    1.34: Container server failed liveness probe, will be restarted
""")
