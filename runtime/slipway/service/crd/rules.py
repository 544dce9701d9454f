"""What fields must be to each other, in CEL: the rules of the document that the API server can check.

Each says its place, what must hold there, and the sentence for whoever breaks it. `slipway render`
checks the same rules and more (`slipway.service.document`); a test holds the two against each other.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from slipway.args.openapi import Node
from slipway.service import companions, projected, storage
from slipway.service.devices import WHOLE_INSTANCE, WITH_IMAGE
from slipway.service.document import CERTIFICATE_REQUIRED, NO_ROOM, ONE_PEER, SOURCES
from slipway.service.labels import OURS, PLACES, TAKEN
from slipway.service.storage import ELSEWHERE, NEVER_RENEWED, READ_ONLY, WRITABLE
from slipway.service.usual_variables import DEVICE_VARIABLES, HIDING, UNCOUNTED


@dataclass(frozen=True, slots=True)
class Rule:
    """`cel` must hold of the node at `place`, else the API server answers with the message."""

    place: str
    cel: str
    message: str
    expression: str = ""
    """CEL that makes the message with the values at hand; `message` is said where it fails."""
    field: str = ""
    """The field below `place` to name in the error, such as `.count`."""

    def node(self) -> Node:
        node = {"rule": self.cel, "message": self.message}
        if self.expression:
            node["messageExpression"] = self.expression
        if self.field:
            node["fieldPath"] = self.field
        return node


def quoted(text: str) -> str:
    """A text as CEL writes it."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def listed(texts: list[str] | tuple[str, ...]) -> str:
    return "[" + ", ".join(quoted(text) for text in texts) + "]"


def given(*paths: str) -> str:
    """Whether nested fields are there: has(self.a) && has(self.a.b)."""
    prefixes = [path.split(".")[:length] for path in paths for length in range(1, path.count(".") + 2)]
    return " && ".join(dict.fromkeys(f"has(self.{'.'.join(steps)})" for steps in prefixes))


def value(path: str, default: object) -> str:
    return f"({given(path)} ? self.{path} : {default})"


def _exactly_one(place: str, fields: tuple[str, ...], message: str) -> Rule:
    count = " + ".join(f"(has(self.{field}) ? 1 : 0)" for field in fields)
    return Rule(place, f"{count} == 1", message)


def _not_both(place: str, one: str, other: str, message: str, field: str = "") -> Rule:
    return Rule(place, f"!({given(one, other)})", message, field=field)


PARALLEL = " * ".join(
    (
        value("engine.tensorParallelSize", 1),
        value("engine.pipelineParallelSize", 1),
        f"({given('engine.dataParallelSizeLocal')} ? self.engine.dataParallelSizeLocal : "
        f"{value('engine.dataParallelSize', 1)})",
    )
)

NAME = (
    Rule(
        "metadata.name",
        "!(self in ['kubernetes', 'vllm']) && !self.startsWith('vllm-')",
        "links to a Service called kubernetes, vllm or vllm-… reach other pods as if they were settings. "
        "Choose another name",
        "'links to a Service called ' + self + ' would reach other pods as if they were settings. "
        "Choose another name'",
    ),
)

MODEL = (
    _exactly_one(
        "spec.model",
        SOURCES,
        f"exactly one of {', '.join(SOURCES)} names the model",
    ),
    _not_both(
        "spec.model.cache", "pvc", "size", "pvc and size exclude each other: a claim has its size. Keep one"
    ),
    Rule(
        "spec.model.cache",
        "!has(self.accessMode) || has(self.pvc)",
        "accessMode is a claim's: give pvc, or leave it out",
        field=".accessMode",
    ),
    _not_both(
        "spec",
        "model.servedNames",
        "engine.servedModelName",
        "model.servedNames says it. Keep one",
        field=".engine.servedModelName",
    ),
    _not_both(
        "spec",
        "model.hub.revision",
        "engine.revision",
        "model.hub.revision says it. Keep one",
        field=".engine.revision",
    ),
)

DEVICES = (
    Rule(
        "spec",
        f"!({given('devices.count')}) || has(self.devices.vendor) || has(self.profile)",
        "a count does not say whose devices: name a vendor",
        field=".devices.vendor",
    ),
    Rule(
        "spec.devices",
        "!has(self.resource) || (has(self.vendor) && !has(self.profile))",
        "it is for whole devices of a vendor, which are counted: name the vendor, and leave out profile",
        field=".resource",
    ),
    Rule(
        "spec.devices",
        "!has(self.profile) || (has(self.vendor) && self.vendor == 'nvidia')",
        "a MIG profile is for devices that are counted, of vendor nvidia",
        field=".profile",
    ),
    Rule(
        "spec.devices",
        "!has(self.profile) || !self.profile.contains('c.') || "
        "self.profile.substring(0, 1) < self.profile.substring(3, 4)",
        WHOLE_INSTANCE,
        field=".profile",
    ),
    Rule(
        "spec",
        f"!({given('devices.count', 'devices.vendor')}) || self.devices.count == {PARALLEL}",
        "count is not tensor × pipeline × local data parallel size: leave it out, or change one of them",
        "'%d is not tensor × pipeline × local data parallel size = %d: leave it out, or change one of them'"
        f".format([self.devices.count, {PARALLEL}])",
        field=".devices.count",
    ),
    Rule(
        "spec",
        f"!({given('devices.vendor')}) || self.devices.vendor in {listed(WITH_IMAGE)} || "
        f"({given('runtime.image')})",
        "it must be given: Slipway has no image for devices of this vendor",
        "'it must be given: Slipway has no image for devices of ' + self.devices.vendor",
        field=".runtime.image",
    ),
)

_HIDING = (
    f"{listed([*WRITABLE, *READ_ONLY])}.exists(own, own == self.mountPath || "
    "own.startsWith(self.mountPath + '/'))"
    f" || {listed(READ_ONLY)}.exists(own, self.mountPath.startsWith(own + '/'))"
)
_NOT_HIDING = Rule(
    "",
    f"!has(self.mountPath) || !({_HIDING})",
    f"it would hide what the server needs: {', '.join((*WRITABLE, *READ_ONLY))}. {ELSEWHERE}",
    field=".mountPath",
)
_ZERO = "string({0}).matches('^0+%?$')"

WORK = (
    replace(_NOT_HIDING, place="spec.files[]"),
    Rule(
        "spec.files",
        "self.all(one, !self.exists(other, other.mountPath.startsWith(one.mountPath + '/')))",
        "folders that lie in each other cannot both be mounted",
    ),
    Rule(
        "spec.rollout",
        f"!(has(self.maxSurge) && {_ZERO.format('self.maxSurge')}) || "
        f"(has(self.maxUnavailable) && !{_ZERO.format('self.maxUnavailable')})",
        f"0 {NO_ROOM}",
        field=".maxSurge",
    ),
    *(
        Rule(
            f"spec.service.{field}[]",
            "has(self.ipBlock) != (has(self.podSelector) || has(self.namespaceSelector))",
            ONE_PEER,
        )
        for field in ("from", "to")
    ),
    _exactly_one("spec.files[]", ("configMap", "secret"), "exactly one of configMap and secret is needed"),
    _not_both(
        "spec.disruption",
        "minAvailable",
        "maxUnavailable",
        "minAvailable and maxUnavailable exclude each other. Keep one",
    ),
    Rule(
        "spec",
        f"!({given('engine.drainTimeout', 'rollout.drainSeconds')}) || "
        "self.engine.drainTimeout == self.rollout.drainSeconds",
        "rollout.drainSeconds and engine.drainTimeout say different things. Keep one",
        field=".rollout.drainSeconds",
    ),
    Rule(
        "spec",
        f"!({given('secrets.tls', 'engine.sslCertReqs')}) || "
        f"self.engine.sslCertReqs != {CERTIFICATE_REQUIRED}",
        f"{CERTIFICATE_REQUIRED} asks every client for a certificate, which the kubelet's probes do not "
        "have: no pod would ever be ready. Use 1, which checks those that are given",
        field=".engine.sslCertReqs",
    ),
)

COMPANIONS = ("initContainers", "sidecars")

_MAY_HAVE_DEVICES = "has(self.profile) || has(self.devices)"
"""CEL cannot look into claims, whose items have several types."""
_NONE_UNCOUNTED = (
    f"!has({{0}}.env) || {{0}}.env.all(one, !(one.name in {listed(DEVICE_VARIABLES)}) || "
    f"(has(one.value) && one.value in {listed(HIDING)}))"
)
_UNCOUNTED = f"{', '.join(DEVICE_VARIABLES)} may not be set: {UNCOUNTED}"
UNCOUNTED_DEVICES = (
    Rule("spec", f"{_MAY_HAVE_DEVICES} || {_NONE_UNCOUNTED.format('self')}", _UNCOUNTED, field=".env"),
    *(
        Rule(
            "spec",
            f"{_MAY_HAVE_DEVICES} || !has(self.{kind}) || "
            f"self.{kind}.all(container, {_NONE_UNCOUNTED.format('container')})",
            _UNCOUNTED,
            field=f".{kind}",
        )
        for kind in COMPANIONS
    ),
)

_MEETING = "{0} == {1} || {0}.startsWith({1} + '/') || {1}.startsWith({0} + '/')"

VOLUMES = (
    _exactly_one(
        "spec.volumes[]",
        storage.SOURCES,
        f"exactly one of {', '.join(storage.SOURCES)} is needed",
    ),
    _exactly_one(
        "spec.volumes[].projected.sources[]",
        projected.SOURCES,
        f"exactly one of {', '.join(projected.SOURCES)} is needed",
    ),
    Rule(
        "spec.volumes[].projected",
        "has(self.sources) && self.sources.size() > 0",
        f"it needs at least one of {', '.join(projected.SOURCES)}",
        field=".sources",
    ),
    Rule(
        "spec.volumes[]",
        "!has(self.subPath) || !has(self.projected)",
        NEVER_RENEWED,
        field=".subPath",
    ),
    replace(_NOT_HIDING, place="spec.volumes[]"),
    Rule(
        "spec.volumes[].name",
        f"!(self in {listed(storage.OURS)}) && !self.startsWith({quoted(storage.FILES)})",
        "it is a volume of the operator's own. Choose another name",
    ),
    Rule(
        "spec.volumes[]",
        "!has(self.subPath) || has(self.mountPath)",
        "it is of the server's mount: give mountPath too, or leave it out",
        field=".subPath",
    ),
    Rule(
        "spec.volumes",
        "self.all(one, !has(one.mountPath) || !self.exists(other, other.name != one.name && "
        f"has(other.mountPath) && ({_MEETING.format('one.mountPath', 'other.mountPath')})))",
        "folders that are the same or lie in each other cannot both be mounted",
    ),
    Rule(
        "spec",
        "!has(self.volumes) || !has(self.files) || !self.volumes.exists(one, has(one.mountPath) && "
        f"self.files.exists(other, {_MEETING.format('one.mountPath', 'other.mountPath')}))",
        "a folder of volumes and one of files that are the same or lie in each other cannot both be mounted",
        field=".volumes",
    ),
)

CONTAINERS = (
    *(
        Rule(
            f"spec.{one}[].name",
            f"!(self in {listed(companions.OURS)})",
            "it is a container of the operator's own. Choose another name",
        )
        for one in COMPANIONS
    ),
    *(
        Rule(
            "spec",
            f"!has(self.{one}) || self.{one}.all(container, !has(container.volumeMounts) || "
            "container.volumeMounts.all(mount, "
            "has(self.volumes) && self.volumes.exists(volume, volume.name == mount.name)))",
            "its volumeMounts name a volume that is none of volumes. Add it there",
            field=f".{one}",
        )
        for one in COMPANIONS
    ),
    Rule(
        "spec",
        "!has(self.initContainers) || !has(self.sidecars) || "
        "!self.sidecars.exists(one, self.initContainers.exists(other, other.name == one.name))",
        "one of initContainers has its name. Choose another name",
        field=".sidecars",
    ),
)

LABELS = tuple(
    Rule(f"spec.{place}", f"!{listed(OURS)}.exists(ours, ours in self)", TAKEN) for place in PLACES
)

SERVICE = (
    Rule(
        "spec.service",
        "!has(self.externalTrafficPolicy) || (has(self.type) && self.type in ['NodePort', 'LoadBalancer'])",
        "it is for type NodePort or LoadBalancer: set one, or leave it out",
        field=".externalTrafficPolicy",
    ),
    *(
        Rule(
            "spec.service",
            f"!has(self.{field}) || (has(self.type) && self.type == 'LoadBalancer')",
            "it is for type LoadBalancer: set that, or leave it out",
            field=f".{field}",
        )
        for field in ("loadBalancerClass", "loadBalancerSourceRanges")
    ),
)

CROSS_FIELD: tuple[Rule, ...] = (
    *(*NAME, *MODEL, *DEVICES, *UNCOUNTED_DEVICES),
    *(*WORK, *VOLUMES, *CONTAINERS, *LABELS, *SERVICE),
)

__all__ = ["CROSS_FIELD", "Rule", "given", "listed", "quoted"]
