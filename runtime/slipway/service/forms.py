"""The texts and numbers of the documents, each with what it must look like."""

from __future__ import annotations

from typing import Annotated

from slipway.service.fields import Form, Range

ServiceName = Annotated[
    str,
    Form(
        r"[a-z]([-a-z0-9]{0,48}[a-z0-9])?",
        "a name of at most 50 lower-case letters, digits and dashes that begins with a letter",
    ),
]
ObjectName = Annotated[
    str,
    Form(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?", "the name of a Kubernetes object", longest=253),
]
Key = Annotated[str, Form(r"[-._a-zA-Z0-9]{1,253}", "a key of a Secret or ConfigMap", longest=253)]
_NAME = r"\.{0,2}[^/.][^/]*|\.{3}[^/]*"
"""One name of a path, neither `.` nor `..`: without looking around, which the API server's RE2 cannot."""
_STEP = rf"({_NAME}|\.)"
AbsolutePath = Annotated[str, Form(rf"(/{_STEP}?)+", "an absolute path without ..")]
MountPath = Annotated[
    str, Form(rf"(/({_NAME}))+", "an absolute path without ., .. and a slash at its end", longest=512)
]
_STEPS = rf"{_STEP}(/{_STEP}?)*"
_INSIDE = "a path inside the volume, without .. and a first slash"
RelativePath = Annotated[str, Form(_STEPS, _INSIDE)]
SubPath = Annotated[str, Form(_STEPS, _INSIDE, longest=512)]
"""Of a mount, of which there may be many."""
ProjectedPath = Annotated[
    str,
    Form(
        rf"\.?[^/.][^/]*(/{_STEP}?)*",
        "a path inside the volume, without .. and a first slash",
        longest=512,
        deep=True,
    ),
]
ProjectedKey = Annotated[
    str, Form(r"[-._a-zA-Z0-9]{1,253}", "a key of a Secret or ConfigMap", longest=253, deep=True)
]
Divisor = Annotated[
    str, Form(r"[0-9]+(m|k|M|G|T|Ki|Mi|Gi|Ti)?", "a unit such as 1m, 1 or 1Mi", longest=32, deep=True)
]
Mode = Annotated[int, Range(0, 0o777)]
BUCKET_STEP = r"\.{0,2}[^\s/.][^\s/]*|\.{3}[^\s/]*"
"""One step of a bucket's folder, which becomes one of the cache: neither `.` nor `..`."""
Quantity = Annotated[
    str,
    Form(
        r"[0-9]+(\.[0-9]+)?(m|k|M|G|T|P|Ki|Mi|Gi|Ti|Pi)?",
        "a quantity such as 500m, 2 or 8Gi",
        numbers=True,
    ),
]
_EXTENDED = r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"
_PAGE = "[1-9][0-9]*(Ki|Mi|Gi)"
ExtendedResource = Annotated[
    str, Form(_EXTENDED, "an extended resource such as example.com/gpu", longest=316)
]
OTHER_RESOURCE = Form(
    rf"{_EXTENDED}|hugepages-{_PAGE}",
    "extended resources such as rdma/ib, and huge pages such as hugepages-2Mi",
)
Medium = Annotated[
    str, Form(rf"Memory|HugePages(-{_PAGE})?", "Memory, HugePages or HugePages-2Mi", longest=32)
]
Duration = Annotated[str, Form(r"([0-9]+(ms|s|m|h))+", "a duration such as 30s")]
EnvName = Annotated[str, Form(r"[A-Za-z_][A-Za-z0-9_]*", "a name of a variable", longest=256)]
ImageReference = Annotated[str, Form(r"[^\s-]\S*", "an image such as registry/name:tag or name@sha256:…")]
Seconds = Annotated[int, Range(0, 86400)]
Port = Annotated[int, Range(1, 65535)]
Count = Annotated[int, Range(0, 1000)]
Share = Annotated[int, Range(0, 1000)] | Annotated[str, Form(r"[0-9]{1,2}%|100%", "a number or a percentage")]
Surge = (
    Annotated[int, Range(0, 1000)]
    | Annotated[str, Form(r"[0-9]{1,2}%|100%|Auto", "a number, a percentage or Auto")]
)
PartName = Annotated[
    str,
    Form(
        r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?",
        "a name of at most 63 lower-case letters, digits and dashes",
        longest=63,
    ),
]
"""Of a volume or a container of a pod."""
Size = Annotated[
    str,
    Form(r"[0-9]+(\.[0-9]+)?(k|M|G|T|P|Ki|Mi|Gi|Ti|Pi)?", "a size in bytes such as 500Mi or 8Gi", longest=32),
]
"""A Quantity within a list, where the API server reckons a rule on numbers too dear."""
_QUALIFIED = r"([-a-z0-9.]{1,253}/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"
FieldPath = Annotated[
    str,
    Form(
        rf"metadata\.(name|namespace|uid|(labels|annotations)\[\x27{_QUALIFIED}\x27\])"
        r"|spec\.(nodeName|serviceAccountName)|status\.(podIPs?|hostIPs?)",
        "a field of the pod such as metadata.name, metadata.labels['team'], spec.nodeName or status.podIP",
        longest=400,
    ),
]
DownwardPath = Annotated[
    str,
    Form(
        rf"metadata\.(name|namespace|uid|(labels|annotations)(\[\x27{_QUALIFIED}\x27\])?)",
        "a field of the pod that can be a file, such as metadata.labels or metadata.labels['team']",
        longest=400,
        deep=True,
    ),
]
Address = Annotated[str, Form(r"[0-9a-fA-F.:]+", "an IP address", longest=64)]
AddressRange = Annotated[
    str, Form(r"[0-9a-fA-F.:]+/[0-9]{1,3}", "a range of addresses such as 10.0.0.0/8", longest=64)
]
HostName = Annotated[
    str, Form(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?", "a name of a host such as db.example.org", longest=253)
]
LoadBalancerClass = Annotated[
    str, Form(_QUALIFIED, "a class of load balancers such as example.com/internal", longest=317)
]
SeLinuxLevel = Annotated[str, Form(r"[A-Za-z0-9.:,-]+", "an SELinux level such as s0:c123,c456", longest=256)]
MigProfile = Annotated[
    str,
    Form(
        r"([1-46-8]c\.)?[1-46-8]g\.[1-9][0-9]{0,2}gb([.+](me|me\.all|gfx)|-me)?",
        "a MIG profile such as 1g.10gb, 1g.10gb+me, 1g.24gb-me or 1c.2g.20gb",
        longest=32,
    ),
]
"""As NVIDIA's go-nvlib prints it, or with the dots that NVIDIA's device plugin has in place of `+`."""
PositiveId = Annotated[int, Range(1, 2**31 - 1)]
