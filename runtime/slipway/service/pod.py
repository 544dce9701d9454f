"""The pod template of a service: a restricted container that runs `slipway serve`, and what stands beside it.

Before it the document's own init containers run, its sidecars start, and an init container of the server's
image fetches a model of a bucket, in this order.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from slipway import envs
from slipway.service import devices
from slipway.service.companions import FETCH, SERVER
from slipway.service.engine import (
    CA_FILE,
    CA_FOLDER,
    CACHE,
    container_arguments,
    fetched_to,
    grace_seconds,
    resolved_of,
)
from slipway.service.facts import Facts
from slipway.service.fields import written
from slipway.service.firewall import FETCH_SECRET, FROM_SECRETS
from slipway.service.labels import PROFILE, labels
from slipway.service.origin import Entry, Origin, Setting, derived, fixed, said, words_of
from slipway.service.pod_parts import Container, EnvVar, KeyReference
from slipway.service.profile import with_profile
from slipway.service.resources import of_fetch, of_server, shared_memory
from slipway.service.spec import S3Model, ServiceSpec
from slipway.service.storage import OURS, volumes
from slipway.service.usual_variables import DEVICE_VARIABLES

if TYPE_CHECKING:
    from slipway.args import Resolved

Object = dict[str, Any]

PORT = 8000
"""Where the container listens; the Service has the port that users see."""
ARCHITECTURE_LABEL = "kubernetes.io/arch"
"""Of nodes."""
USER = 1001
"""Of the images; any other may run them too."""
HIDDEN = {"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}
"""For a container that has no device: its image may ask for all of the node, as those of NVIDIA's do."""
OF_SERVER = ("shm", "tls")
"""Volumes of ours that the server alone has."""
TRUSTING = ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "AWS_CA_BUNDLE")
"""Variables by which OpenSSL and the HTTP clients of server and fetch find authorities."""
WRITABLE = fixed("in the cache volume")
"""Why libraries look there."""


def pod_template(spec: ServiceSpec, facts: Facts) -> Object:
    """The pinned template where there is one, else a new one."""
    if facts.template is not None:
        return copy.deepcopy(dict(facts.template))
    spec = with_profile(spec, facts.profile)
    spec = replace(spec, trusted_ca=spec.trusted_ca or facts.trusted_ca)
    pod = _pod(spec, facts)
    annotations = {
        # Without it kubectl logs and exec ask which container is meant as soon as a mesh adds its own.
        "kubectl.kubernetes.io/default-container": SERVER,
        # Else the Cluster Autoscaler keeps each node with a pod of ours: a folder of a pod might be precious.
        "cluster-autoscaler.kubernetes.io/safe-to-evict-local-volumes": ",".join(_replaceable(pod)),
        # Where Istio injects its proxy, that starts before the fetch and ends after the last request.
        "sidecar.istio.io/nativeSidecar": "true",
        **spec.runtime.pod_annotations,
        **({PROFILE: facts.profile.name} if facts.profile else {}),
    }
    metadata: Object = {"labels": {**spec.runtime.pod_labels, **labels(spec)}, "annotations": annotations}
    return {"metadata": metadata, "spec": pod}


def image(spec: ServiceSpec, facts: Facts) -> str:
    """Of the server and of what fetches its model."""
    return spec.runtime.image or (facts.cuda_image if spec.devices.present else facts.cpu_image)


def architecture(spec: ServiceSpec, facts: Facts) -> dict[str, str]:
    """The label of the nodes that can run that image, where it is known: a user's own may have several."""
    known = facts.cuda_architecture if spec.devices.present else facts.cpu_architecture
    return {ARCHITECTURE_LABEL: known} if known and not spec.runtime.image else {}


def read_only(spec: ServiceSpec) -> bool:
    """Whether the container's root file system is; device hooks of older drivers write into it."""
    wanted = spec.security.read_only_root_filesystem
    return not spec.devices.present if wanted is None else wanted


def for_kubelet(text: str) -> str:
    """Text that the kubelet hands on as it was: it reads $(NAME) as a variable and $$ as one dollar."""
    return text.replace("$", "$$")


def as_given(text: str) -> str:
    """The opposite, for what has no kubelet."""
    return text.replace("$$", "$")


def _pod(spec: ServiceSpec, facts: Facts) -> Object:
    resolved = resolved_of(spec)
    mounted = volumes(spec, shared_memory(spec, resolved))
    pod: Object = {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        # Always said: the API server copies a name into the deprecated `serviceAccount`, and takes it back
        # from there when an apply leaves the name out.
        "serviceAccountName": spec.runtime.service_account_name or "default",
        "terminationGracePeriodSeconds": grace_seconds(resolved),
        "securityContext": _pod_security(spec, facts),
    }
    before = [_companion(spec, one) for one in spec.init_containers]
    before += [_companion(spec, one) | {"restartPolicy": "Always"} for one in spec.sidecars]
    mounts = [mount for _, mount in mounted if mount]
    if spec.model.s3:
        # Its variables may name any of the files, such as the authorities of a proxy.
        of_fetch = [mount for mount in mounts if mount["name"] not in OF_SERVER]
        before.append(_fetch(spec, spec.model.s3, facts, resolved, of_fetch))
    if before:
        pod["initContainers"] = before
    pod["containers"] = [_server(spec, facts, resolved, mounts)]
    pod["volumes"] = [volume for volume, _ in mounted]
    if names := spec.runtime.image_pull_secrets or facts.image_pull_secrets:
        pod["imagePullSecrets"] = [{"name": name} for name in names]
    if spec.devices.claims:
        pod["resourceClaims"] = [
            {
                "name": name,
                **({"resourceClaimTemplateName": claim} if isinstance(claim, str) else written(claim)),
            }
            for name, claim in zip(_claims(spec), spec.devices.claims, strict=True)
        ]
    return pod | _scheduling(spec, facts)


def _replaceable(pod: Object) -> list[str]:
    """Empty folders of ours: what is in them can be made anew."""
    return [one["name"] for one in pod["volumes"] if "emptyDir" in one and one["name"] in OURS]


def _server(spec: ServiceSpec, facts: Facts, resolved: Resolved, mounts: list[Object]) -> Object:
    words, variables = words_of(command(spec)), [entry.env for entry in environment(spec)]
    container = _container(spec, facts, SERVER, words, variables, mounts)
    return container | {
        "securityContext": _restricted(read_only(spec)),
        "ports": [{"name": "http", "containerPort": PORT, "protocol": "TCP"}],
        "resources": _resources(spec, resolved),
        **_probes(spec),
    }


def _fetch(
    spec: ServiceSpec, source: S3Model, facts: Facts, resolved: Resolved, mounts: list[Object]
) -> Object:
    """It alone sees the keys of the bucket."""
    words = ["fetch", source.uri, str(fetched_to(source, CACHE))]
    if source.endpoint:
        words += ["--endpoint", source.endpoint]
    entries: list[Object] = [{"name": "HOME", "value": str(CACHE)}]
    entries += [entry.env for entry in _trust(spec)]
    entries += [
        _env_entry(entry)
        for entry in spec.env
        if entry.name not in ("HOME", *DEVICE_VARIABLES) and not entry.name.startswith(envs.PREFIXES)
    ]
    entries += [HIDDEN] if spec.runtime.image else []
    for name in FETCH_SECRET if source.secret else ():
        reference: Object = {"name": source.secret, "key": name}
        if name == "AWS_SESSION_TOKEN":
            reference["optional"] = True
        entries.append({"name": name, "valueFrom": {"secretKeyRef": reference}})
    container = _container(spec, facts, FETCH, words, entries, mounts)
    amounts = of_fetch(spec, resolved)
    return container | ({"resources": amounts} if amounts else {})


def _container(
    spec: ServiceSpec, facts: Facts, name: str, words: list[str], env: list[Object], mounts: list[Object]
) -> Object:
    container: Object = {
        "name": name,
        "image": image(spec, facts),
        "args": [for_kubelet(word) for word in words],
        "env": env,
        "securityContext": _restricted(read_only=True),
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": mounts,
    }
    if spec.runtime.image_pull_policy:
        container["imagePullPolicy"] = spec.runtime.image_pull_policy
    return container


def _companion(spec: ServiceSpec, wanted: Container) -> Object:
    """A container of the document's own. Its words are the kubelet's to expand, as in any other pod."""
    own, env = wanted.security, [_env_entry(entry) for entry in wanted.env]
    says = any(entry["name"] == HIDDEN["name"] for entry in env)
    asks = any("/" in name for amounts in written(wanted.resources).values() for name in amounts)
    made: Object = {
        "name": wanted.name,
        "image": wanted.image,
        "imagePullPolicy": wanted.image_pull_policy,
        "command": list(wanted.command),
        "args": list(wanted.args),
        "env": env if asks or says else [*env, HIDDEN],
        "resources": written(wanted.resources),
        "securityContext": _restricted(
            read_only(spec) if own.read_only_root_filesystem is None else own.read_only_root_filesystem
        ),
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": written(wanted.volume_mounts),
    }
    if own.run_as_user:
        made["securityContext"]["runAsUser"] = own.run_as_user
    return {name: value for name, value in made.items() if value}


def _restricted(read_only: bool) -> Object:
    """What the restricted level asks of a container, and whether its root file system is read-only."""
    return {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "readOnlyRootFilesystem": read_only,
    }


def command(spec: ServiceSpec) -> list[Setting]:
    """The words after `slipway` in the server's container."""
    return [Setting("", ("serve",), fixed("the command")), *container_arguments(spec, PORT)]


def environment(spec: ServiceSpec) -> list[Entry]:
    """Defaults that the document does not override, its own entries, and its secrets."""
    own = {entry.name for entry in spec.env}
    entries = [entry for entry in _defaults(spec, own) if entry.name not in own]
    entries += _trust(spec)
    entries += [Entry(_env_entry(entry), said(f"spec.env[{entry.name}]")) for entry in spec.env]
    for name, reference in secret_variables(spec).items():
        field = f"spec.secrets.{FROM_SECRETS[name]}"
        value_from = {"valueFrom": {"secretKeyRef": _key(reference)}}
        entries.append(Entry({"name": name, **value_from}, said(field)))
    return entries


def _defaults(spec: ServiceSpec, own: set[str]) -> Iterator[Entry]:
    def entry(name: str, value: object, origin: Origin) -> Entry:
        return Entry({"name": name, "value": str(value)}, origin)

    yield entry("HOME", CACHE, WRITABLE)
    yield entry("HF_HOME", CACHE / "huggingface", WRITABLE)
    if "VLLM_CACHE_ROOT" not in own:  # over which ours would win
        yield entry("SLIPWAY_CACHE", CACHE / "slipway", WRITABLE)
    if spec.runtime.image and not spec.devices.present:
        why = derived("spec.runtime.image", "by its own variable it may ask for all devices of a node")
        yield entry(HIDDEN["name"], HIDDEN["value"], why)
    if not spec.model.hub:
        yield entry("HF_HUB_OFFLINE", 1, derived("spec.model", "it is no hub's"))


def _trust(spec: ServiceSpec) -> list[Entry]:
    """Where the authorities are that the document trusts, unless it says so itself."""
    if spec.trusted_ca is None:
        return []
    own, file = {entry.name for entry in spec.env}, str(CA_FOLDER / CA_FILE)
    origin = derived("spec.trustedCA", "mounted there")
    return [Entry({"name": name, "value": file}, origin) for name in TRUSTING if name not in own]


def secret_variables(spec: ServiceSpec) -> dict[str, KeyReference]:
    """The variables that spec.secrets fills."""
    given = {"HF_TOKEN": spec.secrets.hub_token, "VLLM_API_KEY": spec.secrets.api_key}
    return {name: reference for name, reference in given.items() if reference}


def _env_entry(entry: EnvVar) -> Object:
    if entry.secret:
        return {"name": entry.name, "valueFrom": {"secretKeyRef": _key(entry.secret)}}
    if entry.config_map:
        return {"name": entry.name, "valueFrom": {"configMapKeyRef": _key(entry.config_map)}}
    if entry.field:
        # With its default: what the API server adds to a reference changes what it means.
        reference = {"apiVersion": "v1", "fieldPath": entry.field}
        return {"name": entry.name, "valueFrom": {"fieldRef": reference}}
    # Empty is what the API server makes of an absent value, and does not keep.
    return {"name": entry.name, **({"value": for_kubelet(entry.value)} if entry.value else {})}


def _key(reference: KeyReference) -> Object:
    return {"name": reference.name, "key": reference.key}


def _probes(spec: ServiceSpec) -> Object:
    """/live answers within seconds of the start and stays 200 while loading makes progress.

    Load alone takes no pod out of its Service: while 512 requests came at once, on two cores that were busy
    besides, the slowest answer of /ready took 3.2 s.

    There is no preStop hook: on SIGTERM the server itself goes on for its drain grace, in which the pod's
    endpoint leaves every node's tables before an idle connection is closed.
    """

    def get(path: str, **timing: int) -> Object:
        scheme = "HTTPS" if spec.secrets.tls else "HTTP"
        request = {"path": path, "port": "http", "scheme": scheme}
        return {"httpGet": request, "timeoutSeconds": 5, **timing}

    return {
        "startupProbe": get("/live", periodSeconds=2, failureThreshold=60),
        "livenessProbe": get("/live", periodSeconds=10, failureThreshold=6),
        "readinessProbe": get("/ready", periodSeconds=2, failureThreshold=3),
    }


def _resources(spec: ServiceSpec, resolved: Resolved) -> Object:
    claims = [{"name": claim} for claim in _claims(spec)]
    return of_server(spec, resolved) | ({"claims": claims} if claims else {})


def _pod_security(spec: ServiceSpec, facts: Facts) -> Object:
    """The restricted level. OpenShift gives user and group itself, from the namespace's range."""
    context: Object = {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
    wanted = spec.security
    user = wanted.run_as_user or (None if facts.openshift else USER)
    group = wanted.fs_group or (None if facts.openshift else user)
    if user is not None:
        context["runAsUser"] = user
    if group is not None:
        context["fsGroup"] = group
    if wanted.supplemental_groups:
        context["supplementalGroups"] = list(wanted.supplemental_groups)
    if label := written(wanted.se_linux):
        context["seLinuxOptions"] = label
    # Always would change the owner of each file of a large cache at each start.
    return context | {"fsGroupChangePolicy": "OnRootMismatch"}


def _scheduling(spec: ServiceSpec, facts: Facts) -> Object:
    wanted = spec.scheduling
    tolerations: list[Object] = written(wanted.tolerations)
    if key := devices.taint(spec):
        tolerations.append({"key": key, "operator": "Exists", "effect": "NoSchedule"})
    fields: Object = {
        "nodeSelector": architecture(spec, facts) | dict(wanted.node_selector),
        "affinity": written(wanted.affinity),
        "tolerations": tolerations,
        "topologySpreadConstraints": written(wanted.topology_spread_constraints),
        "priorityClassName": wanted.priority_class_name,
        "runtimeClassName": wanted.runtime_class_name,
        "schedulerName": wanted.scheduler_name,
        "dnsPolicy": wanted.dns_policy,
        "dnsConfig": written(wanted.dns_config),
        "hostAliases": written(wanted.host_aliases),
    }
    return {name: value for name, value in fields.items() if value}


def _claims(spec: ServiceSpec) -> list[str]:
    """What the pod calls its claims: names of templates may have dots, which these may not."""
    return [f"devices-{index}" for index in range(len(spec.devices.claims))]
