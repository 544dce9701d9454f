"""The pod template of a service: one restricted container that runs `slipway serve`."""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Any

from slipway.service import firewall
from slipway.service.engine import (
    MODEL_FOLDER,
    TLS_FOLDER,
    container_arguments,
    grace_seconds,
    resolve,
)
from slipway.service.facts import Facts
from slipway.service.spec import EnvVar, KeyReference, ServiceSpec

Object = dict[str, Any]

PORT = 8000
"""Where the container listens; the Service has the port that users see."""
CACHE = PurePosixPath("/cache")


def selector(spec: ServiceSpec) -> dict[str, str]:
    """Labels that tell the service's pods from all others."""
    return {
        "app.kubernetes.io/name": "slipway",
        "app.kubernetes.io/instance": spec.name,
    }


def pod_template(spec: ServiceSpec, facts: Facts) -> Object:
    """The pinned template where there is one, else a new one."""
    if facts.template is not None:
        return dict(facts.template)
    labels = {
        **spec.runtime.pod_labels,
        **selector(spec),
        "app.kubernetes.io/managed-by": "slipway",
    }
    metadata: Object = {"labels": labels}
    if spec.runtime.pod_annotations:
        metadata["annotations"] = dict(spec.runtime.pod_annotations)
    return {"metadata": metadata, "spec": _pod(spec, facts)}


def image(spec: ServiceSpec, facts: Facts) -> str:
    return spec.runtime.image or (facts.cuda_image if spec.devices.present else facts.cpu_image)


def read_only(spec: ServiceSpec) -> bool:
    """Whether the container's root file system is; device hooks of older drivers write into it."""
    wanted = spec.security.read_only_root_filesystem
    return not spec.devices.present if wanted is None else wanted


def environment(spec: ServiceSpec) -> list[Object]:
    """Defaults that the document does not override, its own entries, and its secrets."""
    own = {entry.name for entry in spec.env}
    defaults = {
        "HOME": str(CACHE),
        "HF_HOME": str(CACHE / "huggingface"),
        "SLIPWAY_CACHE": str(CACHE / "slipway"),
    }
    if not spec.model.hub:
        defaults["HF_HUB_OFFLINE"] = "1"
    if "VLLM_CACHE_ROOT" in own:
        del defaults["SLIPWAY_CACHE"]  # which would win over what the user asked for
    entries: list[Object] = [
        {"name": name, "value": value} for name, value in defaults.items() if name not in own
    ]
    entries += [_env_entry(entry) for entry in spec.env]
    for name, reference in secret_variables(spec).items():
        entries.append({"name": name, "valueFrom": {"secretKeyRef": _key(reference)}})
    return entries


def secret_variables(spec: ServiceSpec) -> dict[str, KeyReference]:
    """The variables that spec.secrets fills."""
    given = {"HF_TOKEN": spec.secrets.hub_token, "VLLM_API_KEY": spec.secrets.api_key}
    return {name: reference for name, reference in given.items() if reference}


def _env_entry(entry: EnvVar) -> Object:
    if entry.secret:
        return {"name": entry.name, "valueFrom": {"secretKeyRef": _key(entry.secret)}}
    if entry.config_map:
        return {"name": entry.name, "valueFrom": {"configMapKeyRef": _key(entry.config_map)}}
    return {"name": entry.name, "value": entry.value}


def _key(reference: KeyReference) -> Object:
    return {"name": reference.name, "key": reference.key}


def _pod(spec: ServiceSpec, facts: Facts) -> Object:
    volumes = _volumes(spec)
    grace = grace_seconds(resolve(spec, firewall.literals(spec)))
    pod: Object = {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": grace,
        "securityContext": _pod_security(spec),
        "containers": [_container(spec, facts, [mount for _, mount in volumes])],
        "volumes": [volume for volume, _ in volumes],
    }
    if spec.runtime.service_account_name:
        pod["serviceAccountName"] = spec.runtime.service_account_name
    if spec.runtime.image_pull_secrets:
        pod["imagePullSecrets"] = [{"name": name} for name in spec.runtime.image_pull_secrets]
    if spec.devices.claims:
        pod["resourceClaims"] = [
            {"name": name, "resourceClaimTemplateName": name} for name in spec.devices.claims
        ]
    return pod | _scheduling(spec)


def _container(spec: ServiceSpec, facts: Facts, mounts: list[Object]) -> Object:
    container: Object = {
        "name": "server",
        "image": image(spec, facts),
        "args": ["serve", *container_arguments(spec, PORT)],
        "env": environment(spec),
        "ports": [{"name": "http", "containerPort": PORT, "protocol": "TCP"}],
        "resources": _resources(spec),
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "readOnlyRootFilesystem": read_only(spec),
        },
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": mounts,
        **_probes(spec),
    }
    if spec.runtime.image_pull_policy:
        container["imagePullPolicy"] = spec.runtime.image_pull_policy
    return container


def _probes(spec: ServiceSpec) -> Object:
    """/health answers within seconds of the start and stays 200 while loading makes progress."""

    def get(path: str, **timing: int) -> Object:
        scheme = "HTTPS" if spec.secrets.tls else "HTTP"
        request = {"path": path, "port": "http", "scheme": scheme}
        return {"httpGet": request, "timeoutSeconds": 5, **timing}

    return {
        "startupProbe": get("/health", periodSeconds=2, failureThreshold=60),
        "livenessProbe": get("/health", periodSeconds=10, failureThreshold=6),
        "readinessProbe": get("/ready", periodSeconds=2, failureThreshold=1),
    }


def _resources(spec: ServiceSpec) -> Object:
    wanted = {
        "cpu": spec.resources.cpu,
        "memory": spec.resources.memory,
        "ephemeral-storage": spec.resources.ephemeral_storage,
    }
    amounts = {name: amount for name, amount in wanted.items() if amount is not None}
    if spec.devices.count:
        amounts[_device_name(spec)] = str(spec.devices.count)
    resources: Object = {"requests": amounts, "limits": dict(amounts)} if amounts else {}
    if spec.devices.claims:
        resources["claims"] = [{"name": name} for name in spec.devices.claims]
    return resources


def _device_name(spec: ServiceSpec) -> str:
    profile = spec.devices.profile
    return f"nvidia.com/mig-{profile}" if profile else "nvidia.com/gpu"


def _pod_security(spec: ServiceSpec) -> Object:
    context: Object = {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
    if spec.security.run_as_user is not None:
        context["runAsUser"] = spec.security.run_as_user
    if spec.security.fs_group is not None:
        context["fsGroup"] = spec.security.fs_group
    return context


def _volumes(spec: ServiceSpec) -> list[tuple[Object, Object]]:
    """Each volume with its mount."""
    cache, model, tls = spec.model.cache, spec.model, spec.secrets.tls
    shm = {"medium": "Memory", "sizeLimit": spec.resources.shared_memory}
    cached: Object = {"emptyDir": {"sizeLimit": cache.size} if cache.size else {}}
    if cache.pvc:
        cached = {"persistentVolumeClaim": {"claimName": cache.pvc}}
    volumes = [
        _volume("shm", {"emptyDir": shm}, "/dev/shm"),
        _volume("tmp", {"emptyDir": {}}, "/tmp"),
        _volume("cache", cached, str(CACHE)),
    ]
    if model.pvc:
        claim = {"claimName": model.pvc.name, "readOnly": True}
        source: Object = {"persistentVolumeClaim": claim}
        volumes.append(_volume("model", source, str(MODEL_FOLDER), fixed=True))
    if model.image:
        source = {"image": {"reference": model.image.reference}}
        if model.image.pull_policy:
            source["image"]["pullPolicy"] = model.image.pull_policy
        volumes.append(_volume("model", source, str(MODEL_FOLDER), fixed=True))
    if tls:
        source = {"secret": {"secretName": tls.name}}
        volumes.append(_volume("tls", source, str(TLS_FOLDER), fixed=True))
    for index, files in enumerate(spec.files):
        source = {"configMap": {"name": files.config_map}}
        if files.secret:
            source = {"secret": {"secretName": files.secret}}
        volumes.append(_volume(f"files-{index}", source, files.mount_path, fixed=True))
    return volumes


def _volume(name: str, source: Object, path: str, fixed: bool = False) -> tuple[Object, Object]:
    mount: Object = {"name": name, "mountPath": path}
    if fixed:
        mount["readOnly"] = True
    return {"name": name, **source}, mount


def _scheduling(spec: ServiceSpec) -> Object:
    wanted = spec.scheduling
    tolerations: list[Object] = [dict(toleration) for toleration in wanted.tolerations]
    if spec.devices.count:
        tolerations.append({"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"})
    fields: Object = {
        "nodeSelector": dict(wanted.node_selector),
        "affinity": dict(wanted.affinity),
        "tolerations": tolerations,
        "topologySpreadConstraints": [dict(c) for c in wanted.topology_spread_constraints],
        "priorityClassName": wanted.priority_class_name,
        "runtimeClassName": wanted.runtime_class_name,
        "schedulerName": wanted.scheduler_name,
    }
    return {name: value for name, value in fields.items() if value}
